"""Relocation: the replacement runs before the original stops, and requests are answered throughout."""

import asyncio
import sys

import pytest

from support.processes.cluster import Json
from support.processes.placement_site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")
MIB_OF_A80 = 85899345920 // 2**20


def small(name: str, **more: object) -> Json:
    """An instance of 10 GiB, spread over the hosts."""
    return {
        "name": name, "args": {"memory": "10GiB"}, "resources": {"gpus": 1}, "placement": {"strategy": "spread"}, **more
    }  # fmt: skip


BIG = {"name": "big", "args": {"memory": f"{2 * MIB_OF_A80}MiB"}, "resources": {"gpus": 2}}


async def scattered(site: Site, of_first: Json | None = None, **of_second: object) -> None:
    """Two hosts of two 80 GiB GPUs with a small instance on each, so that nothing gets a whole host."""
    await site.hosts("a80-1")
    await site.cluster.apply(**small("first", **(of_first or {})))
    await site.cluster.running("first")
    await site.hosts("a80-2")
    await site.cluster.apply(**small("second", **of_second))
    await site.cluster.running("second")
    workers = {(await site.cluster.instances(name))[0]["status"]["worker"] for name in ("first", "second")}
    assert workers == {"a80-1", "a80-2"}


async def test_relocation_frees_capacity_for_a_pending_instance(site: Site) -> None:
    await scattered(site)
    assert (await site.applied(BIG))["status"]["explain"] is not None
    planned = await site.cluster.post("/defrag", {})
    (move,) = planned["moves"]
    assert (len(planned["fits"]), planned["left"], planned["applied"]) == (1, [], False)
    assert move["workers"] != move["to_workers"]
    assert (await site.cluster.get("/defrag"))["items"] == [], "a plan writes nothing"

    answers: list[int] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        asking = group.create_task(ask_throughout(site, move["deployment"], answers))
        assert (await site.cluster.post("/defrag", {"apply": True}))["applied"]
        await site.cluster.running("big")
        asking.cancel()
    assert answers
    assert set(answers) == {200}, "the old one goes only when the copy serves"
    (done,) = (await site.cluster.get("/defrag"))["items"]
    (moved,) = await site.cluster.instances(move["deployment"])
    assert (done["state"], done["copy_name"]) == ("moved", moved["name"])
    assert (moved["status"]["phase"], moved["status"]["gpus"]) == ("running", move["to_gpus"])
    reasons = [e["reason"] for e in (await site.cluster.get(f"/events?object=instance:{move['instance']}"))["items"]]
    assert {"relocation_planned", "relocating", "relocated", "stopping"} <= set(reasons)
    await site.cluster.audit()


async def ask_throughout(site: Site, deployment: str, answers: list[int]) -> None:
    """Sends requests continuously and records the results."""
    body = {"model": deployment, "messages": [{"role": "user", "content": "hello"}]}
    while True:
        async with site.cluster.session.post("/v1/chat/completions", json=body) as response:
            await response.read()
            answers.append(response.status)
        await asyncio.sleep(0.05)


@pytest.mark.cases
async def test_a_stated_demand_and_instances_that_may_not_move(site: Site) -> None:
    await scattered(site, movable=False)
    stated = {"manifests": [{"kind": "Deployment", "engine": "simulated", **BIG}]}
    planned = await site.cluster.post("/defrag", stated)
    assert [m["deployment"] for m in planned["moves"]] == ["first"]
    await site.cluster.apply(**small("first", movable=False))
    planned = await site.cluster.post("/defrag", stated)
    assert (planned["moves"], planned["left"]) == ([], ["big#0"])


@pytest.mark.cases
async def test_a_replacement_that_does_not_start_leaves_the_original(site: Site) -> None:
    broken = site.cluster.folder / "broken"
    serve = f"if [ -e {broken} ]; then exit 1; fi; exec {sys.executable} -m http.server --bind 127.0.0.1 $0"
    await scattered(site, movable=False)
    await site.cluster.delete("first")
    await site.cluster.gone("first")
    fragile = {
        "name": "fragile", "engine": "custom", "command": ["sh", "-c", serve, "{port}"], "probe": {"path": "/"},
        "resources": {"gpus": 1, "gpu_memory": "10GiB"}, "placement": {"strategy": "spread"},
    }  # fmt: skip
    await site.cluster.apply(**fragile)
    await site.cluster.running("fragile")
    (old,) = await site.cluster.instances("fragile")
    assert (await site.applied(BIG))["status"]["explain"] is not None
    broken.touch()
    (move,) = (await site.cluster.post("/defrag", {"apply": True}))["moves"]
    assert move["instance"] == old["name"]

    async def over() -> bool:
        return bool((await site.cluster.get("/defrag"))["items"][0]["state"] == "abandoned")

    await site.cluster.until(over, "the move is given up")

    async def alone() -> bool:
        return [i["name"] for i in await site.cluster.instances("fragile")] == [old["name"]]

    await site.cluster.until(alone, "the copy goes")
    (still,) = await site.cluster.instances("fragile")
    assert (still["status"]["phase"], still["status"]["epoch"]) == ("running", old["status"]["epoch"])
    assert await site.cluster.phase_is("fragile", "running")
    await site.cluster.audit()


@pytest.mark.cases
async def test_a_relocation_continues_under_the_next_controller(site: Site) -> None:
    await scattered(site, {"args": {"memory": "10GiB", "load_seconds": 2}}, movable=False)
    assert (await site.applied(BIG))["status"]["explain"] is not None
    (move,) = (await site.cluster.post("/defrag", {"apply": True}))["moves"]

    async def two_stand() -> bool:
        return len(await site.cluster.instances(move["deployment"])) > 1

    await site.cluster.until(two_stand, "the copy comes up")
    site.cluster.kill("controller")
    await site.cluster.start_controller()
    await site.cluster.running("big")
    (moved,) = await site.cluster.instances("first")
    assert (moved["status"]["phase"], moved["status"]["gpus"]) == ("running", move["to_gpus"])
    await site.cluster.audit()
