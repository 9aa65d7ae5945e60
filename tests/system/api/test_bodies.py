"""Bytes of bodies in flight are bounded, of one key and of all."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from support.leading.served_api import ServedApi
from support.processes.cluster import Cluster

MIB = 2**20
CHAT = "/v1/chat/completions"


async def slowly(size: int, go: asyncio.Event) -> AsyncIterator[bytes]:
    """A body of no model, whose last byte comes when the event is set."""
    start, piece = b'{"x": "', b"x" * MIB
    yield start
    left = size - len(start) - 2
    while left > 0:
        yield piece[: min(left, MIB)]
        left -= MIB
    await go.wait()
    yield b'"}'


async def upload(url: str, key: str, size: int, go: asyncio.Event, *, announced: bool = True) -> tuple[int, str, str]:
    headers = {"Authorization": f"Bearer {key}", **({"Content-Length": str(size)} if announced else {})}
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(url + CHAT, data=slowly(size, go), headers=headers) as answer,
        ):
            text = await answer.text()
            assert text, (answer.status, dict(answer.headers))
            code = json.loads(text)["error"]["code"]
            return answer.status, code, answer.headers.get("Retry-After", "")
    except aiohttp.ClientOSError:  # the client went on sending after it was refused
        return 0, "cut", ""


async def is_known(cluster: Cluster, key: str) -> None:
    """Waits until the gateway holds the key: a busy machine looks a new one up too late for its first request."""

    async def answered() -> bool:
        async with cluster.session.get("/v1/models", headers={"Authorization": f"Bearer {key}"}) as answer:
            return answer.status == 200

    await cluster.until(answered, "the key is known")


@pytest.mark.parametrize("announced", [True, False])
async def test_a_key_and_all_keys_hold_bounded_bytes_of_bodies(api: ServedApi, announced: bool) -> None:
    go = asyncio.Event()
    held = [
        asyncio.create_task(upload(api.url, api.keys[role], 60 * MIB, go, announced=announced))
        for role in ("inference", "admin") * 4
    ]
    bodies = api.gateway.bodies
    async with asyncio.timeout(60):
        while bodies.held < 8 * 60 * MIB - 16:  # noqa: ASYNC110 - counts set no event
            await asyncio.sleep(0.05)
    of_key = await upload(api.url, api.keys["admin"], 20 * MIB, go, announced=announced)
    of_all = await upload(api.url, api.keys["operator"], 40 * MIB, go, announced=announced)
    small = asyncio.create_task(upload(api.url, api.keys["operator"], MIB, go, announced=announced))
    go.set()
    assert of_key == (429, "too_much_in_flight", "1")
    assert of_all == (503, "overloaded", "1")
    assert {status for status, *_ in [*await asyncio.gather(*held), await small]} == {400}
    assert bodies.held == 0


@pytest.mark.cases
async def test_many_large_uploads_at_once_take_bounded_memory(cluster: Cluster) -> None:
    """24 uploads of 64 MiB: two keys' bound is that of all."""
    await cluster.start_controller()
    keys = [(await cluster.post("/keys", {"role": "inference"}))["key"] for _ in range(3)]
    for key in keys:
        await is_known(cluster, key)
    process = cluster.gateway()
    before, most, go = process.memory_info().rss, 0, asyncio.Event()
    sent = asyncio.gather(*(upload(cluster.url, keys[n % 3], 64 * MIB, go) for n in range(24)))
    for _ in range(80):
        most = max(most, process.memory_info().rss)
        await asyncio.sleep(0.1)
    go.set()
    answers = Counter(await sent)
    refused = {(429, "too_much_in_flight", "1"), (503, "overloaded", "1"), (0, "cut", "")}
    assert set(answers) - refused == {(400, "invalid", "")}
    assert answers[400, "invalid", ""] == 8
    assert answers[429, "too_much_in_flight", "1"] + answers[503, "overloaded", "1"] >= 8
    print(f"{(most - before) / MIB:.0f} MiB", answers)  # noqa: T201
    assert most - before < (512 + 128) * MIB
