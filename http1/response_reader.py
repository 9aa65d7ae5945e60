"""Reads responses from a byte stream, each when it was asked for: heads and bodies go to a sink, in bounds."""

from collections.abc import Callable
from typing import Final, Protocol

import httptools

from http1.head import SWITCHING, ResponseHead
from http1.reading import MessageError, MessageReader

MOST_HEADS: Final = 32  # of one answer: informational ones and the final one
_CONTINUE: Final = 100
_FIRST_FINAL: Final = 200
_LAST_FINAL: Final = 599


class ResponseSink(Protocol):
    """Gets the parts of one response, in order."""

    def response_head(self, head: ResponseHead) -> None:
        """A head is complete."""

    def response_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def response_end(self, *, clean: bool) -> None:
        """The response is complete; `clean`: nothing that nothing asked for came behind it."""


class ResponseReader(MessageReader):
    """Reads one response after another; `expect` precedes each. Informational responses are skipped.

    Args:
        sink: gets their parts.
    """

    __slots__ = (
        *(
            "_complete",
            "_continued",
            "_continues",
            "_done",
            "_head",
            "_head_only",
            "_heads",
            "_informational",
            "_sink",
            "_until_close",
            "_upgrade",
        ),
    )

    def __init__(self, sink: ResponseSink) -> None:
        super().__init__(sink)
        self._head_only = False
        self._upgrade = False
        self._heads = 0
        self._head: ResponseHead | None = None  # until it is handed on
        self._informational = False
        self._continued: Callable[[], None] | None = None
        self._continues = False  # the server asks for the body, and that was not handed on yet
        self._until_close = False
        self._done = False
        self._complete = True  # whether the parser knows that the last response is, too
        self._parser = httptools.HttpResponseParser(self)

    def expect(
        self, *, head_only: bool = False, upgrade: bool = False, continued: Callable[[], None] | None = None
    ) -> None:
        """The next response may come.

        Args:
            head_only: the request was HEAD: there is no body whatever the head says.
            upgrade: the request asked to switch protocols: a 101 is an answer, and the stream after it is not read.
            continued: called when the server asks for the body (`100 Continue`).
        """
        if not self._complete:  # it still waits for a body
            self._parser = httptools.HttpResponseParser(self)
            self._complete = True
        self._head_only = head_only
        self._upgrade = upgrade
        self._continued = continued
        self._continues = False
        self._heads = self._trailers = self._bare_bytes = 0
        self._done = self._until_close = self._informational = False

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
            self._refuse(MessageError(502, "unasked", "a response arrived that nothing asked for"))
        self._complete = False
        self._fields = []
        self._in_head = True

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._heads += 1
        if self._heads > MOST_HEADS:
            self._refuse(MessageError(502, "malformed", f"more than {MOST_HEADS} heads in one answer"))
        parser = self._parser
        status = parser.get_status_code()
        switching = status == SWITCHING and self._upgrade
        self._informational = status < _FIRST_FINAL and not switching
        if self._informational and status != SWITCHING:
            self._continues = status == _CONTINUE and self._continued is not None
            return
        if not (_FIRST_FINAL <= status <= _LAST_FINAL or switching):
            self._refuse(MessageError(502, "status", f"status {status}"))
        self._end_head()
        named = dict(reversed(self._fields))
        length, chunked = self._framing(named)
        bodiless = self._head_only or status in (SWITCHING, 204, 304)
        self._until_close = not bodiless and length is None and not chunked
        keep_alive = parser.should_keep_alive() and not self._until_close and not switching
        self._head = ResponseHead(status, self._fields, named, keep_alive, 0 if bodiless else length)
        if bodiless:
            self._done = True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._done:
            self._refuse(MessageError(502, "unasked", "a body where none is allowed"))
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The response is complete."""
        self._complete = True
        if not self._informational:
            self._done = True

    def _hand_on(self) -> None:
        if self._continues and self._continued is not None:
            self._continues = False
            self._continued()
        head, self._head = self._head, None
        if head is not None:
            head.alone = not self._pieces and not self._done
            self._sink.response_head(head)
        if self._pieces:
            self._sink.response_body(self._taken())
