"""Events come one by one and at once; a client that reads nothing holds little; a body waits for its go-ahead."""

import asyncio
import time
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from support.leading.models_floor import CHAT, LIMIT_S, Agent, Floor

JSON = b'{"model": "m"}'


async def test_each_event_comes_at_once_and_alone(floor: Floor) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(20):
            await asyncio.sleep(0.05)
            await response.write(b"data: %.6f\n\n" % time.monotonic())
        return response

    await floor.replicas(Agent(answer))
    delays = []
    async with floor.api.session.post(floor.api.url + CHAT, data=JSON, headers=floor.api.header("inference")) as got:
        async for piece in got.content.iter_any():
            assert piece.count(b"data: ") == 1, "none is merged with a later one"
            delays.append(time.monotonic() - float(piece.removeprefix(b"data: ")))
    assert len(delays) == 20
    assert sorted(delays)[10] < 0.02, "half of them: this machine is shared"


async def test_clients_that_read_nothing_hold_little(floor: Floor) -> None:
    poured = 0

    async def pour(request: web.Request) -> web.StreamResponse:
        nonlocal poured
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        piece = b"data: " + b"x" * 65_000 + b"\n\n"
        for _ in range(40 * 2**20 // len(piece)):
            await response.write(piece)
            poured += len(piece)
        return response

    await floor.replicas(Agent(pour))
    url = urlsplit(floor.api.url)
    key = floor.api.keys["inference"]
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(JSON)}\r\n\r\n"
    writers = []
    for _ in range(10):
        reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1024)
        writer.write(head.encode() + JSON)
        await reader.read(16)
        writers.append(writer)
    before = -1
    async with asyncio.timeout(LIMIT_S):
        while poured != before:
            before = poured
            await asyncio.sleep(0.5)
    for writer in writers:
        writer.transport.abort()
    assert poured / 10 < 15 * 2**20, "the kernel's buffers of engine and client included"


@pytest.mark.parametrize(
    ("key", "expected"), [("inference", b"HTTP/1.1 100 Continue"), ("viewer", b"HTTP/1.1 403"), (None, b"HTTP/1.1 401")]
)
async def test_a_body_that_waits_is_asked_for_after_admission_alone(
    key: str | None, expected: bytes, floor: Floor
) -> None:
    agent = Agent()
    await floor.replicas(agent)
    url = urlsplit(floor.api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    given = floor.api.keys[key] if key else "gpw_wrong"
    body = b'{"model": "m", "x": "' + b"y" * 20 * 2**20 + b'"}'
    lines = (f"POST {CHAT} HTTP/1.1", "Host: x", f"Authorization: Bearer {given}", "Expect: 100-continue")
    writer.write("\r\n".join((*lines, f"Content-Length: {len(body)}", "", "")).encode())
    async with asyncio.timeout(LIMIT_S):
        assert (await reader.readline()).strip().startswith(expected)
        if key == "inference":
            await reader.readline()
            writer.write(body)
            assert b" 200 " in await reader.readline()
            assert agent.seen[0][2] == body
    writer.close()
    assert len(agent.seen) == (key == "inference")
