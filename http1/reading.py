"""Reads HTTP/1.1 messages from a byte stream with httptools: heads and bodies go to a sink, in bounds.

httptools (llhttp, strict) refuses what smuggles requests: a length beside chunks, two lengths, a bare line feed, a
folded field. This adds bounds, what a message's framing is, and what a server must refuse beyond that.
"""

from typing import Any, Final, Protocol

import httptools

from http1.head import SWITCHING, Fields, RequestHead, ResponseHead, first

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 128
MOST_HEADS: Final = 32  # of one answer: informational ones and the final one
_CHUNKED: Final = b"chunked"
_FINAL: Final = range(200, 600)


class MessageError(Exception):
    """The peer's bytes are not an acceptable HTTP/1.1 message.

    Attributes:
        status: what a server answers.
        code: a short word for the answer's body.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class RequestSink(Protocol):
    """Gets the parts of requests, in order."""

    def request_head(self, head: RequestHead) -> None:
        """A head is complete."""

    def request_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def request_end(self) -> None:
        """The request is complete."""


class ResponseSink(Protocol):
    """Gets the parts of one response, in order."""

    def response_head(self, head: ResponseHead) -> None:
        """A head is complete."""

    def response_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def response_end(self, *, clean: bool) -> None:
        """The response is complete; `clean`: nothing that nothing asked for came behind it."""


class _Reader:
    """What both directions share: fields of a head, pieces of a body, and their bounds."""

    __slots__ = ("_bare_bytes", "_fields", "_head_bytes", "_in_head", "_parser", "_pieces", "_problem", "_trailers")

    def __init__(self) -> None:
        self._fields: Fields = []
        self._pieces: list[bytes] = []  # of a body, read since the sink was last called
        self._head_bytes = 0
        self._bare_bytes = 0  # read since the last that was of use: heads, trailers, chunk extensions
        self._trailers = 0
        self._in_head = True
        self._problem: MessageError | None = None
        self._parser: Any = None

    def _parse(self, data: bytes) -> bytes | None:
        """Parses more bytes; returns what follows a switch of protocols, None without one."""
        self._bare_bytes += len(data)
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            if self._problem is not None:
                raise self._problem from None
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise MessageError(400, "malformed", f"not a valid HTTP/1.1 message: {error}") from None
        if self._pieces:
            self._flush()
        if self._bare_bytes > MAX_HEAD_BYTES:
            if self._in_head:
                raise MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")
            raise MessageError(400, "malformed", "a body with too much beside its bytes")
        return rest

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field; also called for trailers, which are dropped."""
        if not self._in_head:
            self._trailers += 1
            if self._trailers > MAX_FIELDS:
                self._refuse(400, "malformed", f"more than {MAX_FIELDS} trailers")
            return
        if len(self._fields) >= MAX_FIELDS:
            self._refuse(431, "too_many_fields", f"the head has more than {MAX_FIELDS} fields")
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")
        self._fields.append((name.lower(), value.strip(b" \t")))

    def _flush(self) -> None:
        """Hands the pieces of the body on, as one."""
        raise NotImplementedError

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._bare_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._problem = MessageError(status, code, message)
        raise self._problem

    def _framing(self) -> tuple[int | None, bool]:
        """Length of the body, if stated, and whether it is chunked."""
        length: int | None = None
        chunked = False
        for name, value in self._fields:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                if chunked or value.lower() != _CHUNKED:
                    self._refuse(501, "transfer_encoding", "the only transfer encoding that is accepted is chunked")
                chunked = True
        return length, chunked


class RequestReader(_Reader):
    """Reads a client's requests. A second request must not begin before the first was answered: see `busy`.

    Attributes:
        busy: whether a request is being answered; the owner resets it. What arrives meanwhile is dropped.
        pipelined: whether something was dropped: the connection must end after the answer.
    """

    __slots__ = ("_ignored", "_sink", "_target", "busy", "pipelined", "rest")

    def __init__(self, sink: RequestSink) -> None:
        super().__init__()
        self._sink = sink
        self._target = b""
        self._ignored = False
        self._parser = httptools.HttpRequestParser(self)
        self.busy = False
        self.pipelined = False
        self.rest = b""  # what followed a request to switch protocols

    def feed(self, data: bytes) -> None:
        """Parses more bytes.

        Raises:
            MessageError: they are refused; the connection must end.
        """
        rest = self._parse(data)
        if rest is not None:
            self.rest = rest

    def on_message_begin(self) -> None:
        """A request begins."""
        self._ignored = self.busy
        if self.busy:
            self.pipelined = True
        self._fields = []
        self._target = b""
        self._head_bytes = self._trailers = 0
        self._in_head = True

    def on_url(self, part: bytes) -> None:
        """A part of the target."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            self._refuse(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._bare_bytes = 0
        if self._ignored:
            return
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):  # a request line without a version is HTTP/0.9 to the parser
            self._refuse(505, "http_version", "the only versions that are accepted are HTTP/1.0 and HTTP/1.1")
        method = self._parser.get_method()
        length, chunked = self._framing()
        if chunked and version == "1.0":
            self._refuse(400, "malformed", "HTTP/1.0 has no transfer encoding")
        hosts = sum(name == b"host" for name, _ in self._fields)
        if hosts > 1 or (not hosts and version == "1.1"):
            self._refuse(400, "host", "exactly one Host field is required")
        if method == b"CONNECT":
            self._refuse(501, "malformed", "the method CONNECT is not possible here")
        upgrade = first(self._fields, b"upgrade").lower() if self._parser.should_upgrade() else b""
        self.busy = True
        self._sink.request_head(
            RequestHead(
                method=method,
                target=self._target,
                fields=self._fields,
                # The parser ends with a request to switch protocols.
                keep_alive=version == "1.1" and not upgrade and self._parser.should_keep_alive(),
                length=None if chunked else length or 0,
                upgrade=upgrade,
                chunks=version == "1.1",
            )
        )

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if not self._ignored:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The request is complete; the next one's head may begin."""
        if self._pieces:
            self._flush()
        self._in_head = True
        self._bare_bytes = 0
        if not self._ignored:
            self._sink.request_end()

    def _flush(self) -> None:
        self._sink.request_body(self._taken())


class ResponseReader(_Reader):
    """Reads one response. Informational responses are skipped.

    Args:
        sink: gets its parts.
        head_only: the request was HEAD: there is no body whatever the head says.
        upgrade: the request asked to switch protocols: a 101 is an answer, and the stream after it is not read.
    """

    __slots__ = ("_done", "_head_only", "_heads", "_informational", "_sink", "_until_close", "_upgrade")

    def __init__(self, sink: ResponseSink, *, head_only: bool = False, upgrade: bool = False) -> None:
        super().__init__()
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
