"""Limits of tokens bound a burst: over real sockets, two gateways and a real database."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from controller.api.context import CONTEXT
from controller.store.access.keys import create_key
from controller.store.core.database import Database
from schemas.api.access import KeyCreated
from schemas.key_limits import KeyLimits
from support.leading.models_floor import CHAT, LIMIT_S, Agent, Floor
from support.leading.served_api import gateway_to

PROMPT_TOKENS = 20
Answer = tuple[int, dict[str, str], dict[str, Any]]


async def engine(request: web.Request) -> web.StreamResponse:
    """Makes as many tokens as it may, and takes a while."""
    await asyncio.sleep(0.3)
    body = json.loads(await request.read())
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": body.get("max_tokens", 100)}
    return web.json_response({"choices": [], "usage": usage}, status=body.get("status", 200))


@asynccontextmanager
async def gateways(floor: Floor) -> AsyncIterator[tuple[str, str]]:
    """Where two gateways before the same database listen."""
    context = floor.api.app[CONTEXT]
    async with gateway_to("127.0.0.1:9", context.database, context.changes) as other:
        yield f"http://127.0.0.1:{floor.api.gateway.port}", f"http://127.0.0.1:{other.port}"


async def post(floor: Floor, url: str, key: KeyCreated, **sent: Any) -> Answer:
    async with floor.api.session.post(url, headers={"Authorization": f"Bearer {key.key}"}, **sent) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.json(content_type=None)


async def chat(floor: Floor, url: str, key: KeyCreated, **fields: Any) -> Answer:
    body = {"model": "m", "messages": [{"role": "user", "content": "tell me"}], **fields}
    return await post(floor, url + CHAT, key, json=body)


def used(answers: list[Answer]) -> int:
    return sum(sum(body["usage"].values()) for status, _, body in answers if status == 200)


async def test_thirty_requests_at_once_stay_within_the_limit(floor: Floor, db: Database) -> None:
    agent = Agent(engine)
    await floor.replicas(agent)
    async with gateways(floor) as urls:
        for fields in ({"max_tokens": 100}, {"max_tokens": 300, "n": 1}, {}):
            key = await create_key(db, "inference", limits=KeyLimits(tpm=1000))
            before, began = len(agent.seen), time.monotonic()
            found = await asyncio.gather(*(chat(floor, urls[n % 2], key, **fields) for n in range(30)))
            spent_s = time.monotonic() - began
            passed = [one for one in found if one[0] == 200]
            assert 0 < used(found) <= 1000 + 1000 / 60 * spent_s
            assert len(passed) == len(agent.seen) - before, "no engine sees what is refused"
            for status, headers, body in found:
                if status != 200:
                    assert (status, body["error"]["code"]) == (429, "rate_limited")
                    assert 1 <= int(headers["retry-after"]) <= 61


async def test_one_request_larger_than_the_limit_passes_and_is_owed(floor: Floor, db: Database) -> None:
    await floor.replicas(Agent(engine))
    async with gateways(floor) as urls:
        for limits in (KeyLimits(tpm=1000), KeyLimits(tokens_per_day=1000)):
            key = await create_key(db, "inference", limits=limits)
            assert (await chat(floor, urls[1], key, max_tokens=2000))[0] == 200
            assert (await chat(floor, urls[1], key, max_tokens=1))[0] == 429


async def test_what_was_reserved_comes_back(floor: Floor, db: Database) -> None:
    """One after another, requests that use little of what they may pass, at whatever gateway."""
    await floor.replicas(Agent(engine))
    key = await create_key(db, "inference", limits=KeyLimits(tpm=1000))
    async with gateways(floor) as urls:
        for turn in range(4):  # without max_tokens each reserves more than half of the limit
            assert (await chat(floor, urls[0], key))[0] == 200, turn
        _, headers, _ = await chat(floor, urls[0], key)
        assert int(headers["x-ratelimit-remaining-tokens"]) < 1000 - 512, "its own is reserved"


async def test_an_answer_of_504_is_charged_by_what_its_engine_reported(floor: Floor, db: Database) -> None:
    await floor.replicas(Agent(engine))
    key = await create_key(db, "inference", limits=KeyLimits(tpm=1000))
    url = f"http://127.0.0.1:{floor.api.gateway.port}"
    assert (await chat(floor, url, key, max_tokens=1200, status=504))[0] == 504
    status, headers, _ = await chat(floor, url, key, max_tokens=1)
    assert status == 429
    assert 8 <= int(headers["retry-after"]) <= 14, "it owes 220"


async def test_the_file_of_a_form_counts_nothing(floor: Floor, db: Database) -> None:
    async def transcribe(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.json_response({"text": "hello", "usage": {"input_tokens": 20, "output_tokens": 10}})

    await floor.replicas(Agent(transcribe))
    key = await create_key(db, "inference", limits=KeyLimits(tpm=1000))
    url = f"http://127.0.0.1:{floor.api.gateway.port}/v1/audio/transcriptions"

    async def send() -> Answer:
        form = aiohttp.FormData()
        form.add_field("prompt", "w " * 100)
        form.add_field("model", "m")
        form.add_field("file", b"\0" * 300_000, filename="a.wav", content_type="audio/wav")
        return await post(floor, url, key, data=form)

    found = await asyncio.gather(*(send() for _ in range(10)))
    assert [status for status, _, _ in found] == [200] * 10
    await asyncio.sleep(1.1)
    _, headers, _ = await send()
    assert 550 <= int(headers["x-ratelimit-remaining-tokens"]) <= 780, "10 x 30 are used, and some is reserved"


async def test_an_image_counts_nothing(floor: Floor, db: Database) -> None:
    await floor.replicas(Agent(engine))
    key = await create_key(db, "inference", limits=KeyLimits(tpm=1000))
    url = f"http://127.0.0.1:{floor.api.gateway.port}"
    for size in (30_000, 900_000):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
        content = [{"type": "text", "text": "What is it?"}, image]
        status, headers, _ = await chat(floor, url, key, max_tokens=50, messages=[{"role": "user", "content": content}])
        assert status == 200
        assert int(headers["x-ratelimit-remaining-tokens"]) > 500


async def test_requests_are_refused_before_their_body_is_read(floor: Floor, db: Database) -> None:
    """By `--rpm`, by `--parallel`, and by a bucket without tokens."""
    release, came = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        came.set()
        if json.loads(await request.read()).get("wait"):
            await release.wait()
        return web.json_response({"usage": {"prompt_tokens": 900, "completion_tokens": 900}})

    await floor.replicas(Agent(answer))
    port = floor.api.gateway.port
    url = f"http://127.0.0.1:{port}"
    for limits, wait, code in (
        (KeyLimits(rpm=1), False, "rate_limited"),
        (KeyLimits(tpm=1000), False, "rate_limited"),
        (KeyLimits(tokens_per_day=1000), False, "quota_used_up"),
        (KeyLimits(parallel=1), True, "too_many_parallel"),
    ):
        key = await create_key(db, "inference", limits=limits)
        came.clear()
        release.clear()
        first = asyncio.create_task(chat(floor, url, key, wait=wait))
        async with asyncio.timeout(LIMIT_S):
            await came.wait()
            if not wait:
                await first
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key.key}\r\nContent-Length: 9000\r\n\r\n"
            writer.write(head.encode())
            said = await reader.readuntil(b"}")
            writer.close()
        assert b" 429 " in said
        assert code.encode() in said
        release.set()
        assert (await first)[0] == 200
