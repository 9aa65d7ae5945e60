"""One connection of a server in memory, with handlers that do what a test says."""

from collections.abc import Callable

import h11

from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport

POST = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"
GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"


class Request:
    """Handles one request as the test says."""

    def __init__(self, head: RequestHead, connection: ServerConnection) -> None:
        self.head = head
        self.connection = connection
        self.received = b""
        self.ended = 0
        self.lost = 0
        self.ready = True

    def body(self, data: bytes) -> None:
        assert not self.lost
        self.received += data

    def end(self) -> None:
        assert not self.lost
        self.ended += 1

    def gone(self) -> None:
        self.lost += 1

    def writable(self, *, ready: bool) -> None:
        assert not self.lost
        self.ready = ready


class World:
    """One connection of a server."""

    def __init__(self, *, at_once: bool = False, known: bool = True) -> None:
        self.requests: list[Request] = []
        self.known = known
        self.at_once = at_once
        self.open = 0
        self.admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        self.service = Service(self.handle, lambda error: b'{"code":"%b"}' % error.code.encode(), self.admission)
        self.connection = ServerConnection(self.service, opened=self.count(1), closed=self.count(-1))
        self.transport = MemoryTransport(self.connection)
        self.blocked = False

    def count(self, by: int) -> Callable[[ServerConnection], None]:
        def note(_: ServerConnection) -> None:
            self.open += by

        return note

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        request = Request(head, connection)
        self.requests.append(request)
        if self.known:
            connection.admit()
        if self.at_once:
            connection.answer(200, [], b"ok")
        return request

    @property
    def request(self) -> Request:
        """The newest one."""
        return self.requests[-1]

    def answers(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Status and body of each answer, as h11 reads them, and whether the server says that it closes."""
        client, found, body, status = h11.Connection(h11.CLIENT), [], b"", 0
        client.receive_data(self.transport.written)
        for _ in self.requests:
            client.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
            client.send(h11.EndOfMessage())
            while (event := client.next_event()) is not h11.NEED_DATA:
                match event:
                    case h11.Response():
                        status = event.status_code
                    case h11.Data():
                        body += bytes(event.data)
                    case h11.EndOfMessage():
                        found.append((status, body))
                        body = b""
                        break
                    case h11.ConnectionClosed():
                        break
            if client.our_state is not h11.DONE or client.their_state is not h11.DONE:
                return found, client.their_state is h11.MUST_CLOSE
            client.start_next_cycle()
        return found, False
