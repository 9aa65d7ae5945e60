"""G11: a client that leaves ends its request wherever that is, and frees what it held. On real processes."""

import asyncio
import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import Another
from support.processes.hostile import unread_stream
from support.processes.served_models import counters
from support.processes.sleeping import CHAT, ask, body, gauge

pytestmark = [pytest.mark.cases, pytest.mark.timeout(200)]
CANCEL_S = 0.1
LATEST_S = 2.0  # on a loaded machine; what is built in would add to each of them
TRIES = 5
SLOW = "tokens=400 token_seconds=0.05"


class Noted:
    """What the engine noted of each request, by the system's monotonic clock."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def at(self, word: str, request_id: str) -> float | None:
        if not self._journal.exists():
            return None
        lines = [line.split() for line in self._journal.read_text().splitlines()]
        return next((float(at) for w, name, _, at in lines if (w, name) == (word, request_id)), None)


async def begin(cluster: Cluster, journal: Path, **serving: Any) -> Noted:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    env = {"SIMULATED_ENGINE_JOURNAL": str(journal)}
    await cluster.apply("chat", resources={"gpus": 1}, env=env, serving=serving)
    await cluster.running("chat")
    return Noted(journal)


async def cancelled(cluster: Cluster, state: str, url: str = "") -> float:
    """How many requests were left in that state, which are also those with status 499."""
    found = await gauge(cluster, "gpuward_gateway_cancels_total", url, deployment="chat", state=state)
    assert await gauge(cluster, "gpuward_gateway_requests_total", url, deployment="chat", status="499") == found
    return found


async def nothing_open(cluster: Cluster, url: str = "") -> bool:
    names = (
        *("gpuward_gateway_requests_waiting", "gpuward_gateway_requests_in_flight"),
        "gpuward_gateway_bodies_in_flight_bytes",
    )
    return not any([await gauge(cluster, name, url) for name in names])


@pytest.mark.parametrize(
    ("told", "stream", "reads", "state"),
    [
        (SLOW, True, True, "answering"),
        ("tokens=2 wait=60", True, False, "sent"),
        ("tokens=2 wait=60", False, False, "sent"),
    ],
    ids=["in mid-stream", "before the first token", "without streaming"],
)
async def test_g11_a_close_cancels_the_engines_request(
    cluster: Cluster, tmp_path: Path, told: str, stream: bool, reads: bool, state: str
) -> None:
    noted = await begin(cluster, tmp_path / "journal", max_in_flight=1)
    delays = []
    for n in range(TRIES):
        async with aiohttp.ClientSession(headers=cluster.session.headers) as session:
            asking = asyncio.create_task(session.post(cluster.url + CHAT, json=body(f"id=r{n} {told}", stream=stream)))
            await cluster.until(lambda n=n: noted.at("taken", f"r{n}"), "the engine has taken it")
            if reads:
                answer = await asking
                await answer.content.readuntil(b"\n\n")
                closed = time.monotonic()
                answer.close()
            else:
                closed = time.monotonic()
                asking.cancel()
            await cluster.until(lambda n=n: noted.at("cancelled", f"r{n}"), "the engine has cancelled it", LATEST_S)
            delays.append((noted.at("cancelled", f"r{n}") or 0.0) - closed)
        status, _ = await ask(cluster, told="tokens=1")
        assert status == 200, "its place at the replica is free"
    assert sorted(delays)[TRIES // 2] <= 4 * CANCEL_S, delays
    assert min(delays) <= CANCEL_S, delays
    assert await cancelled(cluster, state) == TRIES
    assert await nothing_open(cluster)


async def test_g11_a_client_that_leaves_behind_full_buffers_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """It has read nothing, so that nothing moves on the way from the engine to it."""
    noted = await begin(cluster, tmp_path / "journal", max_in_flight=1)
    key = str((await cluster.post("/keys", {"role": "inference"}))["key"])

    async def stands() -> bool:
        before = (await counters(cluster, "chat"))[0]["generation_tokens"]
        await asyncio.sleep(0.5)
        return bool(before and (await counters(cluster, "chat"))[0]["generation_tokens"] == before)

    ways = ("closes", "closes its half", "resets")
    for number, how in enumerate(ways, 1):
        told = f"id=r{number} tokens=4000 token_bytes=65536"
        sent = json.dumps(body(told, stream=True)).encode()
        client = await asyncio.to_thread(unread_stream, cluster.port, key, sent)
        try:
            await cluster.until(lambda n=number: noted.at("taken", f"r{n}"), "the engine has taken it")
            await cluster.until(stands, "all buffers are full")
            assert noted.at("cancelled", f"r{number}") is None
            left = time.monotonic()
            if how == "closes its half":
                client.shutdown(socket.SHUT_WR)
            else:
                if how == "resets":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            await cluster.until(lambda n=number: noted.at("cancelled", f"r{n}"), f"{how}: it is cancelled", LATEST_S)
            assert (noted.at("cancelled", f"r{number}") or 0.0) - left < 10 * CANCEL_S, how
        finally:
            client.close()
        assert await cancelled(cluster, "answering") == number
        assert await nothing_open(cluster)
        assert (await ask(cluster, told="tokens=1"))[0] == 200, "its place at the replica is free"


async def test_g11_a_close_in_the_queue_frees_the_place_and_no_engine_sees_the_request(
    cluster: Cluster, tmp_path: Path
) -> None:
    noted = await begin(cluster, tmp_path / "journal", max_in_flight=1, queue={"length": 1, "wait": "60s"})
    running = asyncio.create_task(ask(cluster, told="id=first tokens=1 wait=8"))
    await cluster.until(lambda: noted.at("taken", "first"), "the engine has taken the first")
    key = await cluster.post("/keys", {"role": "inference", "name": "parallel", "parallel": 1})
    headers = {"Authorization": f"Bearer {key['key']}"}

    async def waiting() -> float:
        return await gauge(cluster, "gpuward_gateway_requests_waiting", deployment="chat")

    async with aiohttp.ClientSession(headers=headers) as session:
        for n in range(3):  # with a key of one slot and a queue of one place, both are free each time
            asking = asyncio.create_task(session.post(cluster.url + CHAT, json=body(f"id=w{n} tokens=1")))
            await cluster.until(waiting, "it waits")
            asking.cancel()

            async def is_free() -> bool:
                return not await waiting()

            assert await cluster.until(is_free, "its place is free") < LATEST_S
        async with session.post(cluster.url + CHAT, json=body("id=last tokens=1")) as answer:
            assert answer.status == 200, "it waits for the first one, and then goes on"
    assert (await running)[0] == 200
    assert [noted.at("taken", f"w{n}") for n in range(3)] == [None] * 3
    assert noted.at("taken", "last")
    assert await cancelled(cluster, "waiting") == 3
    assert await nothing_open(cluster)


async def test_g11_two_hundred_streams_closed_at_once_leave_nothing_open(cluster: Cluster, tmp_path: Path) -> None:
    """On two gateways, with a key whose parallel requests they are to the last one."""
    number = 200
    noted = await begin(cluster, tmp_path / "journal", max_in_flight=2 * number)
    other = Another(cluster)
    await cluster.until(other.is_ready, "the other gateway serves")
    key = await cluster.post("/keys", {"role": "inference", "name": "parallel", "parallel": number})
    headers, urls = {"Authorization": f"Bearer {key['key']}"}, (cluster.url, other.url)
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def open_one(n: int) -> aiohttp.ClientResponse:
            sent = body(f"id=s{n} {SLOW}", stream=True)
            while True:  # a gateway's share of the slots follows its use
                answer = await session.post(urls[n % 2] + CHAT, json=sent)
                if answer.status == 200:
                    await answer.content.readuntil(b"\n\n")
                    return answer
                assert (await answer.json())["error"]["code"] == "too_many_parallel"
                await asyncio.sleep(0.1)

        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(open_one(n) for n in range(number)))
        closed = time.monotonic()
        for answer in answers:
            answer.close()
    ids = [f"s{n}" for n in range(number)]

    async def all_cancelled() -> bool:
        return all(noted.at("cancelled", one) for one in ids)

    await cluster.until(all_cancelled, "no request is open at the engine", 4 * LATEST_S)
    last = max(noted.at("cancelled", one) or 0.0 for one in ids) - closed
    assert last < 4.0, "1 s, and four times that on a loaded machine"
    for url in urls:
        assert await cancelled(cluster, "answering", url) == number / 2
        assert await nothing_open(cluster, url)
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def passes(n: int) -> bool:
            async with session.post(urls[n % 2] + CHAT, json=body("tokens=1")) as answer:
                return answer.status == 200

        async def all_pass() -> bool:
            return all(await asyncio.gather(*(passes(n) for n in range(number // 2))))

        await cluster.until(all_pass, "the slots of the key are free at both", 20)
