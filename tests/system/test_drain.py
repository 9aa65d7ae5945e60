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


async def runs(cluster: Cluster, name: str) -> list[str]:
    """The workers on which it runs now."""
    found = await cluster.instances(name)
    return [i["status"]["worker"] for i in found if i["status"]["phase"] == "running"]


async def state_of(cluster: Cluster, worker: str) -> str:
    return str((await cluster.get(f"/workers/{worker}"))["status"]["state"])


async def test_a_drain_serves_on_while_the_replacement_loads(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    await cluster.apply("serves", resources={"gpus": 1}, drain_time="1s", args={"load_seconds": 4})
    await cluster.running("serves")
    await cluster.start_agent("h2", gpus=2)
    plan = await cluster.post("/plan/drain", {"workers": ["h1"]})
    assert [(i["action"], i["fits"], i["to_workers"]) for i in plan["items"]] == [("moves", True, ["h2"])]
    await cluster.post("/workers/h1/drain")
    gaps = []

    async def moved() -> bool:
        workers = await runs(cluster, "serves")
        gaps.append(not workers)
        return workers == ["h2"] and len(await cluster.instances("serves")) == 1

    await cluster.until(moved, "it runs on h2 alone", 30)
    assert not any(gaps)
    assert await state_of(cluster, "h1") == "drained"
    await cluster.audit()


async def test_a_drain_survives_a_killed_leader(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    await cluster.apply("serves", resources={"gpus": 1}, drain_time="1s", args={"load_seconds": 4})
    await cluster.running("serves")
    await cluster.start_agent("h2", gpus=2)
    await cluster.post("/workers/h1/drain")

    async def two() -> bool:
        return len(await cluster.instances("serves")) == 2

    await cluster.until(two, "the replacement exists")
    cluster.kill("controller")
    await cluster.start_controller()

    async def moved() -> bool:
        found = await cluster.instances("serves")
        return [(i["status"]["worker"], i["status"]["phase"]) for i in found] == [("h2", "running")]

    await cluster.until(moved, "one instance runs, on h2", 40)
    await cluster.audit()


async def test_without_room_a_drain_waits_and_then_stops(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    await cluster.apply("stuck", resources={"gpus": 1}, drain_time="1s")
    await cluster.running("stuck")
    plan = await cluster.post("/plan/drain", {"workers": ["h1"]})
    assert [(i["action"], i["fits"]) for i in plan["items"]] == [("moves", False)]
    view = await cluster.post("/workers/h1/drain")
    assert view["spec"]["drain_until"] is not None
    (condition,) = [c for c in (await cluster.get("/workers/h1"))["status"]["conditions"] if c["type"] == "Drained"]
    assert (await cluster.instances("stuck"))[0]["name"] in condition["message"]
    repeated = await cluster.post("/workers/h1/drain")
    assert repeated["spec"]["drain_until"] == view["spec"]["drain_until"]
    assert await runs(cluster, "stuck") == ["h1"]
    await cluster.post("/workers/h1/drain", {"timeout": "0s"})

    async def drained() -> bool:
        return await state_of(cluster, "h1") == "drained"

    await cluster.until(drained, "h1 is drained")
    await cluster.post("/workers/h1/uncordon")
    await cluster.running("stuck")
    assert len(await cluster.instances("stuck")) == 1
    await cluster.audit()


async def test_an_ended_drain_keeps_what_runs(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    await cluster.apply("stays", resources={"gpus": 1})
    await cluster.running("stays")
    before = (await cluster.instances("stays"))[0]["name"]
    await cluster.post("/workers/h1/drain")

    async def number_is(number: int) -> bool:
        return len(await cluster.instances("stays")) == number

    await cluster.until(lambda: number_is(2), "a replacement is pending")
    await cluster.post("/workers/h1/uncordon")
    await cluster.until(lambda: number_is(1), "the replacement is gone")
    assert [i["name"] for i in await cluster.instances("stays")] == [before]
    await cluster.audit()


async def test_a_task_ends_by_itself_or_is_started_again_on_request(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=2)
    task = {"engine": "custom", "restart": "never", "resources": {"gpus": 1}, "drain_time": "1s"}
    await cluster.apply("short", **task, command=["sh", "-c", "sleep 6"])
    await cluster.apply("long", **task, command=["sh", "-c", "sleep 600"])
    await cluster.running("short")
    await cluster.running("long")
    await cluster.start_agent("h2", gpus=2)
    (short,) = await cluster.instances("short")
    (long,) = await cluster.instances("long")
    plan = await cluster.post("/plan/drain", {"workers": ["h1"], "timeout": 0})
    assert {(i["deployment"], i["action"], i["fits"]) for i in plan["items"]} == {
        ("short", "stays", None), ("long", "stays", None),
    }  # fmt: skip
    await cluster.post("/workers/h1/drain", {"timeout": 0})
    await cluster.until(lambda: cluster.phase_is("short", "succeeded"), "the short task ends")
    assert [i["name"] for i in await cluster.instances("short")] == [short["name"]]
    assert [i["name"] for i in await cluster.instances("long")] == [long["name"]]
    worker = (await cluster.get("/workers/h1"))["status"]
    assert worker["state"] == "draining"
    (condition,) = [c for c in worker["conditions"] if c["type"] == "Drained"]
    assert (condition["reason"], long["name"] in condition["message"]) == ("tasks_run_on", True)
    await cluster.post("/workers/h1/drain", {"restart_tasks": True})

    async def moved() -> bool:
        return await runs(cluster, "long") == ["h2"] and await state_of(cluster, "h1") == "drained"

    await cluster.until(moved, "the long task runs on h2")
    await cluster.audit()


async def test_a_drain_at_once_stops_first(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    await cluster.apply("moves", resources={"gpus": 1}, drain_time="1s", args={"load_seconds": 2})
    await cluster.running("moves")
    await cluster.start_agent("h2", gpus=1)
    await cluster.post("/workers/h1/drain", {"now": True})

    async def drained() -> bool:
        return await state_of(cluster, "h1") == "drained"

    await cluster.until(drained, "h1 is drained", 5)
    await cluster.running("moves")


async def test_a_drain_is_refused_where_its_fields_contradict(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("h1", gpus=1)
    for body in ({"now": True, "timeout": "5m"}, {"timeout": "-1s"}, {"timeouts": 1}, {"timeout": "90d"}):
        status, _ = await cluster.call("POST", "/workers/h1/drain", body)
        assert status in (400, 422), body
    assert not (await cluster.get("/workers/h1"))["spec"]["draining"]
    status, _ = await cluster.call("POST", "/plan/drain", {"workers": ["h1", "nowhere"]})
    assert status == 404


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
    await cluster.post("/workers/h1/drain", {"now": True})
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
