"""Numbers of replicas that follow requests, and fixed ones, on real processes: what clients see of the changes."""

import asyncio
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.sleeping import CHAT, ask, ask_many, body, events, gauge

pytestmark = [pytest.mark.cases, pytest.mark.timeout(200)]
QUICK = {"target": 1, "window": "1s", "down_window": "3s"}


async def begin(cluster: Cluster, **spec: Any) -> None:
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.5")
    await cluster.start_agent("gpu-1")
    await cluster.apply("chat", resources={"gpus": 1}, **spec)
    await cluster.running("chat")


async def stream(cluster: Cluster, seconds: float) -> bytes:
    """A stream of so many seconds: its text."""
    told = f"tokens={round(seconds / 0.1)} token_seconds=0.1"
    timeout = aiohttp.ClientTimeout(total=120)
    async with cluster.session.post(CHAT, json=body(told, stream=True), timeout=timeout) as answer:
        assert answer.status == 200
        return await answer.content.read()


async def number(cluster: Cluster) -> int:
    return int((await cluster.get("/deployments/chat"))["status"]["scaling"]["number"])


async def test_g37_replicas_come_with_the_requests_and_go_without_cutting_one(cluster: Cluster) -> None:
    """Streams end by themselves, also those of the replicas that go."""
    await begin(cluster, replicas={"min": 1, "max": 3}, scaling=QUICK)
    first = [asyncio.create_task(stream(cluster, 25)) for _ in range(3)]  # all at the only replica

    async def all_run() -> bool:
        return await cluster.phases("chat") == ["running"] * 3

    await cluster.until(all_run, "one replica for each stream", 40)
    await asyncio.sleep(2.5)  # then the gateway knows them, even without a notification
    lasting = [asyncio.create_task(stream(cluster, 40)) for _ in range(2)]  # at the two new ones

    async def one_goes() -> bool:
        return "stopping" in await cluster.phases("chat")

    await cluster.until(one_goes, "a replica goes", 40)
    assert not any(one.done() for one in lasting), "while each of the new ones has a stream"
    for text in await asyncio.gather(*first, *lasting):
        assert text.endswith(b"data: [DONE]\n\n"), "none is cut"

    async def one_is_left() -> bool:
        return await cluster.phases("chat") == ["running"] and await number(cluster) == 1

    await cluster.until(one_is_left, "one replica is left", 40)
    scaled = [(event["evidence"]["old"], event["evidence"]["new"]) for event in await events(cluster, "autoscaled")]
    assert sum(new > old for old, new in scaled) <= 2, f"it does not flap: {scaled}"
    assert await gauge(cluster, "gpuward_autoscaler_wanted_replicas", deployment="chat") == 1
    await cluster.audit()


async def test_requests_are_held_while_the_only_replica_starts_again(cluster: Cluster) -> None:
    """A fixed number of which none runs: its engine was killed. Requests wait, and each runs once."""
    await begin(cluster, args={"load_seconds": 2})
    (engine,) = cluster.engines().values()
    engine.kill()
    engine.wait()
    answers = await ask_many(cluster, 6)
    assert {status for status, _ in answers} == {200}, answers
    assert [one["status"]["epoch"] for one in await cluster.instances("chat")] == [2]


async def test_a_deployment_that_gets_a_range_keeps_its_busy_replicas(cluster: Cluster) -> None:
    await begin(cluster, replicas=3)
    streams = [asyncio.create_task(stream(cluster, 8)) for _ in range(3)]
    await asyncio.sleep(1)
    scaling = {"target": 8, "window": "1s", "down_window": "8s", "idle_after": "4s"}
    await cluster.apply("chat", resources={"gpus": 1}, replicas={"min": 0, "max": 3}, scaling=scaling)
    await asyncio.sleep(0.5)
    assert await cluster.phases("chat") == ["running"] * 3
    for text in await asyncio.gather(*streams):
        assert text.endswith(b"data: [DONE]\n\n")
    await cluster.until(lambda: cluster.phase_is("chat", "asleep"), "it sleeps", 40)
    await cluster.apply("chat", resources={"gpus": 1}, replicas=3)
    await cluster.running("chat")
    assert (await ask(cluster))[0] == 200
    assert await cluster.phases("chat") == ["running"] * 3
