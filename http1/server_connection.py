"""The server's side of one HTTP/1.1 connection: one request at a time, back-pressure both ways, states as data.

Nothing here sets timers: the door ends what is late with a head, the server sweeps the rest by `overdue`.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, cast

import structlog

from http1 import connections
from http1.connections import Connection, Refusal
from http1.door import Door
from http1.head import CONTINUE, LAST_CHUNK, SWITCHING, RequestHead, chunk, has_body, response_bytes
from http1.reading import MessageError, RequestReader

TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_CLOSE: Final = (b"connection", b"close")
_COPIED_BYTES: Final = 8192  # a smaller chunk is copied beside its frame
_LAST_ANSWER_S: Final = 2.0
_MOST_DROPPED_BYTES: Final = 64 * 1024  # that arrived before the answer was complete

log = structlog.get_logger(__name__)


class State(StrEnum):
    """What a connection does."""

    IDLE = "idle"  # no byte of a request yet
    HEAD = "head"  # a part of a head
    RECEIVING = "receiving"  # the head is complete, the body is not
    ANSWERING = "answering"  # the request is complete, the response is not
    TUNNEL = "tunnel"  # the protocol was switched: bytes both ways
    LINGERING = "lingering"  # the response is complete, and the rest of the request is dropped until the client closes
    CLOSED = "closed"  # what was written may still go out


EDGES: Final = {
    State.IDLE: {State.HEAD, State.CLOSED},
    State.HEAD: {State.RECEIVING, State.CLOSED},
    State.RECEIVING: {State.ANSWERING, State.LINGERING, State.CLOSED},
    State.ANSWERING: {State.IDLE, State.TUNNEL, State.CLOSED},
    State.TUNNEL: {State.CLOSED},
    State.LINGERING: {State.CLOSED},
    State.CLOSED: set[State](),
}
_TO_RULES: Final = {
    State.IDLE: connections.State.IDLE,
    State.HEAD: connections.State.HEAD,
    State.RECEIVING: connections.State.BUSY,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Seconds after which a connection is cut.

    Attributes:
        body_s: without a byte of a body read, while it is read.
        write_s: without a byte taken, while an answer is written or its rest goes out.
        linger_s: for a client to close after an answer that came before its request was complete.
    """

    body_s: float = 60.0
    write_s: float = 60.0
    linger_s: float = 2.0


class Handler(Protocol):
    """Handles one request; the connection calls it."""

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client."""

    def end(self) -> None:
        """The body is complete; not called where the head says that there is none."""

    def gone(self) -> None:
        """The client is gone before its answer was complete, or the connection was cut; at most once, and the last."""

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer; true at first."""


class _Dropped:
    """Handles a request that was answered at once: what is left of it is dropped."""

    def body(self, data: bytes) -> None:
        pass

    def end(self) -> None:
        pass

    def gone(self) -> None:
        pass

    def writable(self, *, ready: bool) -> None:
        pass


DROPPED: Final = _Dropped()


@dataclass(frozen=True, slots=True)
class Service:
    """What the connections of one server share.

    Attributes:
        handle: called with each request's head and its connection; returns what handles the rest of the request, or
            `DROPPED` where it was answered within the call.
        refused: returns the body of the answer to a malformed message, as JSON.
        door: bounds the connections.
        progress: limits of time.
    """

    handle: Callable[[RequestHead, "ServerConnection"], Handler]
    refused: Callable[[MessageError], bytes]
    door: Door
    progress: Progress = Progress()


