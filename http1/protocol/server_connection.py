"""The server's side of one HTTP/1.1 connection: one request at a time, read and handed over; malformed ones refused.

Nothing here sets timers: the admission ends late heads, the server sweeps the rest by `overdue`.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, cast

import structlog

from http1.protocol import connection_rules as connections
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import KEY, Connection, Refusal, Standing
from http1.protocol.framing import MessageError
from http1.protocol.handler import Handler
from http1.protocol.heads import (
    CONTINUE,
    COPIED_BYTES,
    LAST_CHUNK,
    NO_BODY,
    STATUS_LINES,
    SWITCHING,
    RequestHead,
    chunk,
    lines_of,
    response_bytes,
    status_line,
)
from http1.protocol.peer_state import LOOK_S, is_gone, untaken_bytes
from http1.protocol.reader import RequestReader
from http1.protocol.states import (
    ANSWERING,
    CLOSED,
    EDGES,
    HEAD,
    IDLE,
    LINGERING,
    RECEIVING,
    TUNNEL,
    Progress,
    State,
    late,
)

TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LAST_ANSWER_S: Final = 2.0
_PROGRESS_BYTES: Final = 4096  # a client that takes this much is slow; one that takes less stalls
_MOST_DROPPED_BYTES: Final = 64 * 1024  # that arrived before the answer was complete
_BEFORE_A_REQUEST: Final = (IDLE, HEAD)
_WITHOUT_REQUEST: Final = (connections.HEAD, connections.IDLE)
_SERVED: Final = (None, None)  # not refused, and no connection yields
_CLOSE: Final = b"connection: close\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_UNDER_WAY: Final = (RECEIVING, ANSWERING)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that the connections of one server share.

    Attributes:
        handle: called with each request's head and its connection; returns the handler of the request's rest, or
            `DROPPED` where it was answered within the call.
        refused: returns the body of the answer to a malformed message, as JSON.
    """

    handle: Callable[[RequestHead, "ServerConnection"], Handler]
    refused: Callable[[MessageError], bytes]
    admission: ConnectionAdmission
    progress: Progress = field(default_factory=Progress)


