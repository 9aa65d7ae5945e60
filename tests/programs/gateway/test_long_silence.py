"""G15: an engine that is silent for 20 minutes is awaited, whatever limit lies between client and engine.

The whole gateway, the agent's proxy and an engine on real sockets, without a database; time passes by hand.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.engine_proxy.in_flight import InFlightRequests
from agent.engine_proxy.proxy import Proxy
from agent.link.controller_heartbeat import ControllerHeartbeat
from agent.model_cache.answers import CacheAnswers
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.cache_uses import UseMarks
from agent.model_cache.fetches import Fetches
from agent.processes.folders import InstanceFolders
from agent.state.journal import Journal
from agent.state.process_records import ProcessRecord
from controller.live.change_fanout import ChangeFanout
from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from controller.store.access.key_reads import hash_secret
from gateway.gateway import Gateway
from http1.bodies import Bodies
from schemas.manifest.serving import ServingLimits
from support.builders.models import model
from support.database.away import AwayDatabase
from support.leaping_loop import pass_time, run_leaping

KEY = "gpw_of-the-test"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: x\n\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
JSON = b'{"model": "m"}'
FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
MINUTE = 60


class Engine:
    """Takes requests and answers when it is told to."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        self.requests = 0
        self.left = 0
        self.open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"chunked" in head.lower():
                await reader.readuntil(b"0\r\n\r\n")
            else:
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            self.requests += 1
            self.taken.put_nowait(writer)
            await reader.read()  # until the caller leaves
            self.left += 1
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


class Site:
    """A client's way to the engine."""

    def __init__(self, engine: Engine, gateway: Gateway) -> None:
        self.engine, self.gateway = engine, gateway
        self.clients: list[asyncio.StreamWriter] = []

    async def ask(
        self, path: str = "/v1/chat/completions", kind: str = "application/json", body: bytes = JSON
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Sends a request; returns the answer's reader, and the engine's writer once that has the request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        self.clients.append(writer)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return reader, await self.engine.taken.get()


@asynccontextmanager
async def a_site(folder: Path, **limits: Any) -> AsyncIterator[Site]:
    engine = Engine()
    server = await asyncio.start_server(engine.handle, "127.0.0.1", 0)
    journal = Journal(folder)
    journal.remember(proxy_secret="s")
    port = server.sockets[0].getsockname()[1]
    journal.record(ProcessRecord(instance="m-1", epoch=1, rank=0, state="running", boot_id="b", port=port))
    heartbeat = ControllerHeartbeat(journal, asyncio.get_running_loop().time, "b")
    models = CacheFolder(folder / "models")
    marks = UseMarks(models.marks, "a", "b")
    cache = CacheAnswers(Fetches(models, limit_mib=None, offline=True, in_use=dict, marks=marks))
    proxy = Proxy(journal, InstanceFolders(folder), InFlightRequests(), heartbeat, cache, host="127.0.0.1", port=0)
    gateway = Gateway(
        AwayDatabase(), ChangeFanout(), ("127.0.0.1", 9),  # type: ignore[arg-type]  # it is away
        bodies=lambda refused: Bodies(2**20, 2**20, refused=refused),
    )  # fmt: skip
    async with proxy:
        serving = ServingLimits.model_validate(limits)
        found = Endpoint("m", "m-1", f"127.0.0.1:{proxy.port}", "s", limits=serving)
        gateway.routes.table.update({"m": model("m", serving=limits)}, [found])
        gateway.keys._known[hash_secret(KEY)] = Principal("k", "k", "admin")
        await gateway.start(socket.create_server(("127.0.0.1", 0)))
        site = Site(engine, gateway)
        try:
            yield site
        finally:
            for client in site.clients:
                client.close()
                await client.wait_closed()
            await gateway.close(0.0)
    server.close()
    journal.close()
    while engine.open:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)


def run(folder: Path, test: Any, **limits: Any) -> None:
    async def in_a_site() -> None:
        async with asyncio.timeout(4 * 3600), a_site(folder, **limits) as site:
            await test(site)

    run_leaping(in_a_site)


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/v1/chat/completions", "application/json", JSON),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=b", FORM),
    ],
    ids=["json", "form"],
)
def test_g15_an_answer_after_20_minutes_of_silence_arrives(tmp_path: Path, path: str, kind: str, body: bytes) -> None:
    async def silent(site: Site) -> None:
        reader, engine = await site.ask(path, kind, body)
        for _ in range(20):
            await pass_time(MINUTE)
            assert len(site.gateway.under_way) == 1
        engine.write(WHOLE)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(2) == b"{}"
        assert (site.engine.requests, site.engine.left) == (1, 0)

    run(tmp_path, silent)


def test_g15_the_default_limit_of_30_minutes_ends_it_and_is_the_only_one(tmp_path: Path) -> None:
    async def silent(site: Site) -> None:
        reader, _ = await site.ask()
        await pass_time(29 * MINUTE + 50)
        assert len(site.gateway.under_way) == 1
        await pass_time(20)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 504 ")
        assert b"x-should-retry: false" in head.lower()
        while not site.engine.left:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        assert site.engine.requests == 1

    run(tmp_path, silent)


def test_g32_a_stream_with_one_token_a_minute_goes_on_for_40_minutes(tmp_path: Path) -> None:
    async def slow(site: Site) -> None:
        reader, engine = await site.ask()
        engine.write(CHUNKED)  # the answer begins with its first event
        for _ in range(40):
            await pass_time(MINUTE)
            engine.write(EVENT)
            assert (await reader.readuntil(EVENT)).endswith(EVENT)
        engine.write(b"0\r\n\r\n")
        assert await reader.readexactly(5) == b"0\r\n\r\n"

    run(tmp_path, slow)


def test_a_stream_that_falls_silent_is_cut_after_its_own_limit(tmp_path: Path) -> None:
    async def stops(site: Site) -> None:
        reader, engine = await site.ask()
        engine.write(CHUNKED + EVENT)
        await reader.readuntil(EVENT)
        await pass_time(5 * MINUTE - 10)
        assert len(site.gateway.under_way) == 1
        await pass_time(20)
        rest = await reader.read()
        assert b'"timed_out"' in rest
        assert not rest.endswith(b"0\r\n\r\n")

    run(tmp_path, stops)
