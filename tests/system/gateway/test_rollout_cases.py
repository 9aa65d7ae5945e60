"""Rollouts on real processes that find no GPU, do not start, go by shares, or lose their controller on the way."""

import asyncio
from collections import Counter
from typing import Any, Self

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, counters, listed
from support.processes.sleeping import ask, body, events

pytestmark = [pytest.mark.cases, pytest.mark.timeout(400)]
ROLLING: dict[str, Any] = {"update": "rolling", "resources": {"gpus": 1}, "rollout": {"ready_for": 0}}


async def begin(cluster: Cluster, *, gpus: int = 8, replicas: int = 2, **spec: Any) -> None:
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.5")
    await cluster.start_agent("gpu-1", gpus=gpus)
    await change(cluster, 1, replicas=replicas, **spec)
    await reaches(cluster, "complete")


async def change(cluster: Cluster, version: int, **spec: Any) -> None:
    """Applies the deployment; another version is another revision."""
    await cluster.apply("chat", **{"replicas": 2, **ROLLING, "env": {"VERSION": str(version)}, **spec})


async def rollout(cluster: Cluster) -> Any:
    return (await cluster.get("/deployments/chat"))["status"]["rollout"]


async def reaches(cluster: Cluster, state: str, revision: int | None = None, limit_s: float = 90.0) -> None:
    async def is_there() -> bool:
        found = await rollout(cluster)
        return found is not None and found["state"] == state and revision in (None, found["revision"])

    await cluster.until(is_there, f"the rollout is {state}", limit_s)


async def revisions(cluster: Cluster, phase: str = "running") -> list[int]:
    """Of its instances in that phase."""
    return sorted(one["spec"]["revision"] for one in await cluster.instances("chat") if one["status"]["phase"] == phase)


class Load:
    """Requests one after another while the context lasts: statuses and codes, counted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = False
        self.answers: Counter[Any] = Counter()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._over = True
        await self._task

    async def _run(self) -> None:
        while not self._over:
            status, answer = await ask(self._cluster)
            self.answers[status if status == 200 else (status, str(answer))] += 1
            await asyncio.sleep(0.05)


async def test_g54_without_a_gpu_for_the_surge_it_waits_and_with_unavailable_goes_one_by_one(cluster: Cluster) -> None:
    await begin(cluster, gpus=2)
    async with Load(cluster) as load:
        await change(cluster, 2)

        async def waits() -> bool:
            return await revisions(cluster, "pending") == [2]

        await cluster.until(waits, "its first replica finds no GPU")
        await asyncio.sleep(3)
        assert (await revisions(cluster), await revisions(cluster, "pending")) == ([1, 1], [2])
        (pending,) = [one for one in await cluster.instances("chat") if one["status"]["phase"] == "pending"]
        status = (await cluster.get("/deployments/chat"))["status"]
        assert (status["phase"], status["reason"]) == ("progressing", pending["status"]["reason"])
        assert status["reason"] == "exclusive_conflict", "as for placement"
        least = 2

        async def is_done() -> bool:
            nonlocal least
            least = min(least, len(await revisions(cluster)))
            return (await rollout(cluster))["state"] == "complete"

        await change(cluster, 2, rollout={"ready_for": 0, "unavailable": 1})
        await cluster.until(is_done, "it goes on one by one", 60)
    assert await revisions(cluster) == [2, 2]
    assert least == 1
    assert set(load.answers) == {200}, load.answers
    await cluster.audit()


async def test_g55_a_revision_that_does_not_start_fails_and_undo_goes_back(cluster: Cluster) -> None:
    await begin(cluster)
    async with Load(cluster) as load:
        await change(cluster, 2, args={"exit_after": 0, "exit_code": 3}, start_timeout="2s")
        await reaches(cluster, "failed")
        await cluster.until(lambda: cluster.phase_is("chat", "degraded"), "what has failed is gone")
        assert (await cluster.get("/deployments/chat"))["status"]["reason"] == "rollout_failed"
        assert await revisions(cluster) == [1, 1]
        starts = len(await events(cluster, "scheduled"))
        await asyncio.sleep(4)
        assert len(await events(cluster, "scheduled")) == starts, "it stands: no further try"
        await cluster.post("/deployments/chat/rollout/undo", {})
        await reaches(cluster, "complete", 1)
        # The old spec in mid-rollout goes back too, without a third revision.
        await change(cluster, 3, args={"load_seconds": 600})

        async def starts_anew() -> bool:
            return await revisions(cluster, "starting") == [4]

        await cluster.until(starts_anew, "another one starts")
        await change(cluster, 1)
        await reaches(cluster, "complete", 1)
    assert await revisions(cluster) == [1, 1]
    history = (await cluster.get("/deployments/chat/revisions"))["items"]
    assert sorted(one["revision"] for one in history) == [1, 2, 4]
    assert set(load.answers) == {200}, load.answers


async def test_g56_a_canary_gets_its_share_of_10000_requests_and_the_rollout_goes_on(cluster: Cluster) -> None:
    number, weight = 10_000, 10
    canary = {"ready_for": 0, "canary": {"weight": weight, "for": "1h"}}
    await begin(cluster, replicas=2, serving={"max_in_flight": 64})
    await change(cluster, 2, replicas=2, serving={"max_in_flight": 64}, rollout=canary)

    async def shares() -> bool:
        return bool((await rollout(cluster))["canary_until"])

    await cluster.until(shares, "the canary's replica is ready", 40)
    await listed(cluster, "chat")
    await asyncio.sleep(2.5)  # then the gateway knows, even without a notification
    new = {one["name"] for one in await cluster.instances("chat") if one["spec"]["revision"] == 2}
    names = sorted(set(cluster.engines()))

    async def taken() -> tuple[int, int]:
        """By the new revision's engines, and by all."""
        counted = dict(zip(names, await counters(cluster, "chat"), strict=True))
        return sum(counted[name]["taken"] for name in new), sum(one["taken"] for one in counted.values())

    before = await taken()
    slots = asyncio.Semaphore(32)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cluster.url, headers=cluster.session.headers, connector=connector) as session:

        async def one(headers: dict[str, str]) -> int:
            async with slots, session.post(CHAT, json=body("tokens=1"), headers=headers) as answer:
                await answer.read()
                return answer.status

        assert set(await asyncio.gather(*(one({}) for _ in range(number)))) == {200}
        after = await taken()
        assert after[1] - before[1] == number
        assert abs(after[0] - before[0] - number * weight / 100) <= number / 100
        stayed = []
        for n in range(20):
            start = await taken()
            assert await asyncio.gather(*(one({"x-session-id": f"session-{n}"}) for _ in range(5))) == [200] * 5
            stayed.append((await taken())[0] - start[0])
        assert set(stayed) <= {0, 5}, "one session id stays on one revision"
    await change(cluster, 2, replicas=2, serving={"max_in_flight": 64}, rollout={"ready_for": 0, "canary": {
        "weight": weight, "for": "1s"}})  # fmt: skip
    await reaches(cluster, "complete", 2)
    assert await revisions(cluster) == [2, 2]


