"""Reads one response from a byte stream: its head and body go to a sink, in bounds."""

from collections.abc import Callable
from typing import Final, Protocol

import httptools

from http1.head import SWITCHING, ResponseHead
from http1.reading import MessageError, MessageReader

MOST_HEADS: Final = 32  # of one answer: informational ones and the final one
_CONTINUE: Final = 100
_FINAL: Final = range(200, 600)


class ResponseSink(Protocol):
    """Gets the parts of one response, in order."""

    def response_head(self, head: ResponseHead) -> None:
        """A head is complete."""

    def response_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def response_end(self, *, clean: bool) -> None:
        """The response is complete; `clean`: nothing that nothing asked for came behind it."""


class ResponseReader(MessageReader):
    """Reads one response. Informational responses are skipped, but for what `100 Continue` calls.

    Args:
        sink: gets its parts.
        continued: called at each `100 Continue`.
        head_only: the request was HEAD: there is no body whatever the head says.
        upgrade: the request asked to switch protocols: a 101 is an answer, and the stream after it is not read.
    """

    __slots__ = ("_continued", "_done", "_head_only", "_heads", "_informational", "_sink", "_until_close", "_upgrade")

    def __init__(
        self,
        sink: ResponseSink,
        *,
        head_only: bool = False,
        upgrade: bool = False,
        continued: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._continued = continued
        self._sink = sink
        self._head_only = head_only
        self._upgrade = upgrade
        self._heads = 0
        self._informational = False
        self._until_close = False
        self._done = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Parses more bytes; returns what followed a switch of protocols.

        Raises:
            MessageError: they are refused; the connection must end.
        """
        clean = True
        rest: bytes | None = None
        try:
            rest = self._parse(data)
        except MessageError:
            if not self._done:
                raise
            clean = False  # the response is complete, and what follows it spoils the connection alone
        if self._done:
            self._sink.response_end(clean=clean)
        return rest or b""

    def end_of_stream(self) -> bool:
        """The peer has closed; returns whether the response is complete with that."""
        if self._until_close and not self._done:
            self._done = True
            self._sink.response_end(clean=False)
        return self._done

    def on_message_begin(self) -> None:
        """A response begins."""
        if self._done:
            self._refuse(502, "unasked", "a response arrived that nothing asked for")
        self._fields = []
        self._head_bytes = 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._heads += 1
        if self._heads > MOST_HEADS:
            self._refuse(502, "malformed", f"more than {MOST_HEADS} heads in one answer")
        status = self._parser.get_status_code()
        switching = status == SWITCHING and self._upgrade
        self._informational = status < _FINAL.start and not switching
        if self._informational and status != SWITCHING:
            if status == _CONTINUE and self._continued is not None:
                self._continued()
            return
        if status not in _FINAL and not switching:
            self._refuse(502, "status", f"status {status}")
        self._bare_bytes = 0
        self._in_head = False
        length, chunked = self._framing()
        bodiless = self._head_only or status in (SWITCHING, 204, 304)
        self._until_close = not bodiless and length is None and not chunked
        keep_alive = self._parser.should_keep_alive() and not self._until_close and not switching
        self._sink.response_head(ResponseHead(status, self._fields, keep_alive, 0 if bodiless else length))
        if bodiless:
            self._done = True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._done:
            self._refuse(502, "unasked", "a body where none is allowed")
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self._pieces:
            self._flush()
        if not self._informational:
            self._done = True

    def _flush(self) -> None:
        self._sink.response_body(self._taken())
