"""Connections to servers that send heads or bodies without an end, or in parts."""

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from http1.client import MOST_HEADS, BoundedConnector, read_at_most

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def ask(heads: int, requests: int = 1) -> list[str]:
    """The answers of a server that sends so many interim heads before each."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(INTERIM * heads + FINAL)
        writer.transport.abort()  # Python 3.11.2 leaves it open

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(10), server, aiohttp.ClientSession(connector=BoundedConnector()) as session:
        answers = []
        for _ in range(requests):
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                answers.append(await answer.text())
        return answers


async def test_a_few_interim_heads_are_read_past_at_each_request() -> None:
    assert await ask(MOST_HEADS - 1, requests=3) == ["ok"] * 3


@pytest.mark.parametrize("heads", [MOST_HEADS, 100_000])
async def test_too_many_heads_end_the_connection(heads: int) -> None:
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await ask(heads)


@pytest.mark.parametrize(("parts", "read"), [(3, b"part" * 3), (25, b"part" * 25), (None, b"part" * 25)])
async def test_a_body_in_parts_is_read_whole_and_an_endless_one_to_its_bound(parts: int | None, read: bytes) -> None:
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    limit, client = asyncio.timeout(20), aiohttp.ClientSession(connector=BoundedConnector())
    async with limit, server, client as session:
        async with session.get(url) as answer:
            assert await read_at_most(answer, 100) == read
        await ended.wait()