@pytest.mark.parametrize("what", ["scale", "stop", "delete", "controller"])
async def test_what_happens_in_mid_rollout_ends_well(cluster: Cluster, what: str) -> None:
    await begin(cluster, replicas=3)
    await change(cluster, 2, replicas=3, args={"load_seconds": 1})

    async def midway() -> bool:
        return set(await revisions(cluster)) == {1, 2}

    await cluster.until(midway, "both revisions run", 40)
    match what:
        case "scale":
            await change(cluster, 2, replicas=5, args={"load_seconds": 1})
            await reaches(cluster, "complete", 2)
            assert await revisions(cluster) == [2] * 5
        case "stop":
            await cluster.post("/deployments/chat/stop")
            await cluster.until(lambda: cluster.phase_is("chat", "stopped"), "it is stopped", 40)
            assert cluster.engines() == {}
            await cluster.post("/deployments/chat/start")
            await reaches(cluster, "complete", 2)
            assert await revisions(cluster) == [2] * 3
        case "delete":
            await cluster.delete("chat")
            await cluster.gone("chat")
            assert cluster.engines() == {}
        case _:
            cluster.kill("controller")
            await cluster.start_controller()
            await reaches(cluster, "complete", 2)
            assert await revisions(cluster) == [2] * 3
            assert {one["status"]["epoch"] for one in await cluster.instances("chat")} == {1}, "each started once"
    await cluster.audit()


async def test_a_gang_rolls_onto_other_workers_and_a_preemptor_takes_a_gpu_on_the_way(cluster: Cluster) -> None:
    await cluster.start_controller()
    for name in ("a", "b", "c"):
        await cluster.start_agent(name, gpus=2)
    gang = {"replicas": 1, "resources": {"gpus": 4, "max_workers": 2}, "priority": 100}
    await change(cluster, 1, **gang)
    await reaches(cluster, "complete")
    await change(cluster, 2, **gang, args={"load_seconds": 1})

    async def waits() -> bool:
        return await revisions(cluster, "pending") == [2]

    await cluster.until(waits, "two GPUs are left, and it needs four", 20)
    await cluster.start_agent("d", gpus=2)
    await reaches(cluster, "complete", 2)
    (instance,) = await cluster.instances("chat")
    assert len(instance["status"]["gpus"]) == 4
    await change(cluster, 3, **gang, args={"load_seconds": 3})

    async def comes() -> bool:
        return await revisions(cluster, "starting") == [3]

    await cluster.until(comes, "the next one starts", 30)
    high = {"replicas": 3, "resources": {"gpus": 2}, "priority": 500, "preempt": True}
    await cluster.apply("high", **high)
    await cluster.running("high", 60)
    assert await revisions(cluster) == [], "of both gangs one worker at least was taken"
    await cluster.delete("high")
    await reaches(cluster, "complete", 3)
    assert await revisions(cluster) == [3]
    await cluster.audit()
