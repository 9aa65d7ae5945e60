"""Connections that a pool makes."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from http1.protocol.client import Pool
from http1.protocol.connecting import ConnectError
from http1.protocol.heads import ResponseHead


def test_a_unix_socket_with_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """As with TCP: the kernel refuses such a connection at once, but the listener is there."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_connect_to(path, listener))


async def _connect_to(path: str, listener: socket.socket) -> None:
    with pytest.raises(ConnectError, match="in time"):
        await Pool(connect_s=0.2).connect(path)
    pool = Pool(connect_s=30.0)
    connecting = asyncio.create_task(pool.connect(path))
    await asyncio.sleep(0.1)
    assert not connecting.done()
    listener.accept()[0].close()
    await connecting
    assert pool.open == 1
    pool.close()
    await asyncio.sleep(0)


class Awaited:
    """Receives one response."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def response_head(self, head: ResponseHead) -> None: ...

    def response_body(self, data: bytes, _chunks: bytes = b"") -> None: ...

    def response_end(self) -> None:
        self.ended.set()

    def response_failed(self, why: str) -> None: ...

    def request_writable(self, *, ready: bool) -> None: ...


async def test_what_rests_at_other_addresses_ends_where_a_bound_is_met() -> None:
    """Requests to one host after another would else take the files of all that is under way."""

    answering = set[asyncio.Task[None] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", 0) for _ in range(4)]
    pool = Pool(most=3)
    for server in servers:
        address = server.sockets[0].getsockname()[:2]
        made = [await pool.connect(address) for _ in range(2)]
        for connection in made:
            awaited = Awaited()
            connection.ask(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", [b""], awaited)
            await awaited.ended.wait()
        assert pool.open <= 3
    assert pool.take(address) in made, "the newest are kept"
    pool.close()
    for server in servers:
        server.close()
    async with asyncio.timeout(5):
        await asyncio.gather(*(task for task in answering if task is not None))
