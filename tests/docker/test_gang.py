"""An instance over two workers in containers: both on the host's network, started, served and ended as one."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agent.decide.containers import EPOCH_LABEL, INSTANCE_LABEL, RANK_LABEL
from support.docker.dockerd import Dockerd
from support.docker.images import IMAGE, contained_spec
from support.processes.cluster import Cluster, Prepared

LIMIT_S = 90.0  # it is slow where much else runs
GANG = {"gpus": 2, "gpu_memory": "30GiB", "max_workers": 2}
CHAT = {"model": "gang", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared, dockerd: Dockerd) -> AsyncIterator[Cluster]:
    """A controller, and two workers with one GPU each on the same Docker engine."""
    made = Cluster(data_dir, prepared)
    try:
        await made.start_controller(GPUWARD_RESTART_BACKOFF_S="0.2")
        path = f"{dockerd.folder}/bin:{os.environ['PATH']}"  # where an agent finds the toolkit
        for name in ("g1", "g2"):
            await made.start_agent(name, gpus=1, GPUWARD_AGENT_DOCKER=dockerd.address, PATH=path)
        yield made
    finally:
        await made.aclose()


async def ranks(dockerd: Dockerd) -> dict[int, dict[str, Any]]:
    """What Docker knows of each rank's container."""
    found = [dict(await dockerd.inspect(name)) for name in await dockerd.containers()]
    return {int(one["Config"]["Labels"][RANK_LABEL]): one for one in found}


async def answers(cluster: Cluster) -> int:
    async with cluster.session.post("/v1/chat/completions", json=CHAT) as response:
        await response.read()
        return response.status


@pytest.mark.timeout(400)
async def test_a_rank_that_is_killed_ends_the_gang_and_it_starts_again_together(
    cluster: Cluster, dockerd: Dockerd
) -> None:
    await cluster.apply("gang", **contained_spec(IMAGE, resources=GANG, drain_time="2s"))
    await cluster.running("gang", limit_s=LIMIT_S)
    (instance,) = await cluster.instances("gang")
    assert sorted(instance["status"]["workers"]) == ["g1", "g2"]
    before = await ranks(dockerd)
    assert set(before) == {0, 1}
    assert {one["HostConfig"]["NetworkMode"] for one in before.values()} == {"host"}
    assert {one["Config"]["Labels"][INSTANCE_LABEL] for one in before.values()} == {instance["name"]}
    gpus = [uuid for one in before.values() for uuid in one["HostConfig"]["DeviceRequests"][0]["DeviceIDs"]]
    assert sorted(gpus) == sorted(instance["status"]["gpus"])
    assert await answers(cluster) == 200

    os.kill(before[1]["State"]["Pid"], signal.SIGKILL)

    async def restarted() -> bool:
        (one,) = await cluster.instances("gang")
        return bool(one["status"]["phase"] == "running" and one["status"]["epoch"] > instance["status"]["epoch"])

    await cluster.until(restarted, "it runs again in a later epoch", LIMIT_S)
    await dockerd.until_containers(2)
    after = await ranks(dockerd)
    assert set(after) == {0, 1}
    assert len({one["Config"]["Labels"][EPOCH_LABEL] for one in after.values()}) == 1
    assert not any(psutil.pid_exists(one["State"]["Pid"]) for one in before.values()), "the other rank ended with it"
    assert await answers(cluster) == 200
    await cluster.audit()
    await cluster.delete("gang")
    await cluster.gone("gang", LIMIT_S)
    await dockerd.until_containers(0)
    await cluster.audit()
