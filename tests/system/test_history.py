"""The history of real processes: graphs, idle report and `top`, across a controller's crash and a deletion."""

import asyncio
import csv
import io
import os
import sys
from typing import Any

import pytest

from support.processes.cluster import Cluster

OFTEN = {"GPUWARD_SAMPLE_EVERY_S": "1", "GPUWARD_ROLLUP_EVERY_S": "1"}


async def hours_of(cluster: Cluster) -> dict[str, dict[str, float]]:
    """GPU hours by deployment, as seconds."""
    report = await cluster.get("/reports/idle?since=1h&min_gpu_utilization=30&time_window=30s")
    return {
        item["deployment"]: {name: 3600 * (value or 0) for name, value in item["gpu_hours"].items()}
        for item in report["items"]
    }


async def gpuward(cluster: Cluster, *words: str) -> str:
    key = cluster.session.headers["Authorization"].removeprefix("Bearer ")
    command = [sys.executable, "-P", "-m", "cli", "--url", cluster.url, "--api-key", key, *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=env)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    return out.decode()


@pytest.mark.cases
async def test_usage_and_waste_are_known_across_a_crash(cluster: Cluster) -> None:
    await cluster.start_controller(**OFTEN)
    await cluster.start_agent("host", gpus=2, memory="40GiB")
    await cluster.apply("works", resources={"gpus": 1}, args={"utilization": 90})
    await cluster.apply("sleeps", resources={"gpus": 1, "gpu_memory": "10GiB"}, args={"utilization": 0})
    await cluster.running("works")
    await cluster.running("sleeps")

    def at_least(name: str, figure: str, least_s: float) -> Any:
        async def seen() -> bool:
            return (await hours_of(cluster)).get(name, {}).get(figure, 0.0) >= least_s

        return seen

    await cluster.until(at_least("works", "used", 1), "minutes hold the one")
    await cluster.until(at_least("sleeps", "wasted", 0.25), "minutes hold the other")
    cluster.kill("controller")
    await cluster.start_controller(**OFTEN)
    before = (await hours_of(cluster))["works"]["used"]
    await cluster.until(at_least("works", "used", before + 2), "they go on after the crash")

    hours = await hours_of(cluster)
    works, sleeps = hours["works"], hours["sleeps"]
    assert works["wasted"] < works["used"] < works["claimed"]
    assert sleeps["used"] == 0
    assert 0.2 < sleeps["claimed"] / works["claimed"] < 0.3, "a quarter of a GPU"

    (instance,) = await cluster.instances("works")
    described = await gpuward(cluster, "describe", "instance", instance["name"])
    assert "highest 90%" in described
    assert instance["name"] in await gpuward(cluster, "top", "--once")

    await cluster.delete("sleeps")
    await cluster.gone("sleeps")
    rows = csv.DictReader(io.StringIO(await gpuward(cluster, "report", "idle", "--since", "1h", "-o", "csv")))
    assert {row["deployment"]: row["deleted"] for row in rows} == {"works": "false", "sleeps": "true"}
