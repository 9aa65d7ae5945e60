"""Reads a client's requests from a byte stream: heads and bodies go to a sink, in bounds."""

from typing import Final, Protocol

import httptools

from http1.head import RequestHead, values
from http1.reading import MAX_HEAD_BYTES, MessageError, MessageReader

_VERSIONS: Final = ("1.1", "1.0")  # a request line without a version is HTTP/0.9 to the parser


class RequestSink(Protocol):
    """Gets the parts of requests, in order."""

    def request_head(self, head: RequestHead, *, whole: bool) -> None:
        """A head is complete; `whole`: its body has come with it, and follows at once."""

    def request_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def request_end(self) -> None:
        """The request is complete."""


class RequestReader(MessageReader):
    """Reads a client's requests. A second request must not begin before the first was answered: see `busy`.

    Attributes:
        begun: whether a part of a request has come, and the rest has not.
        busy: whether a request is being answered; the owner resets it. What arrives meanwhile is dropped.
        pipelined: whether something was dropped: the connection must end after the answer.
        rest: what followed a request to switch protocols.
    """

    __slots__ = ("_ended", "_head", "_ignored", "_target", "begun", "busy", "pipelined", "rest")

    def __init__(self, sink: RequestSink) -> None:
        super().__init__(sink)
        self._target = b""
        self._ignored = False
        self._head: RequestHead | None = None  # until it is handed on
        self._ended = False  # whether an end is to be handed on
        self._parser = httptools.HttpRequestParser(self)
        self.begun = False
        self.busy = False
        self.pipelined = False
        self.rest = b""

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
        if self._ended:
            self._hand_on()
        self.begun = True
        self._ignored = self.busy
        if self.busy:
            self.pipelined = True
        self._fields = []
        self._target = b""
        self._trailers = 0
        self._in_head = True

    def on_url(self, part: bytes) -> None:
        """A part of the target."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            self._refuse(MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._end_head()
        if self._ignored:
            return
        parser, fields = self._parser, self._fields
        version, method = parser.get_http_version(), parser.get_method()
        if version not in _VERSIONS:
            message = "the only versions that are accepted are HTTP/1.0 and HTTP/1.1"
            self._refuse(MessageError(505, "http_version", message))
        new = version == "1.1"
        named = dict(reversed(fields))
        length, chunked = self._framing(named)
        if chunked and not new:
            self._refuse(MessageError(400, "malformed", "HTTP/1.0 has no transfer encoding"))
        hosts = len(values(fields, b"host")) if len(named) < len(fields) else b"host" in named
        if hosts > 1 or (not hosts and new):
            self._refuse(MessageError(400, "host", "exactly one Host field is required"))
        if method == b"CONNECT":
            self._refuse(MessageError(501, "malformed", "the method CONNECT is not possible here"))
        upgrade = named.get(b"upgrade", b"").lower() if parser.should_upgrade() else b""
        # The parser ends with a request to switch protocols.
        keep_alive = new and not upgrade and parser.should_keep_alive()
        length = None if chunked else length or 0
        self.busy = True
        self._head = RequestHead(method, self._target, fields, named, keep_alive, length, upgrade, new)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if not self._ignored:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        """The request is complete; the next one's head may begin."""
        self._in_head = True
        self._bare_bytes = 0
        self.begun = False
        self._ended = not self._ignored

    def _hand_on(self) -> None:
        head, self._head = self._head, None
        ended, self._ended = self._ended, False
        if head is not None:
            self._sink.request_head(head, whole=ended)
        if self._pieces:
            self._sink.request_body(self._taken())
        if ended:
            self._sink.request_end()
