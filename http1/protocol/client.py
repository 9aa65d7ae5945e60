"""The client's side of one HTTP/1.1 connection, one request at a time, and the pool of connections at rest."""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol, cast

from http1.protocol.connecting import CONNECT_S, Address, ConnectError, opened
from http1.protocol.framing import MessageError
from http1.protocol.heads import COPIED_BYTES, LAST_CHUNK, SWITCHING, ResponseHead, chunk
from http1.protocol.peer_state import reset_at_close
from http1.protocol.reader import ResponseReader


class State(StrEnum):
    """Activity of a connection."""

    REST = "rest"  # open, nothing under way: it can take a request
    SENDING = "sending"  # a request is not complete, and no answer has started
    AWAITING = "awaiting"  # the request is complete, the response's head is not
    RECEIVING = "receiving"  # the response's head is complete; the request may still be sent
    TUNNEL = "tunnel"  # the protocol was switched: bytes both ways
    CLOSED = "closed"


EDGES: Final = {
    State.REST: {State.SENDING, State.AWAITING, State.CLOSED},
    State.SENDING: {State.AWAITING, State.RECEIVING, State.TUNNEL, State.CLOSED},
    State.AWAITING: {State.RECEIVING, State.TUNNEL, State.CLOSED},
    State.RECEIVING: {State.REST, State.CLOSED},
    State.TUNNEL: {State.CLOSED},
    State.CLOSED: set[State](),
}
# Names of their own: through the class each costs more than all else that a transition does.
REST, SENDING, AWAITING, RECEIVING, TUNNEL, CLOSED = State


_SENDS: Final = (SENDING, RECEIVING, TUNNEL)
_READS: Final = (RECEIVING, TUNNEL)


class Receiver(Protocol):
    """Gets the response to one request."""

    def response_head(self, head: ResponseHead) -> None:
        """The head is complete."""

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the body; in a tunnel, bytes of the server. `chunks`: see `ResponseSink`."""

    def response_end(self) -> None:
        """The response is complete; the connection may be at rest again."""

    def response_failed(self, why: str) -> None:
        """The connection ended, or the peer's bytes are no response; called at most once, and never after the end."""

    def request_writable(self, *, ready: bool) -> None:
        """Whether the server takes more of the request."""