class ServerConnection(asyncio.Protocol):
    """One client's connection.

    Args:
        service: what handles its requests.
        opened: called with it when it is open and admitted.
        closed: called with it when it is closed.
    """

    __slots__ = (
        *(
            "_bodiless",
            "_chunked",
            "_chunks",
            "_closed",
            "_draining",
            "_dropped",
            "_handler",
            "_keep_alive",
            "_loop",
            "_method",
        ),
        *("_loop", "_method", "_opened", "_read_paused", "_reader", "_service", "_since", "_started"),
        *("_state", "_transport", "_used", "_write_paused", "record"),
    )

    def __init__(
        self,
        service: Service,
        *,
        opened: Callable[["ServerConnection"], None],
        closed: Callable[["ServerConnection"], None],
    ) -> None:
        self._service = service
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(self)
        self._state = State.IDLE
        self._since = self._loop.time()  # of the state, or of the last progress in it
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._method = b""
        self._keep_alive = False
        self._used = False  # whether anything was answered
        self._started = False
        self._chunked = False
        self._chunks = True
        self._bodiless = False
        self._draining = False
        self._write_paused = False
        self._read_paused = False
        self._dropped = 0
        self.record = Connection("", self._since)

    @property
    def state(self) -> State:
        """What it does now."""
        return self._state

    @property
    def started(self) -> bool:
        """Whether the current answer's head is sent."""
        return self._started

    @property
    def answering(self) -> bool:
        """Whether a request is under way."""
        return self._state in (State.RECEIVING, State.ANSWERING)

    @property
    def address(self) -> str:
        """The client's address, without the port; empty: a Unix socket."""
        return self.record.address

    def overdue(self, now: float) -> bool:
        """Whether a limit of time is exceeded at loop time `now`."""
        spent, progress = now - self._since, self._service.progress
        match self._state:
            case State.RECEIVING:
                return (spent > progress.body_s and not self._read_paused) or self._stalled(spent)
            case State.ANSWERING | State.TUNNEL:
                return self._stalled(spent)
            case State.LINGERING:
                return spent > progress.linger_s
            case State.CLOSED:
                return spent > progress.write_s
            case _:
                return False  # the door's

    def _stalled(self, spent: float) -> bool:
        return self._write_paused and spent > self._service.progress.write_s

    def admit(self, client: str = "", *, agent: bool = False) -> Refusal | None:
        """Notes that the current request carried a valid key or credential; returns why it is refused all the same."""
        incomplete = self._state is State.RECEIVING
        return self._service.door.admit_request(self.record, body=incomplete, client=client, agent=agent)

    # The answer

    def send_continue(self) -> None:
        """Asks a client that expects it for the body."""
        if self._state is State.RECEIVING and not self._started:
            self._write(CONTINUE)

    def start(self, status: int, fields: Iterable[tuple[bytes, bytes]], *, length: int | None) -> None:
        """Sends the answer's head.

        Args:
            status: 200 to 599.
            fields: without those that frame the body.
            length: of the body; None: it is chunked, or ends with the connection where the client knows no chunks.
        """
        if self._started or self._state not in (State.RECEIVING, State.ANSWERING):
            return
        self._started = self._used = True
        self._bodiless = not has_body(status, self._method)
        framed = list(fields)
        if length is not None:
            if status not in (204, 304) or length:
                framed.append((b"content-length", b"%d" % length))
        elif self._chunks and not self._bodiless:
            framed.append((b"transfer-encoding", b"chunked"))
            self._chunked = True
        # A stranger's connection ends with its answer, so that none can send requests in a row.
        stranger = self.record.counted and not self.record.known
        if stranger or self._draining or self._reader.pipelined or self._state is State.RECEIVING:
            self._keep_alive = False
        if not self._keep_alive:
            framed.append(_CLOSE)
        self._write(response_bytes(status, framed))

    def send(self, data: bytes) -> None:
        """Sends a part of the answer's body; in a tunnel, bytes to the client."""
        if not data or self._transport is None or self._bodiless or not self._started:
            return
        if not self._chunked:
            self._transport.write(data)
        elif len(data) < _COPIED_BYTES:
            self._transport.write(chunk(data))
        else:
            self._transport.writelines((b"%x\r\n" % len(data), data, b"\r\n"))

    def finish(self) -> None:
        """The answer is complete."""
        if self._state is State.CLOSED:
            return
        self._handler = None
        if self._chunked:
            self._chunked = False
            self._write(LAST_CHUNK)
        self._started = False
        if self._state is State.RECEIVING:
            self._linger()
        elif self._keep_alive and self._state is State.ANSWERING and not self._draining:
            self._next()
        else:
            self.close()

    def answer(self, status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer."""
        self.start(status, fields, length=len(body))
        self.send(body)
        self.finish()

    def switch(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Answers a request to switch protocols: from now on bytes pass both ways as they are."""
        if self._started or self._state is not State.ANSWERING:
            return
        if self._reader.pipelined:  # a part of what the client sent is lost
            self.abort()
            return
        self._started = self._used = True
        self._bodiless = False
        self._enter(State.TUNNEL)
        self._write(response_bytes(SWITCHING, fields))
        self._pass_rest()

    def abort(self) -> None:
        """Ends the connection at once; what was written and not yet sent is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def close(self) -> None:
        """Ends the connection after what was written. In mid-answer the client sees that the answer is broken."""
        if self._transport is not None:
            self._transport.close()
        self._end()

    def drain(self) -> None:
        """Closes the connection once it is at rest."""
        self._draining = True
        if self._state is State.IDLE:
            self.close()

    def pause_reading(self) -> None:
        """Reads no more of the body for now. The end of the connection is not seen meanwhile."""
        if not self._read_paused and self._state in (State.RECEIVING, State.TUNNEL) and self._transport is not None:
            self._transport.pause_reading()
            self._read_paused = True

    def resume_reading(self) -> None:
        """Goes on reading the body."""
        if self._read_paused and self._transport is not None:
            self._transport.resume_reading()
            self._read_paused = False
            self._since = self._loop.time()

    # The reader's sink

    def request_head(self, head: RequestHead) -> None:
        """Hands the request over."""
        if self._state is State.IDLE:  # it came behind another one that was answered at once
            self._enter(State.HEAD)
        elif self._state is not State.HEAD:
            return
        self._enter(State.RECEIVING)
        self._method = head.method
        self._keep_alive = head.keep_alive
        self._chunks = head.chunks
        self._started = self._chunked = False
        if not head.has_body:
            self._enter(State.ANSWERING)
        handler = self._service.handle(head, self)
        if self.answering:  # else it was answered within the call
            self._handler = handler

    def request_body(self, data: bytes) -> None:
        """Hands a part of the body on."""
        self._since = self._loop.time()
        if self._handler is not None and self._state is State.RECEIVING:
            self._handler.body(data)

    def request_end(self) -> None:
        """Tells the handler; it may have answered before."""
        if self._state is not State.RECEIVING:
            return
        self.resume_reading()  # only so is the end of the connection seen
        self._enter(State.ANSWERING)
        self._service.door.body_complete(self.record)
        if self._handler is not None:
            self._handler.end()

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.record.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._service.door.admit(self):
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived."""
        match self._state:
            case State.RECEIVING:
                pass
            case State.IDLE:
                self._enter(State.HEAD)
            case State.HEAD:
                pass
            case State.TUNNEL:
                self._since = self._loop.time()
                if self._handler is not None:
                    self._handler.body(data)
                return
            case State.ANSWERING:
                self._drop_pipelined(len(data))
                return
            case _:
                return
        try:
            self._reader.feed(data)
            if self._reader.rest and self.state is State.TUNNEL:
                self._pass_rest()
        except MessageError as error:
            self._refuse(error)
        except Exception:  # a defect of ours ends this request alone
            log.exception("request failed")
            self._refuse(MessageError(500, "internal", "internal error; see the server's log"))

    def eof_received(self) -> bool:
        """A client that closes its half of the connection has gone: nothing tells it from one that is dead."""
        self._end()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self._end()
        self._service.door.lost(self.record)
        self._closed(self)

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        self._write_paused = True
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.writable(ready=False)

    def resume_writing(self) -> None:
        """The client takes more."""
        self._write_paused = False
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.writable(ready=True)

    # The door

    def shut(self, *, late_head: bool) -> None:
        """Ends the connection for the door. A client whose first head is late is told so."""
        transport = self._transport
        if transport is not None and late_head and self._state is State.HEAD and not self._used:
            transport.write(TIMED_OUT)
            transport.close()
            self._loop.call_later(_LAST_ANSWER_S, transport.abort)  # the other side may read nothing
            self._end()
        else:
            self.abort()

    def _pass_rest(self) -> None:
        """What arrived with the request to switch protocols is the tunnel's first."""
        rest, self._reader.rest = self._reader.rest, b""
        if rest and self._handler is not None:
            self._handler.body(rest)

    def _drop_pipelined(self, size: int) -> None:
        """A request that came before the last one's answer is dropped, and the connection ends after that answer."""
        self._reader.pipelined = True
        self._keep_alive = False
        self._dropped += size
        if self._dropped > _MOST_DROPPED_BYTES:
            self.abort()

    def _refuse(self, error: MessageError) -> None:
        """Answers a malformed message and closes. An answer to a complete request goes on to its end."""
        if self._state is State.ANSWERING and error.status < 500:  # noqa: PLR2004 - what was dropped is malformed
            self._reader.pipelined = True
            self._keep_alive = False
            return
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.gone()
        if self._state in (State.CLOSED, State.LINGERING) or self._started:
            self.close()
            return
        if self._state is State.HEAD:
            self._enter(State.RECEIVING)
        self._keep_alive = False
        self.answer(error.status, ((b"content-type", b"application/json"),), self._service.refused(error))

    def _next(self) -> None:
        if self._reader.pipelined:
            self.close()
            return
        self._reader.busy = False
        self._enter(State.IDLE)

    def _linger(self) -> None:
        """Reads on, so that a reset does not take the answer from a client that is still sending."""
        self._enter(State.LINGERING)
        if self._transport is not None:
            self._transport.write_eof()
            self.resume_reading()

    def _end(self) -> None:
        if self._state is State.CLOSED:
            return
        self._enter(State.CLOSED)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.gone()

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
        self._since = self._loop.time()
        rules = _TO_RULES.get(state)
        if rules is not None and rules is not self.record.state:  # a new connection has its time for a head already
            self._service.door.enter(self.record, rules)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
