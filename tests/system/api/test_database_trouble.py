"""Trouble of the database: each kind is 503 and one log line, and requests to models do not notice it."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from controller.store.core import database as database_module
from controller.store.core.database import POOL_SIZE, Database
from gateway.routing import live_routes
from support.database.gate import DatabaseGate, gate_to
from support.database.ledger import add_deployment, add_host, add_instance, claim, report
from support.leading.served_api import ServedApi, proxy, served

LIMIT_S = 20.0
SLACK_S = 2.0
KNOWN_AWAY_S = 6.0  # the poll, and the limit of its read, with slack; a statement may take 15 s
CHAT = "/v1/chat/completions"
READS = ("/api/v1/workers", "/api/v1/keys")  # on the pool of the driver, and on the ORM's


class Site:
    """The API on a database behind a gate; `db` reaches the same database directly."""

    def __init__(self, api: ServedApi, gate: DatabaseGate, db: Database, database: Database) -> None:
        self.api, self.gate, self.db, self.database = api, gate, db, database

    async def lose(self, break_it: Callable[[], None] = lambda: None) -> None:
        """Cuts all connections; new ones meet what `break_it` has done, else a refusal."""
        await self.gate.close()
        break_it()

    async def recovers(self) -> None:
        began = time.monotonic()
        while any([(await self.api.call("GET", path))[0] != 200 for path in READS]):
            assert time.monotonic() - began < LIMIT_S
            await asyncio.sleep(0.05)


@pytest.fixture
async def site(db: Database) -> AsyncIterator[Site]:
    async with gate_to(db.dsn) as gate:
        database = await Database.open(gate.dsn.replace("127.0.0.1", "localhost"))
        try:
            async with served(database) as api:
                made = Site(api, gate, db, database)
                await made.recovers()
                yield made
        finally:
            await gate.open()
            await database.close()


async def _refused(site: Site, _: pytest.MonkeyPatch) -> None:
    await site.lose()


async def _no_such_name(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.get_running_loop().getaddrinfo

    async def getaddrinfo(host: str, *args: Any, **options: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await real(host, *args, **options)

    await site.lose(lambda: monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo))


async def _no_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.get_running_loop().create_connection

    async def create_connection(factory: Any, host: Any = None, *args: Any, **options: Any) -> Any:
        if host == "localhost":
            raise OSError(24, "Too many open files")
        return await real(factory, host, *args, **options)

    await site.lose(lambda: monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create_connection))


async def _no_tables(site: Site, _: pytest.MonkeyPatch) -> None:
    """The server that answers is another one, or was restored from nothing."""
    async with site.db.transaction() as connection:
        await connection.execute("alter table api_keys rename to other_keys")
        await connection.execute("alter table workers rename to other_workers")


KINDS = {"refused": _refused, "no such name": _no_such_name, "no files left": _no_files, "no tables": _no_tables}


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_is_503_and_one_log_line(site: Site, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it: Callable[[Site, pytest.MonkeyPatch], Awaitable[None]] = KINDS[kind]
    with capture_logs() as logged:
        await break_it(site, monkeypatch)
        for _ in range(10):
            for path in READS:
                async with site.api.session.get(site.api.url + path, headers=site.api.header()) as answer:
                    assert answer.status == 503, (path, await answer.text())
                    assert (await answer.json())["error"]["code"] == "database_unavailable"
                    assert answer.headers["Retry-After"]
    lines = [line for line in logged if line["event"] == "request failed"]
    assert len(lines) == 1, lines
    assert not lines[0].get("exc_info")
    assert lines[0]["error"]
    monkeypatch.undo()


async def test_a_used_up_pool_is_503(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "ACQUIRE_TIMEOUT_S", 0.2)
    async with AsyncExitStack() as held:
        for _ in range(POOL_SIZE - 1):  # the gateway's reads have one of their own
            await held.enter_async_context(site.database.pool.acquire())
        with capture_logs() as logged:
            answers = await asyncio.gather(*(site.api.call("GET", READS[0]) for _ in range(40)))
    assert {status for status, _ in answers} <= {200, 503}
    assert len([line for line in logged if line["event"] == "request failed"]) <= 1
    await site.recovers()


async def _metrics(site: Site) -> str:
    async with site.api.session.get(site.api.url + "/metrics", headers=site.api.header("viewer")) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


@pytest.mark.parametrize("how", ["closed", "frozen"])
async def test_metrics_of_the_process_are_served_without_the_database(site: Site, how: str) -> None:
    """So that an operator sees why all else fails."""
    site.api.metrics.depth("instances", 3)
    before = await _metrics(site)
    if how == "closed":
        await site.gate.close()
    else:
        site.gate.freeze()
    began = time.monotonic()
    during = await _metrics(site)
    assert time.monotonic() - began < KNOWN_AWAY_S
    assert ("gpuward_database_up 1.0" in before, "gpuward_database_up 0.0" in during) == (True, True)
    for text in (before, during):
        assert 'gpuward_queue_depth{kind="instances"} 3.0' in text
        assert "gpuward_leader " in text
    of_rows = ("gpuward_instances{", "gpuward_workers{")
    assert [[name in text for name in of_rows] for text in (before, during)] == [[True, True], [False, False]]
    await site.gate.open()
    await site.recovers()
    assert "gpuward_database_up 1.0" in await _metrics(site)


@pytest.fixture
async def model(site: Site) -> AsyncIterator[str]:
    """The name of a model that runs behind a stand-in for its agent."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "chat.completion"})

    async with proxy(answer) as address:
        host = await add_host(site.db, "w", gpus=1)
        async with site.db.transaction() as connection:
            await connection.execute("update workers set proxy_address = $1, proxy_secret = 's'", address)
        await add_instance(site.db, await add_deployment(site.db, "m"), "m-1", phase="running", epoch=1)
        await claim(site.db, f"host-{host.id}", "m-1", 0)
        await report(site.db, "m-1", "running")
        site.api.changes.publish("status", None)
        began = time.monotonic()
        while not site.api.gateway.routes.table.runs("m"):
            assert time.monotonic() - began < LIMIT_S
            await asyncio.sleep(0.02)
        yield "m"


