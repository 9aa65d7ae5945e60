"""A gateway with few connections: one key holds all that it can, others and the administrator are served."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.live.change_fanout import ChangeFanout
from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from controller.store.access.key_reads import hash_secret
from gateway.gateway import Gateway, Options
from gateway.requests.request import Request
from http1.bodies import Bodies
from http1.protocol.connection_rules import limits_for
from schemas.manifest.serving import ServingLimits
from support.builders.models import model
from support.database.away import AwayDatabase

KEYS = {"one": "inference", "two": "inference", "root": "admin"}
MOST = 64
ALONE = 48  # of one key: less 8 for heads and agents, 4 for administrators, 4 for other keys
BODY = b'{"model": "m"}'


def secret_of(key: str) -> str:
    return f"gpw_{key}_{'x' * 40}"


class Site:
    """The gateway, a controller that answers at once, and an agent whose engine answers when it is told to."""

    def __init__(self) -> None:
        self.at_engine: list[asyncio.StreamWriter] = []
        self.clients: list[asyncio.StreamWriter] = []
        self.gateway: Gateway

    async def controller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()
        writer.close()

    async def agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(len(BODY))
                self.at_engine.append(writer)
        writer.close()

    def answer(self, number: int) -> None:
        """The engine answers its oldest requests."""
        for writer in self.at_engine[:number]:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        del self.at_engine[:number]

    async def send(self, key: str, line: str = "GET /api/v1/workers", body: bytes = b"") -> asyncio.StreamReader:
        """A request over a connection of its own, which stays open."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        self.clients.append(writer)
        head = (
            f"{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret_of(key)}\r\nContent-Length: {len(body)}\r\n"
        )
        writer.write(f"{head}\r\n".encode() + body)
        return reader

    async def ask(self, key: str) -> asyncio.StreamReader:
        return await self.send(key, "POST /v1/chat/completions", BODY)

    async def ask_many(self, key: str, number: int) -> list[asyncio.StreamReader]:
        """Asks, one after the other; all that are held when this returns have been read by the gateway."""
        asked = [await self.ask(key) for _ in range(number)]
        await self.settled()
        return asked

    async def settled(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0.002)

    def held(self, key: str) -> int:
        return sum(one.key == key for one in self.gateway.under_way)

    async def status(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1]), head.lower()

    async def administrator_is_served(self) -> None:
        async with asyncio.timeout(2):
            assert (await self.status(await self.send("root")))[0] == 200

    async def newest_ended(self, asked: list[asyncio.StreamReader]) -> bytes:
        """What the newest of these requests was answered."""
        async with asyncio.timeout(5):
            return await asked[-1].readuntil(b"too_much_in_flight")


@asynccontextmanager
async def a_site(**serving: Any) -> AsyncIterator[Site]:
    site = Site()
    controller = await asyncio.start_server(site.controller, "127.0.0.1", 0)
    agent = await asyncio.start_server(site.agent, "127.0.0.1", 0)
    gateway = site.gateway = Gateway(
        AwayDatabase(),  # type: ignore[arg-type]
        ChangeFanout(),
        controller.sockets[0].getsockname()[:2],
        Options(limits=limits_for(MOST)),
        bodies=lambda refused: Bodies(2**20, 2**20, refused=refused),
    )
    address, limits = f"127.0.0.1:{agent.sockets[0].getsockname()[1]}", ServingLimits.model_validate(serving)
    found = Endpoint("m", "m-1", address, "s", limits=limits, max_in_flight=serving.get("max_in_flight", 10**6))
    gateway.routes.table.update({"m": model("m", serving=serving)}, [found])
    for key, role in KEYS.items():
        gateway.keys._known[hash_secret(secret_of(key))] = Principal(key, key, role)
    with capture_logs():
        await gateway.start(socket.create_server(("127.0.0.1", 0)))
        try:
            yield site
        finally:
            for client in site.clients:
                client.close()
            await gateway.close(0.0)
            controller.close()
            agent.close()


async def refused(site: Site, key: str) -> tuple[int, bool]:
    """The status of one more request, and whether it says when to come again."""
    status, head = await site.status(await site.ask(key))
    return status, b"retry-after: 1" in head


async def test_requests_at_engines_leave_connections_to_the_administrator_and_to_other_keys() -> None:
    async with a_site() as site:
        await site.ask_many("one", MOST + 20)
        assert site.held("one") == len(site.at_engine) == ALONE
        assert await refused(site, "one") == (429, True)
        await site.administrator_is_served()
        await site.ask_many("two", 4)
        assert site.held("two") == 4, "at once"
        await site.administrator_is_served()
        while site.held("one") > ALONE / 2:
            site.answer(2)
            await site.settled()
            await site.ask_many("two", 2)
            await site.ask("one")
            await site.settled()
        assert site.held("two") >= ALONE / 2, "an equal part, once as much has ended"
        assert await refused(site, "two") == (429, True)
        await site.administrator_is_served()


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_that_wait_end_for_a_key_with_fewer(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four slow models may hold thousands for minutes."""
    if stream:
        monkeypatch.setattr("gateway.requests.request.FIRST_S", 0.0)
        monkeypatch.setattr(f"{__name__}.BODY", b'{"model": "m", "stream": true}')
    async with a_site(max_in_flight=10, queue={"length": 512}) as site:
        waiting = await site.ask_many("one", ALONE)
        await asyncio.sleep(0.3 if stream else 0)  # the first comments
        assert (site.held("one"), len(site.at_engine)) == (ALONE, 10)
        for _ in range(ALONE // 2 // 3):
            await site.ask_many("two", 3)
        assert site.held("two") >= ALONE // 2 - 1
        assert len(site.at_engine) == 10, "what an engine has goes on"
        text = (await site.newest_ended(waiting)).lower()
        assert b"too_much_in_flight" in text
        assert stream or text.startswith(b"http/1.1 429 ")
        await site.administrator_is_served()


async def test_what_is_not_served_does_not_shut_out_the_administrator() -> None:
    """A key makes connections known by requests that are answered at once, then asks over all of them without it."""
    async with a_site() as site:
        known = [await site.send("one", "GET /v1/models") for _ in range(MOST)]
        for reader in known:
            if not reader.at_eof():
                await reader.readuntil(b"}")
        for writer in site.clients:
            writer.write(b"POST /api/v1/join HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        await site.settled()
        await site.administrator_is_served()


async def test_ended_requests_are_freed_without_a_collection() -> None:
    """A gateway collects seldom. A request and its parts that refer to one another would stay in memory until then."""

    def left() -> int:
        return sum(isinstance(one, Request) for one in gc.get_objects())

    async with a_site() as site:
        gc.collect()
        gc.disable()
        try:
            for key in ("one", "two"):
                answer = await site.ask(key)
                await site.settled()
                site.answer(1)
                assert (await site.status(answer))[0] == 200
            refusal = await site.send("one", "POST /v1/chat/completions", b"{")
            assert (await site.status(refusal))[0] == 400
            await site.ask("one")
            await site.settled()
            assert left() >= 1
            site.clients.pop().close()  # in the middle of its request
            await site.settled()
            for client in site.clients:  # a connection keeps its last request until the next one
                client.close()
            await site.settled()
            assert left() == 0
        finally:
            gc.enable()
