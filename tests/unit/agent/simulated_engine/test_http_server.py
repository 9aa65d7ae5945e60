"""The simulated engine's HTTP: bodies in pieces, requests one after the other, closes, and what is malformed."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agent.simulated_engine.exchange import Answer, Request
from agent.simulated_engine.http_server import HttpServer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(request: Request, answer: Answer) -> None:
    body = b"".join([piece async for piece in request.body.pieces()])
    answer.send(200, [("X-Path", request.path)], body)


@asynccontextmanager
async def served(
    handle: Callable[[Request, Answer], Awaitable[None]],
) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    server = HttpServer(handle)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    await server.start("127.0.0.1", port)
    writers = []

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    try:
        async with asyncio.timeout(10):
            yield connect
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


async def test_requests_on_one_connection_are_answered_in_their_order() -> None:
    async with served(echo) as connect:
        reader, writer = await connect()
        chunked = (
            b"POST /b?x=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        sized = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
        writer.write(sized + chunked + sized)
        answers = [await read_answer(reader) for _ in range(3)]
        assert [body for _, body in answers] == [b"hi", b"abcde", b"hi"]
        assert b"X-Path: /b\r\n" in answers[1][0]
        for byte in sized:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await read_answer(reader))[1] == b"hi"


async def test_a_body_is_asked_for_where_the_client_waits() -> None:
    async with served(echo) as connect:
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await read_answer(reader))[1] == b"hi"


async def test_a_body_that_was_not_read_is_dropped() -> None:
    async def refuse(_: Request, answer: Answer) -> None:
        answer.send(404, [], b"no")

    async with served(refuse) as connect:
        reader, writer = await connect()
        body = b"x" * 1_000_000
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            assert (await read_answer(reader))[1] == b"no"
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        assert (await read_answer(reader))[1] == b"no"
        assert await reader.read() == b"", "the body never came, so nothing else can"


@pytest.mark.parametrize("half", [False, True])
async def test_a_close_cancels_the_request(half: bool) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(_: Request, __: Answer) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with served(wait) as connect:
        _, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await began.wait()
        if half:
            writer.write_eof()
        else:
            writer.close()
        await cancelled.wait()


async def test_a_handlers_failure_is_a_500_and_not_the_servers(capsys: pytest.CaptureFixture[str]) -> None:
    async def fail(_: Request, __: Answer) -> None:
        raise RuntimeError("broken handler")

    async with served(fail) as connect:
        for _ in range(2):
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_answer(reader))[0].startswith(b"HTTP/1.1 500 ")
    assert "broken handler" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_what_is_malformed_ends_the_connection(sent: bytes) -> None:
    async with served(echo) as connect:
        reader, writer = await connect()
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_an_answer_without_a_length_is_chunked() -> None:
    async def stream(request: Request, answer: Answer) -> None:
        answer.begin(200, [])
        for piece in (b"one", b"", b"two"):
            await answer.write(piece)
        answer.end()
        assert request.keep_alive

    async with served(stream) as connect:
        reader, writer = await connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        writer.write(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"Connection: close\r\n\r\n")
