"""Reads requests and responses from byte streams: httptools parses, heads and bodies go to a sink, in bounds.

httptools (llhttp, strict) refuses what smuggles requests: a length beside chunks, two lengths, a bare line feed, a
folded field. `framing` adds the bounds of heads, and what a server must refuse beyond that.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Final, Protocol

import httptools

from http1.protocol.fast_paths import Known, KnownHeads, content_of, follow_only, last_content_of
from http1.protocol.framing import (
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MessageError,
    asks_for_body,
    first_values,
    head_framing_alike,
    head_too_large,
    is_informational,
    mostly_frames,
    opens_websocket,
    request_head,
    response_head,
)
from http1.protocol.heads import NO_BODY, Fields, RequestHead, ResponseHead

MAX_FRAME_BYTES: Final = 2**20  # of chunks' heads, extensions and trailers, beyond as many as the body has


class MessageReader(ABC):
    """Fields of a head, parts of a body, and their bounds. A subclass hands them to its sink."""

    __slots__ = (
        *("_bare_bytes", "_fields", "_frames", "_fresh", "_in_head", "_known", "_left", "_parser", "_parts"),
        *("_sink", "_trailers", "_unknown", "on_body"),
    )
    _most_frames: ClassVar[float] = MAX_FRAME_BYTES

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._fields: Fields  # of a head, while the parser reads it
        self._parts: list[bytes]  # parts of a body that the parser has read since the sink was last called
        self.on_body: Callable[[bytes], None]
        self._bare_bytes = 0  # read since the last that was of use: heads, trailers, chunk extensions
        self._frames = 0  # bytes of a body's frames, less those of the body
        self._trailers = 0
        self._in_head = True
        self._parser: Any = None  # made with its lists for the first message that needs it
        self._fresh = False  # the parser is between two messages
        self._left = 0  # bytes of a body that does not go through the parser
        self._known: Known[Any] | None = None  # as the last head that needed no parser
        self._unknown = b""  # what the parser is about to read, where a head begins it that is not known

    def feed(self, data: bytes) -> bytes:
        """Parses more bytes and hands on what they hold; returns what follows a switch of protocols.

        What came before bytes that are refused is handed on, too: how a stream is cut makes no difference.

        Raises:
            MessageError: they are refused; the connection must end.
        """
        if self._left or self._fresh:
            passed = self._feed_known(data)
            if passed is not None:
                return passed
        self._bare_bytes += len(data)
        rest = b""
        problem: Exception | None = None
        try:
            rest = self._parse(data)
        except httptools.HttpParserError as error:
            problem = self._cause_of(error)
        self._unknown = b""
        if self._parts:
            problem = problem or self._count_frames()
        elif self._bare_bytes > MAX_HEAD_BYTES and problem is None:
            problem = head_too_large() if self._in_head else mostly_frames()
        self._hand_on(problem)
        return rest

    def _parse(self, data: bytes) -> bytes:
        parser = self._parser
        if parser is None:
            parser = self._parser = self._new_parser()
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            switched_at = upgrade.args[0]
        else:
            return b""
        # Not in the handler: it would become the context of what a callback then refuses, see `_cause_of`.
        return self._after_switch(data[switched_at:])

    def _after_switch(self, rest: bytes) -> bytes:
        """The parser ended with a head that requests a switch of protocols; returns the bytes of the other protocol."""
        return rest

    def close(self) -> None:
        """Nothing more will be read: reader, parser and sink let go of one another; none awaits a collection."""
        self._parser = self._sink = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field; also called for trailers, which are dropped."""
        if self._in_head:
            self._fields.append((name.lower(), value.strip(b" \t")))
            return
        self._trailers += 1
        if self._trailers > MAX_FIELDS:
            raise MessageError(400, "malformed", f"more than {MAX_FIELDS} trailers")

    def _read_known(self, heads: KnownHeads[Any], data: bytes) -> tuple[Any, int] | None:
        """The head with which the bytes begin, mostly like the last one, and its size; None: it must be parsed."""
        known_head = self._known.read(data) if self._known is not None else None
        if known_head is None:
            known = self._known = heads.find(data)
            known_head = known.read(data) if known is not None else None
        return known_head

    def _first_bytes(self) -> bytes:
        """The bytes that the complete head begins; empty for a head behind others of the same bytes."""
        unknown, self._unknown = self._unknown, b""
        return unknown

    def _new_parser(self) -> Any:
        """A parser that calls this, and the lists that it fills."""
        self._parts = []
        self.on_body = self._parts.append
        return self._parser_of_httptools()

    @abstractmethod
    def _parser_of_httptools(self) -> Any:
        """A parser that fills the present lists."""

    @abstractmethod
    def _feed_known(self, data: bytes) -> bytes | None:
        """As `feed`, for a message with a known head, which the parser need not read; None: it must."""

    @abstractmethod
    def _hand_on(self, problem: Exception | None) -> None:
        """Hands on what was parsed: a head, the parts of a body as one, an end. Then raises the problem, if any."""

    @staticmethod
    def _cause_of(error: httptools.HttpParserError) -> Exception:
        """What the parser or one of its callbacks refused; a defect of ours as it is."""
        if not isinstance(error, httptools.HttpParserCallbackError):
            return MessageError(400, "malformed", f"not a valid HTTP/1.1 message: {error}")
        return error.__context__ if isinstance(error.__context__, Exception) else error

    def _count_frames(self) -> MessageError | None:
        """Bytes of a body came: refuses one that is mostly frames, since each of them costs what a long one does."""
        self._frames += self._bare_bytes - 2 * sum(map(len, self._parts))
        self._bare_bytes = 0
        return mostly_frames() if self._frames > self._most_frames else None

    def _end_head(self) -> dict[bytes, bytes]:
        """Checks the bounds of a complete head; returns the first value of each field."""
        named = first_values(self._fields, self._bare_bytes)
        self._in_head = False
        self._bare_bytes = self._frames = 0
        return named

    def _taken(self) -> bytes:
        """The parts of a body as one; there is at least one."""
        taken = b"".join(self._parts)  # one alone is not copied
        self._parts.clear()
        return taken


