import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from http1 import site
from http1.protocol.admission import Limits, State
from http1.site import BoundedSite, Bounds

KEY = {"Authorization": "Bearer key"}


class Served:
    """An aiohttp server behind a bounded site, whose handler waits for `go` where the path says so."""

    def __init__(self, limits: Limits, *, is_proxy: Callable[[str], bool] = lambda _address: False) -> None:
        self.closed: list[str] = []
        self.bounds = Bounds(limits, name="test", closed=self.closed.append, is_proxy=is_proxy)
        self.go = asyncio.Event()
        self.url = ""

    @web.middleware
    async def around(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self.bounds.answering(request):
            if request.headers.get("Authorization") == KEY["Authorization"] and self.bounds.serve(request):
                return web.Response(status=503)
            response = await handler(request)
            if self.bounds.is_last(request):
                response.force_close()
            return response

    async def handle(self, request: web.Request) -> web.Response:
        if request.path == "/slow":
            await self.go.wait()
        return web.Response(text="done")

    async def half_open(self, data: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        writer.write(data)
        await writer.drain()
        self.writers.append(writer)
        return reader

    writers: list[asyncio.StreamWriter]

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator["Served"]:
        self.writers = []
        app = web.Application(middlewares=[self.around])
        app.router.add_get("/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await BoundedSite(runner, self.bounds, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()
            for writer in self.writers:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what the server sees of its sockets sets no event
            await asyncio.sleep(0.01)


async def answering(served: Served, session: aiohttp.ClientSession, count: int) -> list[asyncio.Task[tuple[int, str]]]:
    """So many requests with a key that are being answered, opened one after another."""
    tasks = []
    for n in range(count):
        tasks.append(asyncio.create_task(get(session, f"{served.url}/slow", **KEY)))
        await until(lambda wanted=n + 1: served.bounds.count(State.BUSY) == wanted)
    return tasks


async def get(session: aiohttp.ClientSession, url: str, **headers: str) -> tuple[int, str]:
    async with session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def test_half_open_connections_give_way_to_one_that_asks() -> None:
    async with (
        Served(Limits(most=50, most_unknown_per_address=20, most_bodies_per_client=9, unread_s=0.0)).run() as served,
        aiohttp.ClientSession() as session,
    ):
        readers = [await served.half_open() for _ in range(60)]
        assert await get(session, served.url) == (200, "done")
        await until(lambda: len(served.closed) == 41)
        assert await readers[0].read() == b""
        assert served.bounds.count(State.HEAD) == 19
        assert await get(session, served.url) == (200, "done")


async def test_a_connection_with_a_key_is_neither_counted_nor_closed_while_it_is_answered() -> None:
    async with (
        Served(Limits(most=10, most_unknown_per_address=3, most_bodies_per_client=9)).run() as served,
        aiohttp.ClientSession() as session,
    ):
        slow = await answering(served, session, 8)
        for _ in range(20):
            await served.half_open()
        served.go.set()
        assert await asyncio.gather(*slow) == [(200, "done")] * 8


async def test_an_incomplete_head_and_an_idle_connection_end_at_their_deadlines() -> None:
    limits = Limits(most=10, most_unknown_per_address=10, most_bodies_per_client=9, head_s=0.2, idle_s=0.4)
    async with Served(limits).run() as served, aiohttp.ClientSession() as session:
        begun, silent = await served.half_open(), await served.half_open(b"")
        kept = await served.half_open(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n\r\n")
        assert (await begun.read()).startswith(b"HTTP/1.1 408")
        assert await silent.read() == b""
        assert (await kept.read()).startswith(b"HTTP/1.1 200")
        assert sorted(served.closed) == ["head", "head", "idle"]
        assert await get(session, served.url) == (200, "done")


async def test_at_a_bound_of_served_connections_another_request_is_refused_in_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = Limits(most=4, most_unknown_per_address=4, most_bodies_per_client=9, reserved=2)
    async with Served(limits).run() as served, aiohttp.ClientSession() as session:
        slow = await answering(served, session, 2)
        for _ in range(3):
            assert (await get(session, served.url, **KEY))[0] == 503
        served.go.set()
        assert await asyncio.gather(*slow) == [(200, "done")] * 2
        assert await get(session, served.url, **KEY) == (200, "done")
    assert served.closed.count("refused") == 3
    assert capsys.readouterr().out.count("saturated") == 1


async def test_a_body_that_trickles_gives_way_and_a_complete_one_does_not() -> None:
    limits = Limits(most=6, most_unknown_per_address=6, most_bodies_per_client=9, reserved=4, body_s=0.2)
    head = b"GET /slow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\nContent-Length: 9\r\n\r\n"
    async with Served(limits).run() as served, aiohttp.ClientSession() as session:
        complete, trickles = await served.half_open(head + b"123456789"), await served.half_open(head + b"1")
        await until(lambda: (served.bounds.count(State.BUSY), served.bounds.count(State.BODY)) == (1, 1))
        await asyncio.sleep(limits.body_s)
        assert await get(session, served.url, **KEY) == (200, "done")
        assert await trickles.read() == b""
        served.go.set()
        assert (await complete.readline()).startswith(b"HTTP/1.1 200")
        assert served.closed == ["body"]


async def test_a_stranger_that_never_reads_its_answers_is_closed() -> None:
    limits = Limits(most=10, most_unknown_per_address=10, most_bodies_per_client=9, answer_s=0.2)
    async with Served(limits).run() as served:
        await served.half_open(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: served.closed == ["busy"])


async def test_a_head_without_an_end_is_closed_before_its_deadline() -> None:
    async with Served(Limits(most=10, most_unknown_per_address=10, most_bodies_per_client=9)).run() as served:
        lines = b"".join(b"x%d: %s\r\n" % (n, b"y" * 8000) for n in range(100))
        reader = await served.half_open(b"GET / HTTP/1.1\r\n" + lines)
        await until(lambda: served.closed == ["head"])
        with contextlib.suppress(ConnectionResetError):
            await reader.read()


async def test_a_large_body_that_follows_its_head_at_once_does_not_count_as_head() -> None:
    async with Served(Limits(most=10, most_unknown_per_address=10, most_bodies_per_client=9)).run() as served:
        gate = site._Gate(served.bounds, asyncio.Protocol(), asyncio.get_running_loop())
        served.bounds.opened(gate)
        for data in (b"GET / HTTP/1.1\r\nContent-Length: 999999\r", b"\n\r\n", b"x" * 400_000, b"x" * 400_000):
            served.bounds.received(gate, data)
        assert served.closed == []
        served.bounds.gone(gate)


async def test_a_stranger_s_connection_ends_with_its_answer() -> None:
    """Otherwise each costs as many answers as fit into one packet. A client with a key, and a proxy, keep theirs."""
    requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20
    served = Served(Limits(8, 8, 8))
    async with served.run():
        reader = await served.half_open(requests)
        text = await asyncio.wait_for(reader.read(), 10)
        assert (text.count(b"200 OK"), b"Connection: close" in text) == (1, True)
        known = requests.replace(b"x\r\n", b"x\r\nAuthorization: Bearer key\r\n", 1)
        reader = await served.half_open(known)
        for _ in range(20):
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"done"), 10)
    proxied = Served(Limits(8, 8, 8), is_proxy=lambda _address: True)
    async with proxied.run():
        reader = await proxied.half_open(requests)
        for _ in range(20):
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"done"), 10)
