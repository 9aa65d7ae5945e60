"""The server's side of one HTTP/1.1 connection: one request at a time, read and handed over; malformed ones refused.

Nothing here sets timers: the door ends what is late with a head, the server sweeps the rest by `overdue`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import structlog

from http1 import connections
from http1.answering import AnsweringConnection
from http1.connections import KEY, Connection, Refusal, Standing
from http1.door import Door
from http1.handler import Handler
from http1.head import RequestHead
from http1.peer_state import untaken_bytes
from http1.reading import MessageError
from http1.request_reader import RequestReader
from http1.server_states import ANSWERING, CLOSED, HEAD, IDLE, LINGERING, RECEIVING, TUNNEL, Progress, late

TIMED_OUT: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LAST_ANSWER_S: Final = 2.0
_PROGRESS_BYTES: Final = 4096  # a client that takes so many is slow, and one that takes fewer holds us up
_MOST_DROPPED_BYTES: Final = 64 * 1024  # that arrived before the answer was complete
_BEFORE_A_REQUEST: Final = (IDLE, HEAD)
_UNDER_WAY: Final = (RECEIVING, ANSWERING)
_UNSERVED: Final = (connections.HEAD, connections.IDLE)

log = structlog.get_logger(__name__)


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
    progress: Progress = field(default_factory=Progress)


class ServerConnection(AnsweringConnection):
    """One client's connection.

    Args:
        service: what handles its requests.
        opened: called with it when it is open and admitted.
        closed: called with it when it is closed.
        record: the door's entry, where it has one already.
    """

    __slots__ = ("_closed", "_dropped", "_has_body", "_opened", "_service", "_untaken")

    def __init__(
        self,
        service: Service,
        *,
        opened: Callable[["ServerConnection"], None],
        closed: Callable[["ServerConnection"], None],
        record: Connection | None = None,
    ) -> None:
        super().__init__(service.door, RequestReader(self), record)
        self._service = service
        self._opened = opened
        self._closed = closed
        self._dropped = 0
        self._untaken = 0  # bytes that a client had yet to take at its last progress
        self._has_body = False  # the request that is under way

    @property
    def address(self) -> str:
        """The client's address, without the port; empty: a Unix socket."""
        return self.record.address

    @property
    def secure(self) -> bool:
        """Whether it speaks TLS."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def overdue(self, now: float) -> bool:
        """Whether a limit of time is exceeded at loop time `now`."""
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
        """Notes that the current request carried a valid key or credential; returns why it is refused all the same."""
        incomplete = self._state is RECEIVING
        return self._door.admit_request(self.record, incomplete, client, standing)

    # The reader's sink

    def request_head(self, head: RequestHead, *, whole: bool) -> None:
        """Hands the request over."""
        if self._write_paused:  # the client asks again without taking what was answered
            self.close()
        if self._state not in _BEFORE_A_REQUEST:
            return
        self._enter(ANSWERING if whole else RECEIVING)
        self._method = head.method
        self._keep_alive = head.keep_alive
        self._chunks = head.chunks
        self._added = b""
        self._started = self._chunked = False
        self._has_body = head.length != 0
        handler = self._service.handle(head, self)
        if self._state in _UNDER_WAY:  # else it was answered within the call
            self._handler = handler
        if self.record.state in _UNSERVED and self._state not in (IDLE, CLOSED):
            self._door.enter(self.record, connections.BUSY)
        if head.body is not None:  # the handler did not take it
            self._hand_over(head)

    def _hand_over(self, head: RequestHead) -> None:
        """Calls the handler with a body that has come whole."""
        body = head.take_body()
        if body and self._handler is not None:
            self._handler.body(body)
        if self._handler is not None:
            self._handler.end()

    def request_body(self, data: bytes) -> None:
        """Hands a part of the body on."""
        self._since = self._loop.time()
        if self._handler is not None:
            self._handler.body(data)

    def request_end(self) -> None:
        """Tells the handler; it may have answered before."""
        if self._state is RECEIVING:
            self.resume_reading()  # only so is the end of the connection seen
            self._enter(ANSWERING)
            self._door.body_complete(self.record)
        if self._handler is not None and self._has_body:
            self._handler.end()

    # The transport's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)
        if not self.record.address:
            peer = transport.get_extra_info("peername")
            self.record.address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._door.admit(self):
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        """Parses what arrived."""
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
            if self._reader.begun and self._state is IDLE:
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
        """A client that closes its half of the connection has gone: nothing tells it from one that is dead."""
        self._end()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone."""
        self._transport = None
        self._end()
        self._door.lost(self.record)
        self._reader.close()
        self._closed(self)

    def pause_writing(self) -> None:
        """The client does not take what was written."""
        self._write_paused = True
        self._untaken = 0
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
        if transport is not None and late_head and self._state is HEAD and not self._used:
            transport.write(TIMED_OUT)
            transport.close()
            self._loop.call_later(_LAST_ANSWER_S, transport.abort)  # the other side may read nothing
            self._end()
        else:
            self.abort()

    def _note_head(self) -> None:
        """A part of a request's head has come on an idle connection."""
        self._enter(HEAD)
        if self.record.state is not connections.HEAD:  # a new connection has its time for a head already
            self._door.enter(self.record, connections.HEAD)

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