@pytest.mark.parametrize("how", ["closed", "frozen"])
async def test_running_models_are_served_without_the_database(
    site: Site, model: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no request waits for it longer than a second, for a model that is not known either.

    Once the gateway has noticed, it does not deny a model that may have come since.
    """
    monkeypatch.setattr(live_routes, "READ_LIMIT_S", 1.5)
    if how == "closed":
        await site.gate.close()
    else:
        site.gate.freeze()
    routes, began, noticed = site.api.gateway.routes, time.monotonic(), 0
    while noticed < 3:
        known = routes._stale
        for name, expected, limit_s in (
            (model, {200}, SLACK_S),
            ("other", {503} if known else {404, 503}, 1.0 + SLACK_S),
        ):
            asked = time.monotonic()
            status, body = await site.api.call("POST", CHAT, role="inference", json={"model": name, "messages": []})
            assert (status in expected, time.monotonic() - asked < limit_s) == (True, True), (status, body)
        noticed += known
        assert time.monotonic() - began < LIMIT_S
        await asyncio.sleep(0.1)
    await site.gate.open()
    await site.recovers()


async def test_before_the_first_read_no_model_is_said_to_be_missing(db: Database) -> None:
    async with gate_to(db.dsn) as gate:
        database = await Database.open(gate.dsn)
        async with served(database) as api:
            routes = api.gateway.routes
            await gate.close()
            routes._known = False  # as where the database went away at once
            status, body = await api.call("POST", CHAT, role="inference", json={"model": "m", "messages": []})
            assert (status, body["error"]["code"]) == (503, "unavailable")
        await database.close()


async def test_a_frozen_database_holds_no_request_up(site: Site) -> None:
    """Requests under way end once it is known not to answer; later ones are refused at once, and it recovers."""

    async def timed(path: str) -> tuple[int, float]:
        began = time.monotonic()
        status, _ = await site.api.call("GET", path)
        return status, time.monotonic() - began

    site.gate.freeze()
    under_way = await asyncio.gather(*(timed(path) for path in READS))
    assert {status for status, _ in under_way} == {503}
    assert max(took for _, took in under_way) < KNOWN_AWAY_S
    later = await asyncio.gather(*(timed(path) for path in READS * 5))
    assert {status for status, _ in later} == {503}
    assert max(took for _, took in later) < SLACK_S
    assert (await timed("/openapi.json"))[0] == 200
    await site.gate.open()
    await site.recovers()
