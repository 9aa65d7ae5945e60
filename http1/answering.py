"""How one connection's requests are answered: its state, what is written, and back-pressure."""

import asyncio
from collections.abc import Iterable
from typing import Final

from http1 import connections
from http1.connections import Connection
from http1.door import Door
from http1.handler import Handler
from http1.head import (
    CONTINUE,
    COPIED_BYTES,
    LAST_CHUNK,
    SWITCHING,
    chunk,
    has_body,
    lines_of,
    response_bytes,
    status_line,
)
from http1.peer_state import LOOK_S, is_gone
from http1.request_reader import RequestReader
from http1.server_states import ANSWERING, CLOSED, EDGES, IDLE, LINGERING, RECEIVING, TUNNEL, State

_CLOSE: Final = b"connection: close\r\n"
_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_UNDER_WAY: Final = (RECEIVING, ANSWERING)


class AnsweringConnection(asyncio.Protocol):
    """The part of a server's connection that answers; `ServerConnection` is the part that reads.

    Args:
        door: learns of the state.
        reader: reads the requests.
        record: the door's entry, where it has one already.

    Attributes:
        record: the door's entry.
    """

    __slots__ = (
        *(
            "_added",
            "_bodiless",
            "_chunked",
            "_chunks",
            "_door",
            "_draining",
            "_handler",
            "_keep_alive",
            "_look",
            "_loop",
        ),
        *(
            "_method",
            "_read_paused",
            "_reader",
            "_since",
            "_started",
            "_state",
            "_transport",
            "_used",
            "_write_paused",
            "record",
        ),
    )

    def __init__(self, door: Door, reader: RequestReader, record: Connection | None = None) -> None:
        self._added = b""  # lines of the current answer's head
        self._door = door
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._state = IDLE
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
        self._look: asyncio.TimerHandle | None = None  # at the other side of a paused upload
        self.record = record or Connection("", self._since)

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
        return self._state in _UNDER_WAY

    @property
    def complete(self) -> bool:
        """Whether the whole request has come; its body may be about to be handed over."""
        return self._state is ANSWERING

    def add_lines(self, lines: bytes) -> None:
        """Adds lines to the head of the current request's answer, whatever answers it."""
        self._added += lines

    def send_continue(self) -> None:
        """Asks a client that expects it for the body."""
        if self._state is RECEIVING and not self._started:
            self._write(CONTINUE)

    def start(
        self, status: int, fields: Iterable[tuple[bytes, bytes]] | bytes, *, length: int | None, body: bytes = b""
    ) -> None:
        """Sends the answer's head.

        Args:
            status: 200 to 599.
            fields: without those that frame the body; or their lines.
            length: of the body; None: it is chunked, or ends with the connection where the client knows no chunks.
            body: its beginning, which goes with the head.
        """
        transport = self._transport
        if transport is None or self._started or self._state not in _UNDER_WAY:
            return
        self._started = self._used = True
        self._bodiless = not has_body(status, self._method)
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
        head = b"%b%b%b%b\r\n" % (status_line(status), lines, framing, b"" if self._keep_alive else _CLOSE)
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
        """The answer is complete."""
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
            self._door.enter(self.record, connections.IDLE)

    def answer(self, status: int, fields: Iterable[tuple[bytes, bytes]] | bytes, body: bytes) -> None:
        """A whole answer."""
        self.start(status, fields, length=len(body), body=body)
        self.finish()

    def switch(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        """Answers a request to switch protocols: from now on bytes pass both ways as they are."""
        if self._started or self._state is not ANSWERING:
            return
        if self._reader.pipelined:  # a part of what the client sent is lost
            self.abort()
            return
        self._started = self._used = True
        self._bodiless = False
        self._enter(TUNNEL)
        self._write(response_bytes(SWITCHING, lines_of(fields)))
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

    def retire(self) -> None:
        """Ends the connection with its next answer, which announces that."""
        self._draining = True

    def drain(self) -> None:
        """Closes the connection once it is at rest."""
        self._draining = True
        if self._state is IDLE:
            self.close()

    def pause_reading(self) -> None:
        """Reads no more of the body for now. Whether the client has gone is looked at meanwhile."""
        if not self._read_paused and self._state in (RECEIVING, TUNNEL) and self._transport is not None:
            self._transport.pause_reading()
            self._read_paused = True
            if self._state is RECEIVING:
                self._look = self._loop.call_later(LOOK_S, self._look_at_client)

    def resume_reading(self) -> None:
        """Goes on reading the body."""
        if self._read_paused and self._transport is not None:
            self._transport.resume_reading()
            self._read_paused = False
            self._since = self._loop.time()
        self._look_no_more()

    def _look_at_client(self) -> None:
        """A client that leaves while nothing is read from it ends its request, as where all is read."""
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
        """What arrived with the request to switch protocols is the tunnel's first."""
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
