"""Keys in memory: fresh within a second, served while the database is away, and cheap to guess wrongly."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from controller.api import app as app_module
from controller.api.app import all_routes
from controller.api.context import KEYS
from controller.live import key_ring
from controller.live.change_fanout import ChangeFanout
from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import KeyRing
from controller.store.access.key_reads import Principal, hash_secret
from controller.store.access.keys import create_key, revoke_key
from controller.store.core.database import Database
from support.database.gate import DatabaseGate, gate_to
from support.database.ledger import add_deployment, add_host, add_instance, claim, report
from support.leading.served_api import ServedApi, proxy, served

LIMIT_S = 20.0
SLACK_S = 2.0  # for a busy machine, in place of bounds of a second
ENDS_S = 5.0
CHAT = "/v1/chat/completions"


@pytest.fixture
async def gate(db: Database) -> AsyncIterator[DatabaseGate]:
    async with gate_to(db.dsn) as opened:
        yield opened


@pytest.fixture
async def gated(gate: DatabaseGate) -> AsyncIterator[ServedApi]:
    """The API on a database that a test can take away."""
    database = await Database.open(gate.dsn)
    try:
        async with served(database) as running:
            yield running
    finally:
        await gate.open()
        await database.close()


async def status_of(api: ServedApi, key: str, path: str = "/v1/models") -> tuple[int, str, float]:
    """Status, error code and seconds."""
    began = time.monotonic()
    async with api.session.get(api.url + path, headers={"Authorization": f"Bearer {key}"}) as answer:
        body = await answer.json()
        return answer.status, body.get("error", {}).get("code", ""), time.monotonic() - began


async def until(seen: Callable[[], Awaitable[bool]], limit_s: float = LIMIT_S) -> None:
    began = time.monotonic()
    while not await seen():
        assert time.monotonic() - began < limit_s
        await asyncio.sleep(0.02)


async def holds(api: ServedApi, key: str) -> None:
    """Waits until it is in memory."""

    async def held() -> bool:
        return all(hash_secret(key) in ring._known for ring in (api.app[KEYS], api.gateway.keys))

    await until(held)


async def is_away(api: ServedApi) -> None:
    async def away() -> bool:
        return api.app[KEYS]._away and api.gateway.keys._away

    await until(away)


async def is_refused(api: ServedApi, key: str, path: str = "/v1/models") -> None:
    async def refused() -> bool:
        return (await status_of(api, key, path))[0] == 401

    await until(refused, 1.0 + SLACK_S)


@pytest.mark.parametrize("key", ["", "gpw_", "gpw_wrong", "gpw_" + "x" * 100_000, "gpj_abc", "gpw_\x00", "gpw_\udcff"])
async def test_an_invalid_key_has_no_principal(api: ServedApi, key: str) -> None:
    assert await api.app[KEYS].authenticate(key) is None


@pytest.mark.parametrize("hint", [True, False])
async def test_a_revoked_key_is_refused_within_a_second(api: ServedApi, db: Database, hint: bool) -> None:
    """Also where no hint arrives, since a count shows the change."""
    made = await create_key(db, "viewer")
    assert (await status_of(api, made.key, "/api/v1/workers"))[0] == 200, "at once, before any hint"
    await revoke_key(db, made.id)
    if hint:
        api.changes.publish("key", made.id)
    await is_refused(api, made.key, "/api/v1/workers")
    assert key_ring.POLL_S + key_ring.SPACING_S < 1


@pytest.mark.parametrize("how", ["closed", "frozen"])
async def test_without_the_database_all_keys_are_served(
    gated: ServedApi, gate: DatabaseGate, db: Database, how: str
) -> None:
    never_used = await create_key(db, "inference")
    await holds(gated, never_used.key)
    if how == "closed":
        await gate.close()
    else:
        gate.freeze()
    # Before the loss is noticed, and after.
    for _ in range(2):
        status, code, took_s = await status_of(gated, "gpw_unknown")
        assert (status, code) == (503, "unavailable")
        assert took_s < key_ring.ANSWER_S + SLACK_S
        status, _, took_s = await status_of(gated, never_used.key)
        assert status == 200
        assert took_s < SLACK_S
        await is_away(gated)
    async with gated.session.get(gated.url + "/v1/models", headers={"Authorization": "Bearer gpw_x"}) as answer:
        assert answer.headers["Retry-After"]
    made_meanwhile = await create_key(db, "inference")
    await revoke_key(db, never_used.id)
    assert (await status_of(gated, made_meanwhile.key))[:2] == (503, "unavailable")
    await gate.open()
    await holds(gated, made_meanwhile.key)
    assert (await status_of(gated, made_meanwhile.key))[0] == 200
    assert (await status_of(gated, never_used.key))[0] == 401
    assert (await status_of(gated, "gpw_unknown"))[0] == 401


class _Counting:
    """A connection that counts its queries."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.queries = 0

    async def fetch(self, query: str, *args: Any) -> Any:
        self.queries += 1
        return await self.inner.fetch(query, *args)

    def terminate(self) -> None:
        self.inner.terminate()


