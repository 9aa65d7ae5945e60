"""The end of an engine in mid-stream: an error event, and a connection without its end."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from controller.store.access.keys import revoke_key
from controller.store.core.database import Database
from support.leading.models_floor import CHAT, LIMIT_S, Agent, Floor

FIVE = b"".join(b'data: {"n": %d}\n\n' % n for n in range(5))
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def stream_then(sent: bytes, *, content_type: str = "text/event-stream", end: str = "abort") -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        await response.write(sent)
        await asyncio.sleep(60 if end == "silence" else 0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


async def raw_answer(floor: Floor, path: str = CHAT, *more: str) -> tuple[bytes, bytes]:
    """The head and the undecoded rest of the connection's bytes."""
    url = urlsplit(floor.api.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    body = b'{"model": "m"}'
    key = floor.api.keys["inference"]
    head = (f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}", *more)
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    async with asyncio.timeout(LIMIT_S):
        got = await reader.read(-1)
    writer.close()
    answered, _, rest = got.partition(b"\r\n\r\n")
    return answered, rest


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """The content of chunks, and whether the last chunk came."""
    content = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        if int(size, 16) == 0:
            return content, True
        content, data = content + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return content, False


@pytest.mark.parametrize("begun", [b"", b'data: {"n'])
async def test_the_client_gets_all_events_then_an_error_and_a_cut(begun: bytes, floor: Floor) -> None:
    agents = [Agent(stream_then(FIVE + begun)) for _ in range(2)]
    await floor.replicas(*agents)
    head, rest = await raw_answer(floor)
    content, ended = unchunked(rest)
    assert b" 200 " in head
    assert content.startswith(FIVE)
    (event,) = content.removeprefix(FIVE).strip().split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert not ended, "without the last chunk"
    assert b"[DONE]" not in content
    assert sum(len(agent.seen) for agent in agents) == 1, "not repeated"


async def test_messages_get_an_error_event_of_their_own(floor: Floor) -> None:
    await floor.replicas(Agent(stream_then(FIVE)))
    content, ended = unchunked((await raw_answer(floor, "/v1/messages"))[1])
    assert content.removeprefix(FIVE).startswith(b"event: error\ndata: {")
    assert not ended


async def test_other_streams_are_cut_without_a_word(floor: Floor) -> None:
    await floor.replicas(Agent(stream_then(b"sound", content_type="audio/wav")))
    assert unchunked((await raw_answer(floor))[1]) == (b"sound", False)


async def test_silence_in_mid_stream_is_told(floor: Floor) -> None:
    await floor.replicas(Agent(stream_then(FIVE, end="silence")), serving={"silence_timeout": "300ms"})
    content, ended = unchunked((await raw_answer(floor))[1])
    assert b'"code":"timed_out"' in content.removeprefix(FIVE)
    assert not ended


async def test_an_answer_under_way_survives_the_revocation_of_its_key(floor: Floor, db: Database) -> None:
    revoked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(FIVE)
        await revoked.wait()
        for _ in range(20):
            await asyncio.sleep(0.1)
            await response.write(b"data: more\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    await floor.replicas(Agent(answer))
    answering = asyncio.create_task(raw_answer(floor, CHAT, "Connection: close"))
    async with asyncio.timeout(LIMIT_S):
        keys = (await floor.api.get("/api/v1/keys"))["items"]
        (uid,) = [one["id"] for one in keys if one["role"] == "inference"]
        await revoke_key(db, uid)
        floor.api.changes.publish("key", uid)
        revoked.set()
        content, ended = unchunked((await answering)[1])
    assert content.endswith(b"data: [DONE]\n\n")
    assert ended
