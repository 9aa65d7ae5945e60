"""How load is spread over real replicas that differ, how much one replica takes, and how long an engine may think."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from http1.daemon.open_files import raise_file_limit
from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, counters, engine_urls, listed, serve
from support.processes.sleeping import ask, body, gauge

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]
STREAMS = 1_500
BEGIN_S = 5.0
THINKS_S = 1_200.0


async def by_revision(cluster: Cluster, name: str) -> dict[int, list[dict[str, Any]]]:
    """What its engines have counted, by the revision that they run."""
    revisions = {one["name"]: one["spec"]["revision"] for one in await cluster.instances(name)}
    found: dict[int, list[dict[str, Any]]] = {}
    names = sorted(set(cluster.engines()) & revisions.keys())
    for instance, counted in zip(names, await counters(cluster, name), strict=True):
        found.setdefault(revisions[instance], []).append(counted)
    return found


async def test_g22_a_replica_that_is_three_times_as_slow_gets_a_seventh_of_the_requests(cluster: Cluster) -> None:
    """A rollout whose first new replica does not count as available yet: two fast replicas, and a slow one."""
    fields = {"update": "rolling", "replicas": 3, "serving": {"max_in_flight": 64}, "resources": {"gpus": 0}}
    bounds = {"surge": 0, "unavailable": 1}
    fast, slow = 0.3, 0.9
    await serve(cluster, chat={**fields, "rollout": {**bounds, "ready_for": 0}, "args": {"wait_seconds": fast}})
    await cluster.apply("chat", **fields, rollout={**bounds, "ready_for": "1h"}, args={"wait_seconds": slow})

    async def one_is_slow() -> bool:
        running = [one for one in await cluster.instances("chat") if one["status"]["phase"] == "running"]
        return sorted(one["spec"]["revision"] for one in running) == [1, 1, 2]

    await cluster.until(one_is_slow, "one replica is slow", 60)
    await listed(cluster, "chat")

    async def all_are_asked() -> bool:
        await asyncio.gather(*(ask(cluster, told="tokens=1") for _ in range(3)))
        return all(one["taken"] for ones in (await by_revision(cluster, "chat")).values() for one in ones)

    await cluster.until(all_are_asked, "the gateway knows all three", 30)
    before = await by_revision(cluster, "chat")
    slots, number = asyncio.Semaphore(30), 900

    async def one() -> int:
        async with slots:
            return (await ask(cluster, told="tokens=1"))[0]

    assert set(await asyncio.gather(*(one() for _ in range(number)))) == {200}
    after = await by_revision(cluster, "chat")
    taken = {
        revision: [now["taken"] - then["taken"] for now, then in zip(ones, before[revision], strict=True)]
        for revision, ones in after.items()
    }
    assert 0.10 <= sum(taken[2]) / number <= 0.18, taken
    assert abs(taken[1][0] - taken[1][1]) < 0.1 * number, taken


async def test_g24_1500_slow_streams_to_one_replica_all_begin_at_once(cluster: Cluster) -> None:
    """Its client opens all connections before it sends the first request."""
    assert raise_file_limit() > 2 * STREAMS
    await serve(cluster, chat={"serving": {"max_in_flight": 2_000}})
    await listed(cluster, "chat")
    sent = json.dumps(body("tokens=60 token_seconds=5", stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: {cluster.session.headers['Authorization']}\r\n"
    request = f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent
    began = time.monotonic()
    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", cluster.port) for _ in range(STREAMS)))
    for _, writer in opened:
        writer.write(request)

    async def all_run() -> bool:
        return (await counters(cluster, "chat"))[0]["running"] == STREAMS

    await cluster.until(all_run, "all run at the engine", 60)
    assert time.monotonic() - began < 4 * BEGIN_S, "5 s, and four times that on a loaded machine"
    assert await gauge(cluster, "gpuward_gateway_requests_waiting", deployment="chat") == 0
    assert await gauge(cluster, "gpuward_gateway_requests_in_flight", deployment="chat") == STREAMS
    for reader, _ in opened:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    for _, writer in opened:
        writer.close()

    async def none_runs() -> bool:
        return (await counters(cluster, "chat"))[0]["running"] == 0

    await cluster.until(none_runs, "those that were left are cancelled", 30)
    assert await gauge(cluster, "gpuward_gateway_requests_in_flight", deployment="chat") == 0


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_g15_an_engine_that_is_silent_for_20_minutes_is_waited_for(cluster: Cluster, *, stream: bool) -> None:
    await serve(cluster, chat={})
    await listed(cluster, "chat")
    sent = body(f"tokens=2 wait={THINKS_S:g}", stream=stream)
    timeout = aiohttp.ClientTimeout(total=None)
    began = time.monotonic()
    async with cluster.session.post(CHAT, json=sent, timeout=timeout) as answer:
        text = await answer.text()
    assert answer.status == 200, text
    assert THINKS_S <= time.monotonic() - began < THINKS_S + 30
    assert (await counters(cluster, "chat"))[0]["taken"] == 1
    assert len(await engine_urls(cluster, "chat")) == 1
