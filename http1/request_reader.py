"""Reads a client's requests from a byte stream: heads and bodies go to a sink, in bounds."""

from typing import Protocol

import httptools

from http1.head import RequestHead, first
from http1.reading import MAX_HEAD_BYTES, MessageReader


class RequestSink(Protocol):
    """Gets the parts of requests, in order."""

    def request_head(self, head: RequestHead) -> None:
        """A head is complete."""

    def request_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def request_end(self) -> None:
        """The request is complete."""


class RequestReader(MessageReader):
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