async def test_a_flood_of_wrong_keys_costs_few_queries_and_no_memory(db: Database) -> None:
    connection = _Counting(await db.listen_connection())

    async def connect() -> Any:
        return connection

    ring = KeyRing(connect, ChangeFanout(), ended=lambda _: None)
    ring.start()
    made = await create_key(db, "viewer")
    refused = 0
    try:
        began = time.monotonic()
        async with asyncio.timeout(60):
            for start in range(0, 10_000, 2_000):
                guesses = (ring.authenticate(f"gpw_wrong-{number}") for number in range(start, start + 2_000))
                answers = await asyncio.gather(*guesses, return_exceptions=True)
                refused += answers.count(None)
                assert all(answer is None or isinstance(answer, UnknownWhileAwayError) for answer in answers)
                assert await ring.authenticate(made.key) is not None
        took_s = time.monotonic() - began
        assert connection.queries <= 100 * max(took_s, 1.0)
        assert refused > 5_000
        assert len(ring._known) == 1
        assert not ring._unknown
    finally:
        await ring.stop()


async def test_more_unknown_keys_than_the_bound_are_turned_away_at_once() -> None:
    ring = KeyRing(_never, ChangeFanout(), ended=lambda _: None)
    ring.start()
    try:
        waiting = [
            asyncio.create_task(ring.authenticate(f"gpw_{number}")) for number in range(key_ring.MAX_UNKNOWN + 100)
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.5 + SLACK_S)
        assert len(ring._unknown) <= key_ring.MAX_UNKNOWN
        assert sum(task.done() for task in waiting) >= 100
        assert all(isinstance(task.exception(), UnknownWhileAwayError) for task in done)
        await asyncio.wait(waiting)
        assert all(isinstance(task.exception(), UnknownWhileAwayError) for task in waiting)
    finally:
        await ring.stop()


async def _open(api: ServedApi, key: str, path: str, **body: Any) -> aiohttp.ClientResponse:
    method = "POST" if body else "GET"
    headers = {"Authorization": f"Bearer {key}"}
    return await api.session.request(method, api.url + path, headers=headers, json=body or None)


