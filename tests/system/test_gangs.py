"""Gangs on real processes: an instance over several workers starts, serves, and ends as one."""

import psutil
import pytest

from support.processes.cluster import Cluster
from support.processes.faults import SHORT

GANG = {"gpus": 2, "gpu_memory": "30GiB", "max_workers": 2}


def ranks(cluster: Cluster) -> dict[tuple[str, int], psutil.Process]:
    """Running engine processes by instance and rank."""
    found = {}
    for process in psutil.process_iter():
        try:
            env = process.environ()
        except (psutil.Error, OSError):
            continue
        if env.get("GPUWARD_AGENT_DIR", "").startswith(str(cluster.folder)) and "GPUWARD_INSTANCE" in env:
            found[env["GPUWARD_INSTANCE"], int(env["GPUWARD_RANK"])] = process
    return found


async def test_a_gang_serves_and_is_replaced_as_a_whole_when_a_worker_is_lost(cluster: Cluster) -> None:
    """N8: the second worker is lost; the first one's process is stopped, and its GPU is free for the replacement."""
    await cluster.start_controller(**{**SHORT, "GPUWARD_LOST_AFTER_S": "8"})
    for name in ("g1", "g2"):
        await cluster.start_agent(name, gpus=1)
    await cluster.apply("d", resources=GANG, drain_time="2s")
    await cluster.running("d")
    (gang,) = await cluster.instances("d")
    status = gang["status"]
    assert sorted(status["workers"]) == ["g1", "g2"]
    assert status["worker"] == status["workers"][0]
    assert sorted(c["rank"] for c in status["claims"]) == [0, 0, 1, 1]
    assert set(ranks(cluster)) == {(gang["name"], 0), (gang["name"], 1)}
    assert await answer(cluster) == 200
    await cluster.audit()

    leader, second = status["workers"]
    await cluster.start_agent("g3", gpus=1)
    await cluster.start_agent("g4", gpus=1)  # so that one silent worker of four does not open the breaker
    await cluster.post("/workers/g4/cordon")
    first_pid = ranks(cluster)[gang["name"], 0].pid
    cluster.kill(second)

    async def replaced() -> bool:
        here = [i for i in await cluster.instances("d") if i["status"]["phase"] == "running"]
        return bool(here) and sorted(here[0]["status"]["workers"]) == sorted([leader, "g3"])

    await cluster.until(replaced, "the whole instance runs on the workers that are left", 30)
    assert not psutil.pid_exists(first_pid)
    assert await answer(cluster) == 200
    await cluster.audit()

    await cluster.start_agent(second, gpus=1)
    await cluster.until(lambda: {key[0] for key in ranks(cluster)} != {gang["name"]}, "the substitute's are here")

    async def alone() -> bool:
        return len(await cluster.instances("d")) == 1 and all(i != gang["name"] for i, _ in ranks(cluster))

    await cluster.until(alone, "nothing is left of the old one", 30)
    await cluster.audit()


async def answer(cluster: Cluster) -> int:
    body = {"model": "d", "messages": [{"role": "user", "content": "hello"}]}
    async with cluster.session.post("/v1/chat/completions", json=body) as response:
        await response.read()
        return response.status


@pytest.mark.cases
async def test_one_rank_that_ends_ends_the_gang_and_it_starts_again_together(cluster: Cluster) -> None:
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.2")
    for name in ("g1", "g2"):
        await cluster.start_agent(name, gpus=1)
    await cluster.apply("d", resources=GANG, drain_time="2s")
    await cluster.running("d")
    (gang,) = await cluster.instances("d")
    before = {key: process.pid for key, process in ranks(cluster).items()}
    ranks(cluster)[gang["name"], 1].kill()

    async def restarted() -> bool:
        (one,) = await cluster.instances("d")
        return bool(one["status"]["phase"] == "running" and one["status"]["epoch"] > gang["status"]["epoch"])

    await cluster.until(restarted, "it runs again in a later epoch", 30)
    after = {key: process.pid for key, process in ranks(cluster).items()}
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    await cluster.audit()
    await cluster.delete("d")
    await cluster.gone("d")
    await cluster.until(lambda: not ranks(cluster), "no process is left")
