"""One request to servers that send heads or bodies without an end, or in parts."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import uvloop

from http1.fetch import FetchError, fetch
from http1.protocol.client import Pool
from http1.protocol.heads import ResponseHead
from http1.protocol.reader import MOST_HEADS

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(10), server:
        yield server.sockets[0].getsockname()[1]


async def ask(port: int, body: bytes = b"", *, limit_s: float = 5.0) -> tuple[ResponseHead, bytes]:
    connect = partial(Pool().connect, ("127.0.0.1", port))
    return await fetch(connect, b"POST", b"/x?y", [(b"host", b"a")], body, limit_s=limit_s, most_bytes=100)


def sending(data: bytes, ended: asyncio.Event) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await reader.read()  # until the client ends
        writer.transport.abort()
        ended.set()

    return serve


async def test_a_few_interim_heads_are_skipped_and_too_many_end_it() -> None:
    ended = asyncio.Event()
    async with serving(sending(INTERIM * (MOST_HEADS - 1) + FINAL, ended)) as port:
        head, body = await ask(port)
        assert (head.status, body) == (200, b"ok")
        await ended.wait()
    for heads in (MOST_HEADS, 100_000):
        ended.clear()
        async with serving(sending(INTERIM * heads + FINAL, ended)) as port:
            with pytest.raises(FetchError):
                await ask(port)
            await ended.wait()


@pytest.mark.parametrize(("parts", "read"), [(3, b"part" * 3), (25, b"part" * 25), (None, b"part" * 25)])
async def test_a_body_in_parts_is_read_to_its_end_and_an_endless_one_to_its_bound(
    parts: int | None, read: bytes
) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(parts or 10_000):
                writer.write(b"part")
                await writer.drain()
                await asyncio.sleep(0.002)  # each part comes by itself
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with serving(serve) as port:
        assert (await ask(port))[1] == read
        await ended.wait()


async def test_the_request_is_complete() -> None:
    got, ended = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        got.set_result(head + await reader.readexactly(4))
        writer.write(FINAL)
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        ended.set()

    async with serving(serve) as port:
        await ask(port, b"body")
        await ended.wait()
    lines = (await got).split(b"\r\n")
    assert lines[0] == b"POST /x?y HTTP/1.1"
    assert set(lines[1:-2]) == {b"host: a", b"connection: close", b"content-length: 4"}
    assert lines[-1] == b"body"


async def test_a_silent_server_and_one_that_does_not_listen(unused_tcp_port: int) -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()  # until the client ends
        writer.transport.abort()
        ended.set()

    async with serving(serve) as port:
        with pytest.raises(FetchError, match="no answer in time"):
            await ask(port, limit_s=0.1)
        await ended.wait()
    with pytest.raises(FetchError) as refused:
        await ask(unused_tcp_port)
    assert refused.value.errno is not None


def test_a_server_that_closes_at_once_gives_no_answer() -> None:
    """As Docker's proxy, while nothing listens in the container. With uvloop the end may come before the connection."""

    def accept_and_close(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()

    async def fetch_often(port: int) -> None:
        for _ in range(100):
            with pytest.raises(FetchError):
                await ask(port)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept_and_close, args=(listener,))
        accepting.start()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(fetch_often(listener.getsockname()[1]))
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
            accepting.join(10)
