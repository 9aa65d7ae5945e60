"""One relay of two connections: a client's request passes to a server, and the server's answer comes back.

Bytes pass as they come, with back-pressure both ways. A client that leaves ends its request at the server. A switch of
protocols makes a tunnel. Nothing here sets timers: the owner sweeps deadlines by `overdue`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final

from http1.protocol.client import ClientConnection
from http1.protocol.connecting import ConnectError
from http1.protocol.heads import SWITCHING, RequestHead, ResponseHead
from http1.protocol.server_connection import ServerConnection

_NOT_MODIFIED: Final = 304


class State(StrEnum):
    """How far a request is."""

    CONNECTING = "connecting"  # no byte went to a server
    SENT = "sent"  # some may have
    ANSWERING = "answering"  # the head of the answer has come
    TUNNEL = "tunnel"  # the protocol was switched: bytes both ways
    DONE = "done"  # answered, by the server or by the owner
    CUT = "cut"  # the client is gone, or the answer broke off


# Names of their own: through the class each costs more than all else that a transition does.
CONNECTING, SENT, ANSWERING, TUNNEL, DONE, CUT = State
EDGES: Final = {
    CONNECTING: {SENT, DONE, CUT},
    SENT: {CONNECTING, ANSWERING, TUNNEL, DONE, CUT},
    ANSWERING: {DONE, CUT},
    TUNNEL: {DONE, CUT},
    DONE: set[State](),
    CUT: set[State](),
}
OVER: Final = (DONE, CUT)


class Relay(ABC):
    """One request and its answer. It is the handler of the client's request and the receiver of the server's answer.

    A subclass connects (`connect`, or `send` with a kept connection), gives the lines of the answer's head
    (`answer_lines`), and answers by itself where the server does not (`not_connected`, `unanswered`, `silent`).

    Attributes:
        limits_s: seconds without progress after which `overdue` calls `silent`, by state; a state may have no limit.
        server: None before it is open, and after the answer.
        complete: all of the request has come.
        ready: the client takes more of the answer.
        held: the request's body, until a server takes it.
        moved: loop time of the last progress.
        observe: called with each part of the answer, returns the bytes for the client; None: the same.
    """

    __slots__ = (
        *("_answer", "_connecting", "_loop", "client", "complete", "head", "held", "moved", "observe", "ready"),
        *("server", "state"),
    )
    limits_s: ClassVar[Mapping[State, float]] = {}

    def __init__(self, head: RequestHead, client: ServerConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.head = head
        self.client = client
        self._loop = loop
        self.server: ClientConnection | None = None
        self.state = CONNECTING
        body = None if head.body is None else head.take_body()
        first = None if head.first is None else head.take_first()
        self.held: list[bytes | memoryview] = [body] if body else [first] if first is not None else []
        self.complete = body is not None or head.length == 0
        self.ready = True
        self.moved = loop.time()
        self.observe: Callable[[bytes], bytes] | None = None
        self._answer: ResponseHead | None = None  # to go with the first piece of its body
        self._connecting: asyncio.Task[None] | None = None

    # The request

    def connect(self, opening: Callable[[], Awaitable[ClientConnection]]) -> None:
        """Opens a connection, then calls `connected` with it, or `not_connected`."""
        self._connecting = self._loop.create_task(self._connect(opening), name="relay-connection")

    async def _connect(self, opening: Callable[[], Awaitable[ClientConnection]]) -> None:
        try:
            server = await opening()
        except ConnectError as error:
            if self.state is CONNECTING:
                self.not_connected(error)
            return
        self._connecting = None
        if self.state is CONNECTING:
            self.connected(server)
        else:
            server.abort()

    def send(self, server: ClientConnection, head: bytes, body: Sequence[bytes | memoryview] | None = None) -> None:
        """Sends the request: its head, and its body as it comes.

        Args:
            server: the connection, which is idle.
            head: bytes of the head; it frames a body as the client's head does, or states the length of `body`.
            body: all of it, in place of what the client sends; it may be sent again to another server.
        """
        self._enter(SENT)
        self.server = server
        request = self.head
        if request.upgrade:
            server.begin(head, self, chunked=False, upgrade=True)
            server.end()
            return
        chunked, head_only = request.length is None, request.method == b"HEAD"
        if body is not None:
            server.ask(head, body, self, head_only)
            return
        held, self.held = self.held, []
        if self.complete and not chunked:
            server.ask(head, held, self, head_only)
            return
        server.begin(head, self, chunked=chunked, head_only=head_only, body=() if chunked else held)
        if request.expects_continue:
            self.client.send_continue()
        for piece in held if chunked else ():
            server.send(bytes(piece))
        if self.complete:
            server.end()
        elif server.takes_more:
            self.client.resume_reading()

    def leave_server(self) -> None:
        """Ends what is under way at the server; the request may go to another server unless an answer has started."""
        self._drop_server()
        self._answer = None
        if self.state is SENT:
            self._enter(CONNECTING)

    # The client's side

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client."""
        self.moved = self._loop.time()
        if self.server is not None:
            self.server.send(data)
        elif self.state is CONNECTING:
            self.held.append(data)
            self.client.pause_reading()

    def end(self) -> None:
        self.complete = True
        if self.server is not None:
            self.server.end()

    def gone(self) -> None:
        """The client is gone: its request at the server ends with it."""
        if self.state not in OVER:
            self.over(CUT)

    def writable(self, *, ready: bool) -> None:
        self.ready = ready
        if self.server is not None:
            (self.server.resume_reading if ready else self.server.pause_reading)()

    # The server's side

    def response_head(self, head: ResponseHead) -> None:
        """The server answers, or switches protocols."""
        if head.status == SWITCHING:
            self._enter(TUNNEL)
            upgrade = b"connection: upgrade\r\nupgrade: %b\r\n" % self.head.upgrade
            self.client.switch(self.answer_lines(head) + upgrade)
            return
        self._enter(ANSWERING)
        if head.alone:
            self._start(head, b"")
        else:
            self._answer = head

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the answer; in a tunnel, bytes of the server. `chunks`: see `ResponseSink`."""
        self.moved = self._loop.time()
        shown = data if self.observe is None else self.observe(data)
        if self._answer is not None:
            self._start(self._answer, shown)
        else:
            self.client.send(shown, chunks if shown is data else b"")

    def response_end(self) -> None:
        """The answer is complete."""
        if self._answer is not None:
            self._start(self._answer, b"")
        self.server = None
        self.over(DONE)
        self.client.finish()

    def response_failed(self, why: str) -> None:
        """The server's connection ended: a tunnel ends with it, and an answer is cut."""
        self.server = None
        if self.state is ANSWERING or self.state is TUNNEL:
            self.break_off()
        elif self.state not in OVER:
            self.unanswered(why)

    def request_writable(self, *, ready: bool) -> None:
        (self.client.resume_reading if ready else self.client.pause_reading)()

    def _start(self, head: ResponseHead, body: bytes) -> None:
        self._answer = None
        lines, length = self.answer_lines(head), head.length
        if self.head.method == b"HEAD" or head.status == _NOT_MODIFIED:  # they state a length and have none
            stated = head.named.get(b"content-length")
            lines += b"" if stated is None else b"content-length: %b\r\n" % stated
            length = None
        if length is None:  # a long stream keeps nothing of the request
            self.head.drop_fields()
        self.client.start(head.status, lines, length=length, body=body)
        if not self.ready and self.server is not None:  # the client had stopped before there was an answer to pause
            self.server.pause_reading()

    # The end

    def overdue(self, now: float) -> None:
        limit_s = self.limits_s.get(self.state)
        if limit_s is not None and now - self.moved > limit_s:
            self.silent()

    def break_off(self) -> None:
        """Ends the connection of a client that has a part of its answer, which shows it that the answer is broken."""
        self.over(CUT)
        self.client.close()

    def cut(self) -> None:
        """Ends the request and its client's connection at once."""
        if self.state not in OVER:
            self.over(CUT)
        self.client.abort()

    def over(self, state: State) -> None:
        """Ends the request, and what is under way at the server. A subclass frees what the request holds."""
        self._enter(state)
        self._drop_server()

    def _drop_server(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.abort()
        task, self._connecting = self._connecting, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def _enter(self, state: State) -> None:
        if state not in EDGES[self.state]:
            raise AssertionError(f"no edge from {self.state} to {state}")
        self.state = state
        self.moved = self._loop.time()

    # What a subclass decides

    @abstractmethod
    def connected(self, server: ClientConnection) -> None:
        """A connection is open: sends the request on it."""

    @abstractmethod
    def answer_lines(self, head: ResponseHead) -> bytes:
        """The lines of the answer's head for the client, without those that frame the body or switch protocols."""

    @abstractmethod
    def not_connected(self, error: ConnectError) -> None:
        """No connection could be made: no byte of the request has left."""

    @abstractmethod
    def unanswered(self, why: str) -> None:
        """The server's connection ended before an answer began. The server may have received the request."""

    @abstractmethod
    def silent(self) -> None:
        """A limit of `limits_s` is exceeded."""
