"""A client that takes its answer slowly makes progress, and one that takes nothing does not. On real sockets."""

import asyncio
import socket
import sys
import time

import pytest

from http1.protocol import server
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from http1.protocol.states import Progress

STALL_S, SLOW_S, LIMIT_S = 0.6, 2.0, 10.0
# Longer ones go by `writelines`, with which asyncio's own loop of Python 3.12 and 3.13.0 holds nothing back.
PIECE = b"x" * 4096
MOST_PIECES = 1000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say what was taken")


class Endless:
    """An answer without an end, as fast as it is taken."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.ready = True
        self.cut_at = asyncio.get_running_loop().create_future()

    def body(self, _data: bytes) -> None: ...

    def end(self) -> None:
        self.connection.start(200, [], length=None)
        self.writable(ready=True)

    def writable(self, *, ready: bool) -> None:
        self.ready = ready
        for _ in range(MOST_PIECES):
            if not self.ready:
                return
            self.connection.send(PIECE)

    def gone(self) -> None:
        self.cut_at.set_result(time.monotonic())


@pytest.mark.parametrize("closing", [False, True], ids=["under way", "its rest"])
async def test_g18_only_a_client_without_progress_is_cut(monkeypatch: pytest.MonkeyPatch, *, closing: bool) -> None:
    """The kernel has room for 100 KB before it takes more of ours, which a slow client needs longer for."""
    monkeypatch.setattr(server, "_SWEEP_S", 0.05)
    answers: list[Endless] = []

    def handle(_: RequestHead, connection: ServerConnection) -> Endless:
        connection.admit()
        answers.append(Endless(connection))
        return answers[0]

    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    served = server.Server(Service(handle, lambda _: b"{}", admission, Progress(write_s=STALL_S)))
    await served.listen("127.0.0.1", 0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(client, ("127.0.0.1", served.port))
        await loop.sock_sendall(client, b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1")
        began = loop.time()
        while not answers or answers[0].ready:
            assert loop.time() - began < LIMIT_S
            await asyncio.sleep(0.01)
        (connection,) = served.connections()
        if closing:
            connection.close()
        began = loop.time()
        while loop.time() - began < SLOW_S:
            await loop.sock_recv(client, 1024)
            await asyncio.sleep(0.05)
            assert served.connections() == [connection], "it is slow, and takes all the same"
        stopped = loop.time()
        while served.connections():
            assert loop.time() - stopped < LIMIT_S, "it takes nothing"
            await asyncio.sleep(0.01)
        assert loop.time() - stopped > STALL_S / 2
    finally:
        client.close()
        await served.close(0.0)
