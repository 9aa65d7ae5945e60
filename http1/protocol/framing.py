"""Checks of a parsed head: its bounds, what body it frames, and what is refused beyond the parser's checks. Pure."""

from typing import Any, Final

from http1.protocol.heads import NO_BODY, SWITCHING, Fields, RequestHead, ResponseHead, request_bytes, values

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 128
_CHUNKED: Final = [b"chunked"]
_VERSIONS: Final = ("1.1", "1.0")  # a request line without a version is HTTP/0.9 to the parser
_WEBSOCKET: Final = b"websocket"  # the only protocol that anything here switches to
_CONTINUE: Final = 100
_NEVER_FRAMED: Final = (100, 102, 103)  # behind other informational heads the parser reads a body that they state
_FIRST_FINAL: Final = 200
_LAST_FINAL: Final = 599


class MessageError(Exception):
    """The peer's bytes are not an acceptable HTTP/1.1 message. A server answers with `status` and `code`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def head_too_large() -> MessageError:
    return MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")


def mostly_frames() -> MessageError:
    return MessageError(400, "malformed", "a body with too much beside its bytes; send it in larger chunks")


def first_values(fields: Fields, read_bytes: int) -> dict[bytes, bytes]:
    """The first value of each field of a head within its bounds. `read_bytes`: no fewer than the head has.

    Raises:
        MessageError: it has too many fields or bytes.
    """
    if len(fields) > MAX_FIELDS:
        raise MessageError(431, "too_many_fields", f"the head has more than {MAX_FIELDS} fields")
    if read_bytes > MAX_HEAD_BYTES and sum(len(name) + len(value) + 4 for name, value in fields) > MAX_HEAD_BYTES:
        raise head_too_large()
    return dict(reversed(fields))


def request_head(parser: Any, target: bytes, fields: Fields, named: dict[bytes, bytes], switches: bool) -> RequestHead:
    """The head that the parser has read. An absolute target replaces Host.

    Raises:
        MessageError: a server must refuse it.
    """
    version, method = parser.get_http_version(), parser.get_method()
    if version not in _VERSIONS:
        raise MessageError(505, "http_version", "the only versions that are accepted are HTTP/1.0 and HTTP/1.1")
    new = version == "1.1"
    chunked = b"transfer-encoding" in named
    if chunked:
        _check_coding(fields)
        if not new:
            raise MessageError(400, "malformed", "HTTP/1.0 has no transfer encoding")
    hosts = len(values(fields, b"host")) if len(named) < len(fields) else b"host" in named
    if hosts > 1 or (not hosts and new):
        raise MessageError(400, "host", "exactly one Host field is required")
    if method == b"CONNECT":
        raise MessageError(501, "malformed", "the method CONNECT is not possible here")
    # The parser ends with a request to switch protocols.
    keep_alive = new and not switches and parser.should_keep_alive()
    length = None if chunked else int(named.get(b"content-length", 0))  # the parser lets no two lengths pass
    path = _path_of(target, fields, named)
    return RequestHead(method, path, fields, named, keep_alive, length, _WEBSOCKET if switches else b"", new)


def _path_of(target: bytes, fields: Fields, named: dict[bytes, bytes]) -> bytes:
    """The target as paths are compared. The authority of an absolute one replaces Host (RFC 9112, 3.2.2)."""
    if len(target) > MAX_HEAD_BYTES:
        raise head_too_large()
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


def opens_websocket(method: bytes, fields: Fields) -> bool:
    """Whether a request that offers other protocols is one that a handler here switches for (RFC 6455, 4.1)."""
    offered = {token.strip() for value in values(fields, b"upgrade") for token in value.lower().split(b",")}
    return method == b"GET" and _WEBSOCKET in offered


def head_framing_alike(named: dict[bytes, bytes]) -> bytes:
    """A head after which the parser reads the same body, and which offers no other protocol; b"" without a body."""
    length = named.get(b"content-length", b"0")
    framing = (b"content-length", length)
    if b"transfer-encoding" in named:
        framing = (b"transfer-encoding", b"chunked")
    elif not int(length):
        return b""
    return request_bytes(b"POST", b"/", [(b"host", b""), framing])


def is_informational(status: int) -> bool:
    """Whether another head follows."""
    # Below 100 there is no such status: the parser takes a body after it, as after a final one.
    return _CONTINUE <= status < _FIRST_FINAL and status != SWITCHING


def asks_for_body(status: int, fields: Fields) -> bool:
    """Whether an informational head is `100 Continue`.

    Raises:
        MessageError: the parser would read a body behind it.
    """
    if status not in _NEVER_FRAMED and any(map(_frames_body, fields)):
        raise MessageError(502, "malformed", "an informational answer with a body")
    return status == _CONTINUE


def response_head(
    parser: Any, fields: Fields, named: dict[bytes, bytes], *, head_only: bool, upgrade: bool
) -> ResponseHead:
    """The final head that the parser has read; it may be followed by a body until the connection's end.

    Raises:
        MessageError: a client must refuse it.
    """
    status = parser.get_status_code()
    switching = upgrade and status == SWITCHING
    if not (_FIRST_FINAL <= status <= _LAST_FINAL or switching):
        raise MessageError(502, "status", f"status {status}")
    chunked = b"transfer-encoding" in named
    if chunked:
        _check_coding(fields)
    length = None if chunked or b"content-length" not in named else int(named[b"content-length"])
    bodiless = head_only or status in NO_BODY
    ends = bodiless or length is not None or chunked
    keep_alive = parser.should_keep_alive() and ends and not switching
    return ResponseHead(status, fields, named, keep_alive, 0 if bodiless else length)


def _check_coding(fields: Fields) -> None:
    if [value.lower() for value in values(fields, b"transfer-encoding")] != _CHUNKED:
        message = "the only transfer encoding that is accepted is chunked"
        raise MessageError(501, "transfer_encoding", message)


def _frames_body(field: tuple[bytes, bytes]) -> bool:
    name, value = field
    return name == b"transfer-encoding" or (name == b"content-length" and bool(value.strip(b"0")))
