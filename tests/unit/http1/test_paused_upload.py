"""A client that leaves while its upload is paused: the kernel says so, though nothing is read. On real sockets."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from http1.protocol.client import Pool
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.heads import RequestHead, ResponseHead
from http1.protocol.server import Server
from http1.protocol.server_connection import ServerConnection, Service

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n"
LIMIT_S = 2.0  # 0.1 s, on a loaded machine
MOST = 1000

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not say")


class Upload:
    """A request of which nothing is read."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.gone_at = asyncio.get_running_loop().create_future()
        connection.pause_reading()

    def body(self, _data: bytes) -> None: ...

    def end(self) -> None: ...

    def writable(self, *, ready: bool) -> None: ...

    def gone(self) -> None:
        self.gone_at.set_result(time.monotonic())


class Site:
    """A server that reads no body."""

    def __init__(self) -> None:
        self.uploads: asyncio.Queue[Upload] = asyncio.Queue()
        admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        self.server = Server(Service(self.handle, lambda _: b"{}", admission))

    def handle(self, _: RequestHead, connection: ServerConnection) -> Upload:
        connection.admit()
        upload = Upload(connection)
        self.uploads.put_nowait(upload)
        return upload


class Nothing:
    """Receives no response."""

    failed = ""

    def response_head(self, head: ResponseHead) -> None: ...

    def response_body(self, data: bytes, _chunks: bytes = b"") -> None: ...

    def response_end(self) -> None: ...

    def response_failed(self, why: str) -> None:
        self.failed = why

    def request_writable(self, *, ready: bool) -> None: ...


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    await made.server.listen("127.0.0.1", 0)
    yield made
    await made.server.close(0.0)


@pytest.mark.parametrize("how", ["closed", "half closed", "reset"])
async def test_g11_a_client_that_leaves_in_a_paused_upload_is_noticed(site: Site, how: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(HEAD + b"x" * 1000)
    upload = await asyncio.wait_for(site.uploads.get(), LIMIT_S)
    await asyncio.sleep(0.12)
    assert not upload.gone_at.done(), "a client that waits is not gone"
    left = time.monotonic()
    if how == "closed":
        writer.close()
    elif how == "half closed":
        writer.write_eof()
    else:
        writer.transport.abort()
    assert await asyncio.wait_for(upload.gone_at, LIMIT_S) - left < LIMIT_S
    writer.close()
    assert reader is not None


async def test_a_paused_upload_that_goes_on_is_looked_at_no_more(site: Site) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    writer.write(HEAD)
    upload = await asyncio.wait_for(site.uploads.get(), LIMIT_S)
    assert upload.connection._look is not None
    upload.connection.resume_reading()
    assert upload.connection._look is None
    upload.connection.pause_reading()
    upload.connection.abort()
    assert upload.connection._look is None
    writer.close()


async def test_g11_the_next_hop_sees_the_end_of_a_connection_with_bytes_unsent(site: Site) -> None:
    """All buffers on the way are full, so a close by itself would wait behind them."""
    pool = Pool()
    connection = await pool.connect(("127.0.0.1", site.server.port))
    connection.begin(HEAD, Nothing(), chunked=False)
    upload = await asyncio.wait_for(site.uploads.get(), LIMIT_S)
    for _ in range(MOST):
        if connection._write_paused:
            break
        connection.send(b"x" * 100_000)
        await asyncio.sleep(0)
    assert connection._write_paused
    await asyncio.sleep(0.12)
    assert not upload.gone_at.done()
    left = time.monotonic()
    connection.abort()
    assert await asyncio.wait_for(upload.gone_at, LIMIT_S) - left < LIMIT_S
    pool.close()
