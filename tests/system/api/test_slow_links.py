"""A client behind a slow link: it is served for as long as it goes on reading, and ended when it stops."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from controller.api import streams
from controller.api.live_socket import handler
from controller.store.core.database import Database
from support.database.ledger import add_deployment
from support.leading.served_api import ServedApi

LIMIT_S = 60.0
SLOW_S = 1.0
SIZE = 16 * 2**20  # more than the kernels' buffers hold
STEP = 2**18
WAYS = ("watch", "live")
_HANDSHAKE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
_TEXT_FRAME, _MASKED = 0x81, 0x80


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SLOW_CLIENT_S", SLOW_S)
    monkeypatch.setattr(handler, "PING_S", SLOW_S)


@asynccontextmanager
async def asked(api: ServedApi, way: str) -> AsyncIterator[socket.socket]:
    """A client that has asked for the objects, and has read nothing. Its kernel takes little in advance."""
    loop = asyncio.get_running_loop()
    host, port = api.url.removeprefix("http://").split(":")
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        link.setblocking(False)
        await loop.sock_connect(link, (host, int(port)))
        head = f"GET /api/v1/{way} HTTP/1.1\r\nHost: x\r\nAuthorization: {api.header()['Authorization']}\r\n"
        if way == "live":
            head += _HANDSHAKE.format(key="AAAAAAAAAAAAAAAAAAAAAA==")
        request = (head + "\r\n").encode()
        if way == "live":
            message = orjson.dumps({"op": "open", "id": 1, "topic": "objects"})
            request += bytes((_TEXT_FRAME, _MASKED | len(message))) + bytes(4) + message  # masked by zeros
        await loop.sock_sendall(link, request)
        yield link


async def fill(db: Database) -> None:
    uid = await add_deployment(db, "d")
    async with db.transaction() as connection:
        query = "update deployments set message = repeat('x', $1) where uid = $2::text::uuid"
        await connection.execute(query, SIZE, uid)


@pytest.mark.parametrize("way", WAYS)
async def test_a_slow_and_steady_reader_is_served(api: ServedApi, db: Database, way: str) -> None:
    await fill(db)
    loop = asyncio.get_running_loop()
    async with asked(api, way) as link, asyncio.timeout(LIMIT_S):
        began, received = loop.time(), 0
        while received < SIZE:
            part = await loop.sock_recv(link, STEP)
            assert part, f"cut after {received} bytes and {loop.time() - began} s"
            received += len(part)
            await asyncio.sleep(SLOW_S / 25 * len(part) / STEP)
        assert loop.time() - began > 2 * SLOW_S


@pytest.mark.parametrize("way", WAYS)
async def test_a_reader_that_stops_in_the_middle_is_ended(api: ServedApi, db: Database, way: str) -> None:
    await fill(db)
    loop = asyncio.get_running_loop()
    async with asked(api, way) as link, asyncio.timeout(LIMIT_S):
        assert await loop.sock_recv(link, STEP)
        await asyncio.sleep(3 * SLOW_S)
        received = 0
        with contextlib.suppress(ConnectionError):
            while part := await loop.sock_recv(link, STEP):
                received += len(part)
        assert received < SIZE


async def test_a_quiet_client_that_answers_no_ping_is_ended(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "PING_S", 0.05)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LIMIT_S), asked(api, "live") as link:
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(link, STEP):  # its kernel takes all, which does not count
                pass