class ClientConnection(asyncio.Protocol):
    """One connection to a server.

    Args:
        at_rest: called when it can be used again; not called for a connection that must close.
        closed: called once when it is closed.
        address: the server's.
    """

    __slots__ = (
        *("_at_rest", "_chunked", "_closed", "_complete", "_keep_alive", "_loop", "_read_paused", "_reader"),
        *("_receiver", "_state", "_transport", "_write_paused", "address", "rested_since"),
    )

    def __init__(
        self,
        *,
        at_rest: Callable[["ClientConnection"], None],
        closed: Callable[["ClientConnection"], None],
        address: Address = "",
    ) -> None:
        self._at_rest = at_rest
        self._closed = closed
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._state = REST
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._reader = ResponseReader(self)
        self._chunked = False
        self._keep_alive = True
        self._read_paused = False
        self._write_paused = False
        self._complete = True  # the request
        self.rested_since = self._loop.time()

    @property
    def state(self) -> State:
        return self._state

    @property
    def idle(self) -> bool:
        """Whether it can take a request: open, and at rest in every respect."""
        return (
            self._state is REST
            and not self._read_paused
            and not self._write_paused
            and self._transport is not None
            and not self._transport.is_closing()
        )

    @property
    def takes_more(self) -> bool:
        """Whether the server takes what is sent as it comes; else `request_writable` reports when it does."""
        return not self._write_paused

    # The request

    def begin(
        self,
        head: bytes,
        receiver: Receiver,
        *,
        chunked: bool,
        head_only: bool = False,
        upgrade: bool = False,
        continued: Callable[[], None] | None = None,
        body: Sequence[bytes | memoryview] = (),
    ) -> None:
        """Sends a request's head. The body follows by `send`, its end by `end`.

        Args:
            head: bytes of the head; those of a body whose length it states may follow at once.
            receiver: gets the response.
            chunked: whether the body is sent in chunks.
            head_only: whether the method is HEAD.
            upgrade: whether the head requests a switch of protocols.
            continued: called when the server requests the body, where the head expects that.
            body: its beginning, not for chunks.
        """
        self._ask(SENDING, receiver, head_only, upgrade, continued)
        self._chunked = chunked
        self._complete = False
        self._write_with(head, body)

    def ask(self, head: bytes, body: Sequence[bytes | memoryview], receiver: Receiver, head_only: bool = False) -> None:
        """Sends a complete request; as `begin`. The head states the length of the body."""
        self._ask(AWAITING, receiver, head_only)
        self._write_with(head, body)

    def _write_with(self, head: bytes, body: Sequence[bytes | memoryview]) -> None:
        transport = self._transport
        if transport is None:
            return
        if len(body) == 1 and len(body[0]) < COPIED_BYTES:
            transport.write(head + body[0])
        elif sum(map(len, body)) < COPIED_BYTES:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))

    def _ask(
        self,
        state: State,
        receiver: Receiver,
        head_only: bool,
        upgrade: bool = False,
        continued: Callable[[], None] | None = None,
    ) -> None:
        if self._read_paused or self._write_paused or self._transport is None:
            raise AssertionError(f"a request on a connection that is {self._state}")
        self._enter(state)
        self._receiver = receiver
        self._reader.expect(head_only, upgrade, continued)

    def send(self, data: bytes) -> None:
        if data and self._state in _SENDS and self._transport is not None:
            self._transport.write(chunk(data) if self._chunked else data)

    def end(self) -> None:
        if self._complete or self._state not in _SENDS:
            return
        self._complete = True
        if self._chunked and self._transport is not None:
            self._transport.write(LAST_CHUNK)
        if self._state is SENDING:
            self._enter(AWAITING)

    def abort(self) -> None:
        """Ends the connection and its request; the receiver is not called again.

        A server that does not read the rest of a request still notices the end.
        """
        self._receiver = None
        if self._transport is not None and (self._write_paused or not self._complete):
            reset_at_close(self._transport)
        self._drop()

    def pause_reading(self) -> None:
        if not self._read_paused and self._state in _READS and self._transport is not None:
            self._transport.pause_reading()
            self._read_paused = True

    def resume_reading(self) -> None:
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()

    # The reader's sink

    def response_head(self, head: ResponseHead) -> None:
        self._keep_alive = head.keep_alive
        switches = head.status == SWITCHING
        self._enter(TUNNEL if switches else RECEIVING)
        if switches:
            self._chunked = False
        if self._receiver is not None:
            self._receiver.response_head(head)

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        if self._receiver is not None:
            self._receiver.response_body(data, chunks)

    def response_end(self, *, clean: bool) -> None:
        """Rests, or closes where the request is incomplete or the server closes."""
        if self._state is not RECEIVING:  # a tunnel continues; an aborted request is over
            return
        receiver, self._receiver = self._receiver, None
        rests = clean and self._keep_alive and self._complete and not self._write_paused
        if rests:
            if self._read_paused:
                self.resume_reading()
            self._enter(REST)
            self.rested_since = self._loop.time()
        else:
            self._drop()
        if receiver is not None:
            receiver.response_end()
        if rests:
            self._at_rest(self)

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived. Bytes behind no request end the connection."""
        state = self._state
        if state is TUNNEL:
            self.response_body(data)
            return
        if state is REST or state is CLOSED:
            self._drop()
            return
        try:
            rest = self._reader.feed(data)
        except MessageError as error:
            self._fail(f"the server's answer is malformed: {error}")
            return
        if rest:  # only a switch of protocols leaves some
            self.response_body(rest)

    def eof_received(self) -> bool:
        """The server has closed: that ends an answer without a length, and breaks any other."""
        if self._state is RECEIVING and self._reader.end_of_stream():
            return False
        self._fail("the server closed the connection")
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._fail("the connection was lost")
        self._reader.close()
        self._closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._receiver is not None:
            self._receiver.request_writable(ready=False)

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._receiver is not None:
            self._receiver.request_writable(ready=True)

    def _fail(self, why: str) -> None:
        receiver, self._receiver = self._receiver, None
        self._drop()
        if receiver is not None:
            receiver.response_failed(why)

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._state is not CLOSED:
            self._enter(CLOSED)

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state


# Servers close kept connections by themselves: uvicorn after 5 s. A request that meets such a close fails.
IDLE_S: Final = 3.0
MAX_IDLE: Final = 64


class Pool:
    """Connections to servers. It bounds what is kept, not what is open: the caller bounds its requests.

    Args:
        idle_s: how long a connection is kept at rest, in seconds.
        max_idle: kept at rest per address.
        most: connections of all addresses; beyond it a connection at rest ends for each new one. None: no bound.
        connect_s: limit for connecting, in seconds.
        prepare: sets options of a connected socket.
    """

    def __init__(
        self,
        *,
        idle_s: float = IDLE_S,
        max_idle: int = MAX_IDLE,
        most: int | None = None,
        connect_s: float = CONNECT_S,
        prepare: Callable[[socket.socket], None] = lambda _socket: None,
    ) -> None:
        self._idle_s = idle_s
        self._max_idle = max_idle
        self._most = most
        self._connecting = 0
        self._connect_s = connect_s
        self._prepare = prepare
        self._loop = asyncio.get_running_loop()
        self._resting: dict[Address, deque[ClientConnection]] = {}
        self._open: set[ClientConnection] = set()
        # Made once: each connection would keep methods of its own.
        self._at_rest, self._closed = self._rest, self._open.discard

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def resting(self) -> list[ClientConnection]:
        """Connections at rest, of all addresses."""
        return [connection for resting in self._resting.values() for connection in resting]

    def take(self, address: Address) -> ClientConnection | None:
        """A kept connection that is at rest, the freshest first; None: connect."""
        resting = self._resting.get(address)
        oldest = self._loop.time() - self._idle_s
        while resting:
            connection = resting.pop()
            if connection.idle and connection.rested_since >= oldest:
                return connection
            connection.abort()
        return None

    async def connect(self, address: Address) -> ClientConnection:
        """A new connection.

        Raises:
            ConnectError: refused, unreachable, closed at once, or not within the limit.
        """

        def made() -> ClientConnection:
            return ClientConnection(at_rest=self._at_rest, closed=self._closed, address=address)

        self._make_way()
        self._connecting += 1
        try:
            transport, connection = await opened(address, made, self._connect_s)
        finally:
            self._connecting -= 1
        if not connection.idle:  # such as by Docker's proxy, while nothing listens in the container
            connection.abort()
            raise ConnectError("the server closed the connection at once", errno.ECONNRESET)
        self._open.add(connection)
        made_socket = transport.get_extra_info("socket")
        if made_socket is not None:
            self._prepare(made_socket)
        return connection

    def _make_way(self) -> None:
        """Ends connections at rest beyond the bound, so that those of all addresses leave files for requests."""
        if self._most is None:
            return
        while self._resting and len(self._open) + self._connecting >= self._most:
            address = next(iter(self._resting))
            resting = self._resting[address]
            if resting:
                rested = resting.popleft()
                self._open.discard(rested)
                rested.abort()
            if not resting:
                del self._resting[address]

    def sweep(self) -> None:
        """Closes what was kept too long; the owner calls it about once a second."""
        oldest = self._loop.time() - self._idle_s
        for address, resting in list(self._resting.items()):
            while resting and (resting[0].rested_since < oldest or not resting[0].idle):
                resting.popleft().abort()
            if not resting:
                del self._resting[address]

    def close(self) -> None:
        self._resting.clear()
        for connection in list(self._open):
            connection.abort()

    def _rest(self, connection: ClientConnection) -> None:
        resting = self._resting.get(connection.address)
        if resting is None:
            resting = self._resting[connection.address] = deque()
        if len(resting) >= self._max_idle:
            resting.popleft().abort()
        resting.append(connection)
