"""A drained host is emptied without waiting for a timer, and its instances run elsewhere."""

import asyncio
from pathlib import Path

import pytest

from support.processes.cluster import Cluster


async def test_drain_moves_what_runs_there(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    await cluster.apply("moves", resources={"gpus": 1}, drain_time="2s")
    await cluster.running("moves")
    await cluster.start_agent("h2", gpus=2)
    await cluster.post("/workers/h1/drain")

    async def moved() -> bool:
        found = await cluster.instances("moves")
        return [i["status"]["worker"] for i in found] == ["h2"] and found[0]["status"]["phase"] == "running"

    assert await cluster.until(moved, "it runs on h2", 15) < 15

    async def drained() -> bool:
        return (await cluster.get("/workers/h1"))["status"]["state"] == "drained"

    await cluster.until(drained, "h1 is drained")
    await cluster.apply("more", replicas=2, resources={"gpus": 1})
    await cluster.until(lambda: cluster.phase_is("more", "degraded"), "one of two fits")
    await cluster.post("/workers/h1/uncordon")
    await cluster.running("more", 10)
    await cluster.audit()


@pytest.mark.parametrize("restart", ["never", "on_failure"])
async def test_a_task_that_ends_with_zero_within_its_stop_is_done(
    restart: str, cluster: Cluster, tmp_path: Path
) -> None:
    """There is a free host all the time: neither a second copy nor a second run starts on it."""
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    runs, broken = tmp_path / "runs", tmp_path / "broken"
    saves = f"echo run >> {runs}; trap 'sleep 2; exit 0' TERM; while :; do sleep 0.1; done"
    copy = tmp_path / "copy"  # a second copy meets it, and ends
    breaks = f"echo run >> {broken}; trap 'sleep 2; rm {copy}; exit 3' TERM; "
    breaks += f"ln -s x {copy} || exit 0; while :; do sleep 0.1; done"
    for name, script in (("saves", saves), ("breaks", breaks)):
        task = {"engine": "custom", "command": ["bash", "-c", script], "restart": restart, "drain_time": "10s"}
        await cluster.apply(name, **task, resources={"gpus": 1})
    for name in ("saves", "breaks"):
        await cluster.running(name)
    await cluster.start_agent("h2", gpus=2)
    await cluster.until(lambda: _lines(runs) == 1 == _lines(broken), "both have set their traps")
    await cluster.post("/workers/h1/drain")
    await cluster.until(lambda: cluster.phase_is("saves", "succeeded"), "it is done")

    async def elsewhere() -> bool:
        found = await cluster.instances("breaks")
        return [(i["status"]["worker"], i["status"]["phase"]) for i in found] == [("h2", "running")]

    await cluster.until(elsewhere, "what was cut short runs again, once its first copy has ended")
    await asyncio.sleep(1.0)
    assert (_lines(runs), _lines(broken)) == (1, 2)
    assert await elsewhere(), "it met no other copy"
    await cluster.audit()


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