async def _hang(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one\n")
    await asyncio.Event().wait()
    return response


async def is_cut(stream: aiohttp.ClientResponse) -> None:
    """Waits until it is cut. A clean end would be read as the stream's own."""
    with pytest.raises(aiohttp.ClientError):
        async with asyncio.timeout(ENDS_S + SLACK_S):
            await stream.content.read()


async def test_every_stream_of_the_api_ends_with_its_key(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each route of the table, so also for those to come: all their handlers stream for ever here."""
    streams = {route.path: replace(route, handler=_hang) for route in all_routes("x") if route.stream}
    monkeypatch.setattr(app_module, "all_routes", lambda _version: list(streams.values()))
    async with served(db, shutdown_s=0.1) as api, AsyncExitStack() as stack:
        made, other = await create_key(db, "admin"), await create_key(db, "admin")
        opened = {}
        for path, route in streams.items():
            for key in (made, other):
                call = api.session.request(
                    route.method,
                    api.url + re.sub(r"\{\w+\}", "d", path),
                    headers={"Authorization": f"Bearer {key.key}"},
                )
                answer = opened[path, key.id] = await stack.enter_async_context(call)
                assert await answer.content.readline() == b"one\n", path
        await revoke_key(db, made.id)
        await asyncio.gather(*(is_cut(opened[path, made.id]) for path in streams))
        for (path, key_id), answer in opened.items():
            if key_id == other.id:
                assert answer.content.exception() is None, path
                assert not answer.content.at_eof(), path


class _Engine:
    """An engine behind its agent: it sends a line at once, and another one when told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.followed = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        self.followed += 1
        try:
            await self.go_on.wait()
        finally:
            self.followed -= 1
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def engine(api: ServedApi, db: Database) -> AsyncIterator[_Engine]:
    """The engine of the running instance d-1."""
    made = _Engine()
    async with proxy(made.handle) as address:
        host = await add_host(db, "w", gpus=1)
        async with db.transaction() as connection:
            await connection.execute("update workers set proxy_address = $1, proxy_secret = 's'", address)
        await add_instance(db, await add_deployment(db, "d"), "d-1", phase="running", epoch=1)
        await claim(db, f"host-{host.id}", "d-1", 0)
        await report(db, "d-1", "running")
        api.changes.publish("status", None)

        async def listed() -> bool:
            return bool((await api.get("/v1/models", role="inference"))["data"])

        await until(listed)
        yield made
        made.go_on.set()


async def test_a_watch_ends_with_its_key_and_others_go_on(api: ServedApi, db: Database) -> None:
    made = await create_key(db, "viewer")
    other_key = api.keys["viewer"]
    async with (
        await _open(api, made.key, "/api/v1/watch") as ended,
        await _open(api, other_key, "/api/v1/watch") as other,
    ):
        assert await other.content.readline() == b"event: snapshot\n"
        await revoke_key(db, made.id)
        await is_cut(ended)
        uid = await add_deployment(db, "later")
        api.changes.publish("deployment", uid)
        async with asyncio.timeout(LIMIT_S):
            while await other.content.readline() != b"event: changed\n":
                pass


async def test_a_followed_log_ends_with_its_key_here_and_at_the_agent(
    api: ServedApi, db: Database, engine: _Engine
) -> None:
    made = await create_key(db, "operator")
    async with await _open(api, made.key, "/api/v1/instances/d-1/logs?follow=1") as log:
        assert await log.content.readline() == b"data: one\n"
        assert engine.followed == 1
        await revoke_key(db, made.id)
        await is_cut(log)

    async def left() -> bool:
        return not engine.followed

    await until(left)


async def test_a_models_answer_under_way_goes_on(api: ServedApi, db: Database, engine: _Engine) -> None:
    made = await create_key(db, "inference")
    async with await _open(api, made.key, CHAT, model="d", messages=[]) as answer:
        assert answer.status == 200
        await revoke_key(db, made.id)
        await is_refused(api, made.key)
        await asyncio.sleep(0.2)
        engine.go_on.set()
        async with asyncio.timeout(LIMIT_S):
            assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


async def _never() -> Any:
    await asyncio.Event().wait()


async def test_a_local_key_is_stored_nowhere_and_works_without_a_database() -> None:
    principal = Principal("local", "gpuward up", "admin")
    ring = KeyRing(_never, ChangeFanout(), ended=lambda _: None, local={hash_secret("gpw_local"): principal})
    ring.start()
    try:
        assert await ring.authenticate("gpw_local") == principal
    finally:
        await ring.stop()
