"""Two connections joined: what passes, what is held back, and which server gets the request."""

import asyncio
from collections.abc import Callable

from http1.protocol.client import ClientConnection
from http1.protocol.connecting import ConnectError
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead, ResponseHead
from http1.protocol.server_connection import ServerConnection, Service
from http1.relay import CONNECTING, DONE, SENT, Relay
from support.http1.transport import MemoryTransport

POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Plain(Relay):
    """Sends each request to the server that the test made last."""

    ended = ""

    def connected(self, server: ClientConnection) -> None:
        self.send(server, b"POST /x HTTP/1.1\r\nhost: b\r\ncontent-length: 2\r\n\r\n", [b"ab"])

    def answer_lines(self, _: ResponseHead) -> bytes:
        return b"x: y\r\n"

    def not_connected(self, error: ConnectError) -> None:
        raise error

    def unanswered(self, why: str) -> None:
        self.over(DONE)
        self.client.answer(502, (), why.encode())

    def silent(self) -> None:
        self.unanswered("silent")


class World:
    def __init__(self, observe: Callable[[bytes], bytes] | None = None) -> None:
        self.observe = observe
        admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        service = Service(self.handle, lambda _: b"{}", admission)
        self.connection = ServerConnection(service, opened=lambda _: None, closed=lambda _: None)
        self.client = MemoryTransport(self.connection)
        self.client.receive(POST)

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        self.relay = Plain(head, connection, asyncio.get_running_loop())
        self.relay.observe = self.observe
        self.server = self.connect()
        return self.relay

    def connect(self) -> MemoryTransport:
        made = ClientConnection(at_rest=lambda _: None, closed=lambda _: None)
        transport = MemoryTransport(made)
        self.relay.connected(made)
        return transport


async def test_an_observer_gets_each_piece_and_may_change_it() -> None:
    pieces: list[bytes] = []

    def observe(piece: bytes) -> bytes:
        pieces.append(piece)
        return piece.upper() if piece == b"two" else piece

    world = World(observe)
    for data in (CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"):
        world.server.receive(data)
    assert pieces == [b"one", b"two"]
    assert world.client.written.endswith(b"3\r\none\r\n3\r\nTWO\r\n0\r\n\r\n")
    assert world.relay.state is DONE
    assert not world.client.closing


async def test_another_server_gets_the_request_where_the_first_one_is_left() -> None:
    world = World()
    first = world.server
    assert world.relay.state is SENT
    world.relay.leave_server()
    assert (world.relay.state, first.closing) == (CONNECTING, True)
    second = world.connect()
    assert second.written.endswith(b"\r\n\r\nab")
    second.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert world.client.written.endswith(b"ok")
    assert world.relay.state is DONE


async def test_a_client_that_takes_nothing_holds_the_server_back() -> None:
    world = World()
    world.server.receive(CHUNKED)
    world.client.block()
    assert not world.server.reading
    world.client.unblock()
    assert world.server.reading
    world.client.lose()
    assert world.server.closing