_KNOWN_REQUESTS: Final = KnownHeads[RequestHead]()


class RequestSink(Protocol):
    """Gets the parts of requests, in order."""

    def request_head(self, head: RequestHead, *, complete: bool) -> None:
        """A head is complete; `complete`: so is the request. Then its body is in the head, and nothing follows.

        What the sink takes of the body from the head is not handed to it once more.
        """

    def request_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def request_end(self) -> None:
        """The request is complete."""


class RequestReader(MessageReader):
    """Reads a client's requests. A second request must not begin before the first was answered: see `busy`.

    Bytes behind a request in the same read are dropped, even where it was answered within the call: the requests of one
    read would keep the loop, and their answers memory.

    Attributes:
        in_request: a part of a request has come, and the rest has not.
        busy: a request is being answered; the owner resets it. Until then input is dropped.
        pipelined: input was dropped: the connection must end after the answer.
        rest: the bytes behind a request to switch protocols; the owner keeps them here until the switch.
    """

    __slots__ = (
        *("_declined", "_ended", "_head", "_ignored", "_target", "busy", "in_request", "on_url", "pipelined"),
        *("rest",),
    )

    def __init__(self, sink: RequestSink) -> None:
        super().__init__(sink)
        self._target: list[bytes]  # its parts
        self.on_url: Callable[[bytes], None]
        self._ignored = False
        # While the parser ends with an offer to switch protocols that is ignored: a head that frames the same body,
        # and nothing where there is no body.
        self._declined: bytes | None = None
        self._head: RequestHead | None = None  # until it is handed on
        self._ended = False  # whether an end is to be handed on
        self._fresh = True
        self.in_request = False
        self.busy = False
        self.pipelined = False
        self.rest = b""

    def _new_parser(self) -> Any:
        self._target = []
        self.on_url = self._target.append
        return super()._new_parser()

    def _parser_of_httptools(self) -> Any:
        return httptools.HttpRequestParser(self)

    def _after_switch(self, rest: bytes) -> bytes:
        """Continues behind an ignored offer, as RFC 9110 (7.8) allows: the parser would drop the body."""
        if self._declined is None:
            return rest
        framing, self._parser = self._declined, self._parser_of_httptools()
        if framing:
            self._parser.feed_data(framing)  # its callbacks change nothing
        self._declined = None
        if not framing:
            self.on_message_complete()
        return self._parse(rest) if rest else b""

    def _feed_known(self, data: bytes) -> bytes | None:
        if self._left:
            return self._count(data)
        if self.busy:
            return None
        known_head = self._read_known(_KNOWN_REQUESTS, data)
        if known_head is None:
            self._unknown = data
            return None
        head, start = known_head
        left = start + (head.length or 0) - len(data)
        if left < 0:  # a part of the next request
            return None
        self.busy = True
        if left:
            self.in_request, self._fresh, self._left = True, False, left
            if start < len(data):
                head.first = memoryview(data)[start:]
            self._sink.request_head(head, complete=False)
            if head.take_first() is not None:
                self._sink.request_body(data[start:])
        else:
            if head.length:
                head.body = data[start:]
            self._sink.request_head(head, complete=True)
        return b""

    def _count(self, data: bytes) -> bytes:
        left = self._left - len(data)
        self._left = max(left, 0)
        self._sink.request_body(data[:left] if left < 0 else data)
        if left <= 0:
            self.in_request, self._fresh = False, True
            self.pipelined = self.pipelined or left < 0
            self._sink.request_end()
        return self.feed(data[left:]) if left < 0 else b""

    def on_message_begin(self) -> None:
        if self._declined is not None:
            return
        if self._ended:
            self.pipelined = True  # before the answer, which may come within the call
            self._hand_on(None)
        self.in_request, self._fresh = True, False
        self._ignored = self.busy or self.pipelined
        if self.busy:
            self.pipelined = True
        self._fields = []
        self._target.clear()
        self._trailers = 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        if self._declined is not None:
            return
        unknown, named = self._first_bytes(), self._end_head()
        parser, fields = self._parser, self._fields
        offers = parser.should_upgrade()
        framing = head_framing_alike(named) if offers else b""
        # Behind a body, which a WebSocket's request has none of, the other protocol would begin too early.
        switches = offers and not self._ignored and not framing and opens_websocket(parser.get_method(), fields)
        self._declined = framing if offers and not switches else None
        if self._ignored:
            return
        self._head = head = request_head(parser, b"".join(self._target), fields, named, switches)
        self.busy = True
        del self._fields  # they are the head's
        if unknown:
            _KNOWN_REQUESTS.learn(unknown, head)

    def on_message_complete(self) -> None:
        if self._declined is not None:
            return  # the parser takes a body for the other protocol
        self._in_head = True
        self._bare_bytes = 0
        self.in_request, self._fresh = False, True
        self._ended = not self._ignored

    def _hand_on(self, problem: Exception | None) -> None:
        head, ended = self._head, self._ended
        self._head, self._ended = None, False
        if self._ignored and not ended:
            self._parts.clear()
        if head is not None and ended:
            if head.length != 0:
                head.body = self._taken() if self._parts else b""
            self._sink.request_head(head, complete=True)
        else:
            if head is not None:
                self._sink.request_head(head, complete=False)
            if self._parts:
                self._sink.request_body(self._taken())
            if ended:
                self._sink.request_end()
        if problem is not None:
            raise problem from None


