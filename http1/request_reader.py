"""Reads a client's requests from a byte stream: heads and bodies go to a sink, in bounds."""

from typing import Any, Final, Protocol

import httptools

from http1.head import Fields, RequestHead, request_bytes, values
from http1.known_heads import KnownHeads
from http1.reading import MAX_HEAD_BYTES, MessageError, MessageReader

_VERSIONS: Final = ("1.1", "1.0")  # a request line without a version is HTTP/0.9 to the parser

_WEBSOCKET: Final = b"websocket"  # the only protocol that anything here switches to

_KNOWN: Final = KnownHeads[RequestHead]()


class RequestSink(Protocol):
    """Gets the parts of requests, in order."""

    def request_head(self, head: RequestHead, *, whole: bool) -> None:
        """A head is complete; `whole`: so is the request. Then its body is in the head, and nothing follows.

        What the sink takes of the body from the head is not handed to it once more.
        """

    def request_body(self, data: bytes) -> None:
        """A part of the body, never empty."""

    def request_end(self) -> None:
        """The request is complete."""


class RequestReader(MessageReader):
    """Reads a client's requests. A second request must not begin before the first was answered: see `busy`.

    What follows a request in the same bytes is dropped, too, even where that was answered within the call: else the
    requests of one read would keep the loop, and their answers memory.

    Attributes:
        begun: whether a part of a request has come, and the rest has not.
        busy: whether a request is being answered; the owner resets it. What arrives meanwhile is dropped.
        pipelined: whether something was dropped: the connection must end after the answer.
        rest: what followed a request to switch protocols; the owner keeps it here until the switch.
        on_url: the parser calls it with each part of a target.
    """

    __slots__ = ("_declined", "_ended", "_head", "_ignored", "_target", "begun", "busy", "on_url", "pipelined", "rest")

    def __init__(self, sink: RequestSink) -> None:
        super().__init__(sink)
        self._target: list[bytes] = []  # its parts
        self.on_url = self._target.append
        self._ignored = False
        # While the parser ends with an offer to switch protocols that is ignored: a head that frames the same body,
        # and nothing where there is no body.
        self._declined: bytes | None = None
        self._head: RequestHead | None = None  # until it is handed on
        self._ended = False  # whether an end is to be handed on
        self._fresh = True
        self.begun = False
        self.busy = False
        self.pipelined = False
        self.rest = b""

    def _new_parser(self) -> Any:
        return httptools.HttpRequestParser(self)

    def _after_switch(self, rest: bytes) -> bytes:
        """Continues behind an ignored offer, as RFC 9110 (7.8) allows: the parser would drop the body."""
        if self._declined is None:
            return rest
        framing, self._parser = self._declined, self._new_parser()
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
        found = self._read_known(_KNOWN, data)
        if found is None:
            self._unknown = data
            return None
        head, start = found
        left = start + (head.length or 0) - len(data)
        if left < 0:  # a part of the next request
            return None
        self.busy = True
        if left:
            self.begun, self._fresh, self._left = True, False, left
            if start < len(data):
                head.first = memoryview(data)[start:]
            self._sink.request_head(head, whole=False)
            if head.take_first() is not None:
                self._sink.request_body(data[start:])
        else:
            if head.length:
                head.body = data[start:]
            self._sink.request_head(head, whole=True)
        return b""

    def _count(self, data: bytes) -> bytes:
        """A part of a body whose head was known."""
        left = self._left - len(data)
        self._left = max(left, 0)
        self._sink.request_body(data[:left] if left < 0 else data)
        if left <= 0:
            self.begun, self._fresh = False, True
            self.pipelined = self.pipelined or left < 0
            self._sink.request_end()
        return self.feed(data[left:]) if left < 0 else b""

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._declined is not None:
            return
        if self._ended:
            self.pipelined = True  # before the answer, which may come within the call
            self._hand_on(None)
        self.begun, self._fresh = True, False
        self._ignored = self.busy or self.pipelined
        if self.busy:
            self.pipelined = True
        self._fields = []
        self._target.clear()
        self._trailers = 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._declined is not None:
            return
        unknown, named = self._first_bytes(), self._end_head()
        parser, fields = self._parser, self._fields
        offers = parser.should_upgrade()
        framing = _framing_of(named) if offers else b""
        # Behind a body, which a WebSocket's request has none of, the other protocol would begin too early.
        switches = offers and not self._ignored and not framing and _opens_websocket(parser.get_method(), fields)
        self._declined = framing if offers and not switches else None
        if self._ignored:
            return
        version, method = parser.get_http_version(), parser.get_method()
        if version not in _VERSIONS:
            message = "the only versions that are accepted are HTTP/1.0 and HTTP/1.1"
            self._refuse(MessageError(505, "http_version", message))
        new = version == "1.1"
        chunked = b"transfer-encoding" in named
        if chunked:
            self._check_coding()
            if not new:
                self._refuse(MessageError(400, "malformed", "HTTP/1.0 has no transfer encoding"))
        hosts = len(values(fields, b"host")) if len(named) < len(fields) else b"host" in named
        if hosts > 1 or (not hosts and new):
            self._refuse(MessageError(400, "host", "exactly one Host field is required"))
        if method == b"CONNECT":
            self._refuse(MessageError(501, "malformed", "the method CONNECT is not possible here"))
        upgrade = _WEBSOCKET if switches else b""
        # The parser ends with a request to switch protocols.
        keep_alive = new and not upgrade and parser.should_keep_alive()
        length = None if chunked else int(named.get(b"content-length", 0))  # the parser lets no two lengths pass
        target = self._read_target(fields, named)
        self.busy = True
        self._head = head = RequestHead(method, target, fields, named, keep_alive, length, upgrade, new)
        self._fields = []  # they are the head's
        if unknown:
            _KNOWN.learn(unknown, head)

    def _read_target(self, fields: Fields, named: dict[bytes, bytes]) -> bytes:
        """The target as paths are compared. The authority of an absolute one replaces Host (RFC 9112, 3.2.2)."""
        target = b"".join(self._target)
        if len(target) > MAX_HEAD_BYTES:
            self._refuse(MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes"))
        if target[:1] == b"/":
            return target
        scheme, mark, rest = target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            return target  # such as `*`
        end = min((at for at in map(rest.find, (b"/", b"?", b"#")) if at >= 0), default=len(rest))
        authority, path = rest[:end], rest[end:].partition(b"#")[0]
        if authority:
            fields[:] = [(b"host", authority), *(field for field in fields if field[0] != b"host")]
            named[b"host"] = authority
        return path if path[:1] == b"/" else b"/" + path

    def on_message_complete(self) -> None:
        """The request is complete; the next one's head may begin."""
        if self._declined is not None:
            return  # the parser takes a body for the other protocol
        self._in_head = True
        self._bare_bytes = 0
        self.begun, self._fresh = False, True
        self._ended = not self._ignored

    def _hand_on(self, problem: Exception | None) -> None:
        head, ended = self._head, self._ended
        self._head, self._ended = None, False
        if self._ignored and not ended:
            self._pieces.clear()
        if head is not None and ended:
            if head.length != 0:
                head.body = self._taken() if self._pieces else b""
            self._sink.request_head(head, whole=True)
        else:
            if head is not None:
                self._sink.request_head(head, whole=False)
            if self._pieces:
                self._sink.request_body(self._taken())
            if ended:
                self._sink.request_end()
        if problem is not None:
            raise problem from None


def _opens_websocket(method: bytes, fields: Fields) -> bool:
    """Whether a request that offers other protocols is one that a handler here switches for (RFC 6455, 4.1)."""
    offered = {token.strip() for value in values(fields, b"upgrade") for token in value.lower().split(b",")}
    return method == b"GET" and _WEBSOCKET in offered


def _framing_of(named: dict[bytes, bytes]) -> bytes:
    """A head after which the parser reads the same body, and which offers no other protocol; b"" without a body."""
    length = named.get(b"content-length", b"0")
    framing = (b"content-length", length)
    if b"transfer-encoding" in named:
        framing = (b"transfer-encoding", b"chunked")
    elif not int(length):
        return b""
    return request_bytes(b"POST", b"/", [(b"host", b""), framing])
