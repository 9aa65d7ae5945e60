"""A connection that is gone leaves no cycle of references: its memory is free at once, not at the next collection."""

import gc

from http1.protocol.client import ClientConnection
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import DROPPED, Handler
from http1.protocol.heads import RequestHead, ResponseHead
from http1.protocol.reader import RequestReader, ResponseReader
from http1.protocol.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport

KINDS = (ClientConnection, ResponseReader, ServerConnection, RequestReader)


class Receiver:
    def response_head(self, head: ResponseHead) -> None:
        pass

    def response_body(self, data: bytes, _chunks: bytes = b"") -> None:
        pass

    def response_end(self) -> None:
        pass

    def response_failed(self, why: str) -> None:
        pass

    def request_writable(self, *, ready: bool) -> None:
        pass


def handle(_head: RequestHead, connection: ServerConnection) -> Handler:
    connection.answer(200, (), b"ok")
    return DROPPED


def serve_one() -> None:
    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    served = ServerConnection(Service(handle, lambda _: b"{}", admission), opened=lambda _: None, closed=lambda _: None)
    transport = MemoryTransport(served)
    transport.receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 200")
    transport.lose()


def ask_one() -> None:
    asking = ClientConnection(at_rest=lambda _: None, closed=lambda _: None)
    transport = MemoryTransport(asking)
    asking.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"", Receiver())
    transport.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")  # and is lost before the body
    transport.lose()


async def test_a_lost_connection_is_freed_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, KINDS) for one in gc.get_objects())
        serve_one()
        ask_one()
        assert sum(isinstance(one, KINDS) for one in gc.get_objects()) == before
    finally:
        gc.enable()