MOST_HEADS: Final = 32  # of one answer: informational ones and the final one
_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

_KNOWN_RESPONSES: Final = KnownHeads[ResponseHead]()


class ResponseSink(Protocol):
    """Gets the parts of one response, in order."""

    def response_head(self, head: ResponseHead) -> None:
        """A head is complete."""

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the body, never empty. `chunks`: the same as the chunks in which it came, where these are plain."""

    def response_end(self, *, clean: bool) -> None:
        """The response is complete; `clean`: no unrequested bytes came behind it."""


class ResponseReader(MessageReader):
    """Reads one response after another; `expect` precedes each. Informational responses are skipped."""

    __slots__ = (
        *("_between_chunks", "_bodiless", "_complete", "_continued", "_continues", "_done", "_head"),
        *("_head_only", "_heads", "_informational", "_until_close", "_upgrade"),
    )
    _most_frames = inf  # an engine may send each letter of an answer as a chunk

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
        self._continues = False  # the server requests the body, and that was not handed on yet
        self._until_close = False
        self._done = False
        self._complete = True  # whether the parser knows that the last response is, too

    def expect(
        self, head_only: bool = False, upgrade: bool = False, continued: Callable[[], None] | None = None
    ) -> None:
        """The next response may come.

        Args:
            head_only: the request was HEAD: there is no body whatever the head states.
            upgrade: the request was for a switch of protocols: a 101 is an answer, and the stream after it is not read.
            continued: called when the server requests the body (`100 Continue`).
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
        self._heads = self._trailers = self._bare_bytes = 0
        self._continues = self._until_close = self._informational = self._bodiless = False

    def _parser_of_httptools(self) -> Any:
        return httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """As of all messages. A stream of plain chunks needs no parser."""
        if self._between_chunks:
            content = content_of(data)
            if content is not None:
                self._sink.response_body(content, data)
                return b""
            if self._end_chunks(data):
                return b""
        rest = MessageReader.feed(self, data)
        if self._between_chunks:  # a long stream keeps no parser
            self._parser = None
            del self._parts, self.on_body
        return rest

    def _end_chunks(self, data: bytes) -> bool:
        """Whether the plain chunks end with these bytes; else a parser takes over."""
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
        known_head = self._read_known(_KNOWN_RESPONSES, data)
        if known_head is None:
            self._unknown = data
            self._begin()
            return None
        head, start = known_head
        left = start + (head.length or 0) - len(data)
        if left < 0:  # unrequested bytes follow
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
        if self._done:
            raise MessageError(502, "unasked", "a response arrived that nothing asked for")
        self._complete = False
        self._fields = []
        self._in_head = True

    def on_headers_complete(self) -> None:
        unknown = self._first_bytes()
        self._heads += 1
        if self._heads > MOST_HEADS:
            raise MessageError(502, "malformed", f"more than {MOST_HEADS} heads in one answer")
        parser, fields, status = self._parser, self._fields, self._parser.get_status_code()
        self._informational = is_informational(status)
        if self._informational:
            self._continues = asks_for_body(status, fields) and self._continued is not None
            return
        named = self._end_head()
        chunked = b"transfer-encoding" in named
        head = response_head(parser, fields, named, head_only=self._head_only, upgrade=self._upgrade)
        self._bodiless = self._done = self._head_only or status in NO_BODY
        self._until_close = head.length is None and not chunked
        self._head = head
        del self._fields  # they are the head's
        if unknown:
            _KNOWN_RESPONSES.learn(unknown, head)
            self._between_chunks = chunked and not self._bodiless and follow_only(unknown)

    def on_message_complete(self) -> None:
        self._complete = True
        if not self._informational:
            self._done = True

    def _hand_on(self, problem: Exception | None) -> None:
        if self._continues and self._continued is not None:
            self._continues = False
            self._continued()
        parts = self._parts
        if parts and self._bodiless:
            parts.clear()
            problem = problem or MessageError(502, "unasked", "a body where none is allowed")
        head = self._head
        if head is not None:
            self._head = None
            head.alone = not parts and not self._done
            self._sink.response_head(head)
        if parts:
            self._sink.response_body(parts.pop() if len(parts) == 1 else self._taken())
        # Once the response is complete, what follows it spoils the connection alone.
        if problem is not None and not (self._done and isinstance(problem, MessageError)):
            raise problem from None
        if self._done:
            self._sink.response_end(clean=problem is None)
