"""Reads responses from a byte stream, each when it was asked for: heads and bodies go to a sink, in bounds."""

from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol

import httptools

from http1.head import SWITCHING, ResponseHead
from http1.known_heads import KnownHeads
from http1.plain_chunks import content_of, follow_only, last_content_of
from http1.reading import MessageError, MessageReader

MOST_HEADS: Final = 32  # of one answer: informational ones and the final one
_CONTINUE: Final = 100
_NEVER_FRAMED: Final = (100, 102, 103)  # behind other informational heads the parser reads a body that they state
_FIRST_FINAL: Final = 200
_LAST_FINAL: Final = 599
_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

_KNOWN: Final = KnownHeads[ResponseHead]()


class ResponseSink(Protocol):
    """Gets the parts of one response, in order."""

    def response_head(self, head: ResponseHead) -> None:
        """A head is complete."""

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the body, never empty. `chunks`: the same as the chunks in which it came, where these are plain."""

    def response_end(self, *, clean: bool) -> None:
        """The response is complete; `clean`: nothing that nothing asked for came behind it."""


class ResponseReader(MessageReader):
    """Reads one response after another; `expect` precedes each. Informational responses are skipped.

    Args:
        sink: gets their parts.
    """

    __slots__ = (
        *(
            "_between_chunks",
            "_bodiless",
            "_complete",
            "_continued",
            "_continues",
            "_done",
            "_head",
            "_head_only",
            "_heads",
            "_informational",
            "_until_close",
            "_upgrade",
        ),
    )
    _most_beside = inf  # an engine may send each letter of an answer as a chunk

    def __init__(self, sink: ResponseSink) -> None:
        super().__init__(sink)
        self._head_only = False
        self._bodiless = False
        self._between_chunks = False  # and all that have come were plain: there is no parser
        self._upgrade = False
        self._heads = 0
        self._head: ResponseHead | None = None  # until it is handed on
        self._informational = False
        self._continued: Callable[[], None] | None = None
        self._continues = False  # the server asks for the body, and that was not handed on yet
        self._until_close = False
        self._done = False
        self._complete = True  # whether the parser knows that the last response is, too

    def expect(
        self, head_only: bool = False, upgrade: bool = False, continued: Callable[[], None] | None = None
    ) -> None:
        """The next response may come.

        Args:
            head_only: the request was HEAD: there is no body whatever the head says.
            upgrade: the request asked to switch protocols: a 101 is an answer, and the stream after it is not read.
            continued: called when the server asks for the body (`100 Continue`).
        """
        if not self._complete:  # it still waits for a body
            self._parser = None
            self._complete = True
        self._head_only = head_only
        self._upgrade = upgrade
        self._continued = continued
        self._done = False
        self._left = 0
        self._between_chunks = False
        self._fresh = not head_only and not upgrade and continued is None
        if not self._fresh:
            self._begin()

    def _begin(self) -> None:
        """The parser will read the next response."""
        self._heads = self._trailers = self._bare_bytes = 0
        self._continues = self._until_close = self._informational = self._bodiless = False

    def _new_parser(self) -> Any:
        return httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """As of all messages. A stream of chunks has no parser up to its first odd one."""
        if self._between_chunks:
            content = content_of(data)
            if content is not None:
                self._sink.response_body(content, data)
                return b""
            if self._end_chunks(data):
                return b""
        rest = MessageReader.feed(self, data)
        if self._between_chunks:
            self._parser = None
        return rest

    def _end_chunks(self, data: bytes) -> bool:
        """Whether the plain chunks end with these bytes; else a parser stands where the one before did."""
        self._between_chunks = False
        content = last_content_of(data)
        if content is None:
            parser = self._parser = self._new_parser()
            parser.feed_data(_CHUNKED_HEAD)
            self._head = None  # it was handed on
            return False
        self._done = self._complete = True
        if content:
            self._sink.response_body(content)
        self._sink.response_end(clean=True)
        return True

    def _feed_known(self, data: bytes) -> bytes | None:
        self._fresh = False
        if self._left:
            return self._count(data)
        found = self._read_known(_KNOWN, data)
        if found is None:
            self._unknown = data
            self._begin()
            return None
        head, start = found
        left = start + (head.length or 0) - len(data)
        if left < 0:  # what nothing asked for
            self._begin()
            return None
        self._left, self._done = left, not left
        head.alone = left > 0 and start == len(data)
        self._sink.response_head(head)
        if start < len(data):
            self._sink.response_body(data[start:])
        if not left:
            self._sink.response_end(clean=True)
        return b""

    def _count(self, data: bytes) -> bytes:
        """A part of a body whose head was known; what follows it spoils the connection alone."""
        left = self._left - len(data)
        self._left, self._done = max(left, 0), left <= 0
        self._sink.response_body(data[:left] if left < 0 else data)
        if left <= 0:
            self._sink.response_end(clean=not left)
        return b""

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
        unknown = self._first_bytes()
        self._heads += 1
        if self._heads > MOST_HEADS:
            self._refuse(MessageError(502, "malformed", f"more than {MOST_HEADS} heads in one answer"))
        parser = self._parser
        status = parser.get_status_code()
        switching = status == SWITCHING and self._upgrade
        # Below 100 there is none: the parser takes a body after it, as after a final one.
        self._informational = _CONTINUE <= status < _FIRST_FINAL and not switching
        if self._informational and status != SWITCHING:
            if status not in _NEVER_FRAMED and any(map(_frames_body, self._fields)):
                self._refuse(MessageError(502, "malformed", "an informational answer with a body"))
            self._continues = status == _CONTINUE and self._continued is not None
            return
        if not (_FIRST_FINAL <= status <= _LAST_FINAL or switching):
            self._refuse(MessageError(502, "status", f"status {status}"))
        named = self._end_head()
        chunked = b"transfer-encoding" in named
        if chunked:
            self._check_coding()
        length = None if chunked or b"content-length" not in named else int(named[b"content-length"])
        self._bodiless = self._head_only or status in (SWITCHING, 204, 304)
        self._until_close = not self._bodiless and length is None and not chunked
        keep_alive = parser.should_keep_alive() and not self._until_close and not switching
        self._head = ResponseHead(status, self._fields, named, keep_alive, 0 if self._bodiless else length)
        if self._bodiless:
            self._done = True
        self._fields = []  # they are the head's
        if unknown:
            _KNOWN.learn(unknown, self._head)
            self._between_chunks = chunked and not self._bodiless and follow_only(unknown)

    def on_message_complete(self) -> None:
        """The response is complete."""
        self._complete = True
        if not self._informational:
            self._done = True

    def _hand_on(self, problem: Exception | None) -> None:
        if self._continues and self._continued is not None:
            self._continues = False
            self._continued()
        pieces = self._pieces
        if pieces and self._bodiless:
            pieces.clear()
            problem = problem or MessageError(502, "unasked", "a body where none is allowed")
        head = self._head
        if head is not None:
            self._head = None
            head.alone = not pieces and not self._done
            self._sink.response_head(head)
        if pieces:
            self._sink.response_body(pieces.pop() if len(pieces) == 1 else self._taken())
        # Once the response is complete, what follows it spoils the connection alone.
        if problem is not None and not (self._done and isinstance(problem, MessageError)):
            raise problem from None
        if self._done:
            self._sink.response_end(clean=problem is None)


def _frames_body(field: tuple[bytes, bytes]) -> bool:
    """Whether a field states that a body follows."""
    name, value = field
    return name == b"transfer-encoding" or (name == b"content-length" and bool(value.strip(b"0")))