class ServerConnection(asyncio.Protocol):
    """One client's connection. `record`: the admission's entry, where it has one already."""

    __slots__ = (
        *("_added", "_admission", "_bodiless", "_chunked", "_chunks", "_closed", "_connections", "_draining"),
        *("_dropped", "_handler", "_has_body", "_keep_alive", "_look", "_loop", "_method", "_opened"),
        *("_read_paused", "_reader", "_service", "_since", "_started", "_state", "_transport", "_untaken"),
        *("_used", "_write_paused", "record"),
    )

    def __init__(
        self,
        service: Service,
        *,
        opened: Callable[["ServerConnection"], None],
        closed: Callable[["ServerConnection"], None],
        record: Connection | None = None,
    ) -> None:
        self._service = service
        self._admission = service.admission
        self._connections = service.admission.connections
        self._opened = opened
        self._closed = closed
        self._reader = RequestReader(self)
        self._loop = asyncio.get_running_loop()
        self._state = IDLE
        self._since = self._loop.time()  # the time of the state's start, or of the last progress in it
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._added = b""  # lines of the current answer's head
        self._method = b""
        self._has_body = False  # the request that is under way
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
        self._untaken = 0  # bytes that a client had yet to take at its last progress
        self._look: asyncio.TimerHandle | None = None  # at the other side of a paused upload
        self.record = record or Connection("", self._since)

    @property
    def state(self) -> State:
        return self._state

    @property
    def started(self) -> bool:
        return self._started

    @property
    def answering(self) -> bool:
        return self._state in _UNDER_WAY

    @property
    def complete(self) -> bool:
        """Whether the complete request has come; its body may be about to be handed over."""
        return self._state is ANSWERING

    def add_lines(self, lines: bytes) -> None:
        """Adds lines to the head of the current request's answer, whatever answers it."""
        self._added += lines

    def send_continue(self) -> None:
        if self._state is RECEIVING and not self._started:
            self._write(CONTINUE)

    def start(
        self, status: int, fields: Iterable[tuple[bytes, bytes]] | bytes, *, length: int | None, body: bytes = b""
    ) -> None:
        """Sends the answer's head.

        `fields`: without those that frame the body; or their lines.
        `length`: the body's; None: it is chunked, or ends with the connection where the client knows no chunks.
        `body`: its start, which goes with the head.
        """
        transport = self._transport
        if transport is None or self._started or self._state not in _UNDER_WAY:
            return
        self._started = self._used = True
        self._bodiless = status in NO_BODY or self._method == b"HEAD"
        framing = b""
        if length is not None:
            if status not in (204, 304) or length:
                framing = b"content-length: %d\r\n" % length
        elif self._chunks and not self._bodiless:
            framing = _CHUNKED
            self._chunked = True
        # A stranger's connection ends with its answer, so that none can send requests in a row.
        stranger = self.record.counted and not self.record.known
        if stranger or self._draining or self._reader.pipelined or self._state is RECEIVING:
            self._keep_alive = False
        lines = fields if isinstance(fields, bytes) else lines_of(fields)
        if self._added:
            lines, self._added = lines + self._added, b""
        line = STATUS_LINES.get(status) or status_line(status)
        head = b"%b%b%b%b\r\n" % (line, lines, framing, b"" if self._keep_alive else _CLOSE)
        if not body or self._bodiless or len(body) >= COPIED_BYTES:
            transport.write(head)
            self.send(body)
        else:
            transport.write(head + (chunk(body) if self._chunked else body))

    def send(self, data: bytes, chunks: bytes = b"") -> None:
        """Sends a part of the answer's body; in a tunnel, bytes to the client. `chunks`: the same in chunks."""
        transport, size = self._transport, len(data)
        if not size or transport is None or self._bodiless or not self._started:
            return
        if not self._chunked:
            transport.write(data)
        elif chunks:
            transport.write(chunks)
        elif size < COPIED_BYTES:
            transport.write(b"%x\r\n%b\r\n" % (size, data))
        else:
            transport.writelines((b"%x\r\n" % size, data, b"\r\n"))

    def finish(self) -> None:
        state, reader = self._state, self._reader
        if state is CLOSED:
            return
        self._handler = None
        if self._chunked:
            self._chunked = False
            self._write(LAST_CHUNK)
        self._started = False
        if state is RECEIVING:
            self._linger()
        elif state is not ANSWERING or not self._keep_alive or self._draining or reader.pipelined:
            self.close()
        else:
            reader.busy = False
            self._enter(IDLE)
            self._connections.enter(self.record, connections.IDLE, self._since)

    def answer(self, status: int, fields: Iterable[tuple[bytes, bytes]] | bytes, body: bytes) -> None:
        self.start(status, fields, length=len(body), body=body)
        self.finish()

    def switch(self, fields: Iterable[tuple[bytes, bytes]] | bytes) -> None:
        """Answers a request to switch protocols, with these fields or lines. From then on bytes pass both ways."""
        if self._started or self._state is not ANSWERING:
            return
        if self._reader.pipelined:  # a part of what the client sent is lost
            self.abort()
            return
        self._started = self._used = True
        self._bodiless = False
        self._enter(TUNNEL)
        lines = fields if isinstance(fields, bytes) else lines_of(fields)
        self._write(response_bytes(SWITCHING, lines))
        self._pass_rest()

    def abort(self) -> None:
        """Ends the connection at once; what was written and not yet sent is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def evict(self) -> None:
        """Ends the connection at once, and counts it among those that a bound closed."""
        self._admission.close(self.record, "bound")

    def close(self) -> None:
        """Ends the connection after what was written. In mid-answer the client sees that the answer is broken."""
        if self._transport is not None:
            self._transport.close()
        self._end()

    def retire(self) -> None:
        """Ends the connection with its next answer, which announces that."""
        self._draining = True

    def drain(self) -> None:
        """Closes the connection once it is at rest."""
        self._draining = True
        if self._state is IDLE:
            self.close()

    def pause_reading(self) -> None:
        """Reads no more of the body for now. Until it does, it polls the kernel for whether the client has gone."""
        if not self._read_paused and self._state in (RECEIVING, TUNNEL) and self._transport is not None:
            self._transport.pause_reading()
            self._read_paused = True
            if self._state is RECEIVING:
                self._look = self._loop.call_later(LOOK_S, self._look_at_client)

    def resume_reading(self) -> None:
        if self._read_paused and self._transport is not None:
            self._transport.resume_reading()
            self._read_paused = False
            self._since = self._loop.time()
        self._look_no_more()

    def _look_at_client(self) -> None:
        """Ends the request of a client that leaves while nothing is read from it."""
        if not self._read_paused or self._transport is None or self._state is not RECEIVING:
            return
        gone = is_gone(self._transport)
        if gone:
            self.abort()
        elif gone is not None:
            self._look = self._loop.call_later(LOOK_S, self._look_at_client)

    def _look_no_more(self) -> None:
        look, self._look = self._look, None
        if look is not None:
            look.cancel()

    def _pass_rest(self) -> None:
        """What arrived with the request to switch protocols is the first input of the tunnel."""
        rest, self._reader.rest = self._reader.rest, b""
        if rest and self._handler is not None:
            self._handler.body(rest)

    def _linger(self) -> None:
        """Reads on, so that a reset does not take the answer from a client that is still sending."""
        self._enter(LINGERING)
        if self._transport is not None:
            if self._transport.can_write_eof():  # TLS has no half of a connection
                self._transport.write_eof()
            self.resume_reading()

    def _end(self) -> None:
        if self._state is CLOSED:
            return
        self._enter(CLOSED)
        self._look_no_more()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.gone()

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
        self._since = self._loop.time()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    @property
    def address(self) -> str:
        return self.record.address

    @property
    def secure(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def overdue(self, now: float) -> bool:
        if self._transport is not None and (self._write_paused or self._state is CLOSED):
            self._note_taken(self._transport, now)
        progress, spent = self._service.progress, now - self._since
        return late(self._state, spent, progress, read_paused=self._read_paused, write_paused=self._write_paused)

    def _note_taken(self, transport: asyncio.WriteTransport, now: float) -> None:
        """A slow client's progress: the kernel takes more of us only once it has room for much."""
        untaken = untaken_bytes(transport)
        if untaken > self._untaken:
            self._untaken = untaken
        elif self._untaken - untaken >= _PROGRESS_BYTES:
            self._untaken, self._since = untaken, now

    def admit(self, client: str = "", standing: Standing = KEY) -> Refusal | None:
        """Notes that the current request carried a valid key or credential; returns why it is still refused."""
        incomplete, rules = self._state is RECEIVING, self._connections
        decided = rules.serve(self.record, self._loop.time(), incomplete, client, standing)
        if decided == _SERVED and not rules.few:
            return None
        return self._admission.settle(self.record, incomplete, client, standing, decided)

    # The reader's sink

    def request_head(self, head: RequestHead, *, complete: bool) -> None:
        if self._write_paused:  # the client sends another request without taking what was answered
            self.close()
        if self._state not in _BEFORE_A_REQUEST:
            return
        self._enter(ANSWERING if complete else RECEIVING)
        self._method = head.method
        self._keep_alive = head.keep_alive
        self._chunks = head.chunks
        self._added = b""
        self._started = self._chunked = False
        self._has_body = head.length != 0
        handler = self._service.handle(head, self)
        if self._state in _UNDER_WAY:  # else it was answered within the call
            self._handler = handler
        if self.record.state in _WITHOUT_REQUEST and self._state not in (IDLE, CLOSED):
            self._connections.enter(self.record, connections.BUSY, self._since)
        if head.body is not None:  # the handler did not take it
            self._hand_over(head)

    def _hand_over(self, head: RequestHead) -> None:
        body = head.take_body()
        if body and self._handler is not None:
            self._handler.body(body)
        if self._handler is not None:
            self._handler.end()

    def request_body(self, data: bytes) -> None:
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.body(data)

    def request_end(self) -> None:
        """Calls the handler, unless it has answered."""
        if self._state is RECEIVING:
            self.resume_reading()  # else the end of the connection would not be noticed
            self._enter(ANSWERING)
            if self.record.state is connections.BODY:
                self._connections.enter(self.record, connections.BUSY, self._since)
        if self._handler is not None and self._has_body:
            self._handler.end()

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self.record.address:
            peer = transport.get_extra_info("peername")
            self.record.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._admission.admit(self):
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is ANSWERING:
            self._drop_pipelined(len(data))
            return
        if state is TUNNEL:
            self._since = self._loop.time()
            if self._handler is not None:
                self._handler.body(data)
            return
        if state is LINGERING or state is CLOSED:
            return
        try:
            rest = self._reader.feed(data)
            if self._reader.in_request and self._state is IDLE:
                self._note_head()
            if rest:
                self._reader.rest = rest
                if self.state is TUNNEL:
                    self._pass_rest()
        except MessageError as error:
            self._refuse(error)
        except Exception:  # a defect of ours ends this request alone
            log.exception("request failed")
            self._refuse(MessageError(500, "internal", "internal error; see the server's log"))

    def eof_received(self) -> bool:
        """Treats a client that closes its half as gone: it cannot be distinguished from a dead one."""
        self._end()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._end()
        self._admission.lost(self.record)
        self._reader.close()
        self._closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._untaken = 0
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.writable(ready=False)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.writable(ready=True)

    # The admission

    def shut(self, *, late_head: bool) -> None:
        """Ends the connection for the admission. A client whose first head is late gets a 408."""
        transport = self._transport
        if transport is not None and late_head and self._state is HEAD and not self._used:
            transport.write(TIMED_OUT)
            transport.close()
            self._loop.call_later(_LAST_ANSWER_S, transport.abort)  # the other side may read nothing
            self._end()
        else:
            self.abort()

    def _note_head(self) -> None:
        self._enter(HEAD)
        if self.record.state is not connections.HEAD:  # a new connection has its time for a head already
            self._connections.enter(self.record, connections.HEAD, self._since)

    def _drop_pipelined(self, size: int) -> None:
        """A request that came before the last one's answer is dropped, and the connection ends after that answer."""
        self._reader.pipelined = True
        self._keep_alive = False
        self._dropped += size
        if self._dropped > _MOST_DROPPED_BYTES:
            self.abort()

    def _refuse(self, error: MessageError) -> None:
        """Answers a malformed message and closes. An answer to a complete request goes on to its end."""
        if self._state is ANSWERING and error.status < 500:  # noqa: PLR2004 - what was dropped is malformed
            self._reader.pipelined = True
            self._keep_alive = False
            return
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.gone()
        if self._state in (CLOSED, LINGERING) or self._started:
            self.close()
            return
        if self._state in _BEFORE_A_REQUEST:
            self._enter(RECEIVING)
        self._keep_alive = False
        self.answer(error.status, ((b"content-type", b"application/json"),), self._service.refused(error))
