"""The database's disk is full: that is the reason, wherever one looks, and all continues by itself with space."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from controller.store.embedded.layout import Layout
from support.database.prepared import begin_with
from support.processes.cluster import Cluster, Prepared
from support.processes.small_disk import SmallDisk, small_disk

DISK_MIB = 64
HOST = "host"
ERROR = re.compile(r"traceback|exception", re.IGNORECASE)
RECOVERY_S = 40.0
ENV: Mapping[str, str] = {"GPUWARD_LOG_FORMAT": "json", "GPUWARD_SAMPLE_EVERY_S": "1", "GPUWARD_RESTART_BACKOFF_S": "1"}


@pytest.fixture
async def site(cluster: Cluster, prepared: Prepared) -> AsyncIterator[tuple[Cluster, SmallDisk]]:
    """A running cluster. Its database's tables are on a small disk, and its log elsewhere, so the server lives on."""
    begin_with(prepared.database, cluster.data_dir)
    tables = Layout(cluster.data_dir).cluster / "base"
    moved = tables.with_name("moved")
    tables.rename(moved)
    tables.mkdir()
    with small_disk(tables, DISK_MIB) as disk:
        shutil.copytree(moved, tables, dirs_exist_ok=True)
        owner = moved.stat()
        for path in (tables, *tables.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        tables.chmod(0o700)
        await cluster.start_controller(**ENV)
        await cluster.start_agent(HOST)
        yield cluster, disk
        await cluster.aclose()


async def readyz(cluster: Cluster, query: str = "") -> tuple[int, Any]:
    async with cluster.session.get(f"/readyz{query}") as answer:
        return answer.status, await answer.json()


async def test_a_full_disk_is_the_reason_until_there_is_space(site: tuple[Cluster, SmallDisk]) -> None:
    cluster, disk = site
    await cluster.apply("steady", args={"memory": "4GiB"})
    await cluster.until(lambda: cluster.phase_is("steady", "running"), "steady runs")
    # Its analysis lasts until the disk is full, so that it is pending then.
    await cluster.apply("next", args={"memory": "4GiB", "analysis_seconds": 4})
    disk.fill()
    answer: Any = {}
    for number in range(2000):  # pages have space left, which is used first
        status, answer = await cluster.call("PUT", f"/deployments/more-{number % 40}", _manifest(number))
        if status not in (200, 201):
            assert (status, answer["error"]["code"]) == (503, "database_full"), answer
            break
    else:
        pytest.fail("nothing was refused")
    await cluster.until(lambda: _needs(cluster, "database_full"), "attention names it")
    assert (await _entry(cluster, "database_full"))["advice"], "the fix"
    status, checks = await readyz(cluster)
    assert status == 503
    assert "database_full" in checks["checks"]["database_space"]["message"]
    assert (await readyz(cluster, "?exclude=database_space"))[0] == 200, "it is read from, as before"

    async def why() -> bool:
        (listed,) = (await cluster.get("/instances?deployment=next"))["items"]
        found = [(await cluster.get("/deployments/next"))["status"], listed["status"]]
        assert all(one["phase"] in ("pending", "progressing", "analyzing", "scheduled") for one in found)
        return all(one["reason"] == "database_full" and "full" in one["message"] for one in found)

    await cluster.until(why, "the pending deployment's reason", RECOVERY_S)
    disk.free()
    await cluster.until(lambda: _is_ready(cluster), "it is over by itself", RECOVERY_S)
    await cluster.until(lambda: cluster.phase_is("next", "running"), "what was pending runs", RECOVERY_S)
    assert not await _needs(cluster, "database_full")
    assert await cluster.phase_is("steady", "running")
    log = cluster.whole_log("controller")
    assert not ERROR.search(log), log[-4000:]
    lines = [line for line in log.splitlines() if "No space left" in line or "is full" in line]
    assert len(lines) <= 3, lines  # the controller's, and that of each process of the gateway


def _manifest(grown: int) -> dict[str, Any]:
    return {"engine": "simulated", "replicas": 0, "labels": {f"of-{grown}": "x" * 60}, "env": {"TZ": "x" * 4000}}


async def _entry(cluster: Cluster, code: str) -> Any:
    return next((one for one in (await cluster.get("/attention"))["items"] if one["code"] == code), None)


async def _needs(cluster: Cluster, code: str) -> bool:
    return await _entry(cluster, code) is not None


async def _is_ready(cluster: Cluster) -> bool:
    try:
        return (await readyz(cluster))[0] == 200
    except aiohttp.ClientError:
        return False
