"""A client that repeats a request which crashes its engine crashes no further one, whichever gateway it asks."""

import asyncio
import json

from controller.live.crashed_requests import ANSWERED_S
from support.processes.cluster import Cluster
from support.processes.gateways import Another
from support.processes.served_models import listed, serve
from system.gateway.test_replicas import ask

POISON = "tokens=3 die=1"


async def test_a_request_that_crashes_engines_is_refused_by_all_gateways(cluster: Cluster) -> None:
    await serve(cluster, chat={"replicas": 3})
    await listed(cluster, "chat")
    other = Another(cluster)
    await cluster.until(other.is_ready, "the second gateway serves")
    before = {one["name"]: one["status"]["epoch"] for one in await cluster.instances("chat")}

    assert b"engine_died" in (await ask(cluster, POISON, stream=True))[2]
    for url in (cluster.url, other.url):
        status, headers, content = await ask(cluster, POISON, url=url, stream=True)
        assert (status, json.loads(content)["error"]["code"]) == (422, "crashes_engine")
        assert headers["x-should-retry"] == "false"
        assert (await ask(cluster, "tokens=2", url=url))[0] == 200

    async def restarted() -> dict[str, int]:
        return {one["name"]: one["status"]["epoch"] for one in await cluster.instances("chat")}

    assert sum((await restarted()).values()) <= sum(before.values()) + 1, "one engine has crashed"


async def test_a_request_that_was_answered_with_an_error_just_before_the_end_is_refused_too(cluster: Cluster) -> None:
    """Some engines answer all that they have with 500, and then end themselves."""
    await serve(cluster, chat={"replicas": 2})
    await listed(cluster, "chat")
    other = Another(cluster)
    await cluster.until(other.is_ready, "the second gateway serves")

    async def epochs() -> int:
        return sum(one["status"]["epoch"] for one in await cluster.instances("chat"))

    before = await epochs()
    assert (await ask(cluster, "refuse=500 id=harmless"))[0] == 500
    await asyncio.sleep(ANSWERED_S + 0.5)
    assert (await ask(cluster, "refuse=500 die"))[0] == 500

    async def restarts() -> bool:
        return await epochs() > before

    await cluster.until(restarts, "an engine has ended")
    await asyncio.sleep(1)
    for url in (cluster.url, other.url):
        status, _, content = await ask(cluster, "refuse=500 die", url=url)
        assert (status, json.loads(content)["error"]["code"]) == (422, "crashes_engine")
        assert (await ask(cluster, "refuse=500 id=harmless", url=url))[0] == 500
    assert await epochs() == before + 1, "one engine has crashed"


async def test_what_was_in_flight_beside_it_is_not_touched(cluster: Cluster) -> None:
    await serve(cluster, chat={"replicas": 1})
    await listed(cluster, "chat")
    long = asyncio.create_task(ask(cluster, "tokens=50 token_seconds=1", stream=True))
    await asyncio.sleep(0.5)
    assert b"engine_died" in (await ask(cluster, "tokens=3 die=1", stream=True))[2]
    assert b"engine_died" in (await long)[2]

    async def answers() -> bool:
        return (await ask(cluster, "tokens=1"))[0] == 200

    await cluster.until(answers, "the engine runs again")
    status, _, _ = await ask(cluster, "tokens=2 token_seconds=0.01", stream=True)
    assert status == 200
    again = asyncio.create_task(ask(cluster, "tokens=50 token_seconds=1", stream=True))
    await asyncio.sleep(2)
    assert not again.done(), "it is answered"
    again.cancel()
