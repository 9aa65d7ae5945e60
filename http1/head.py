"""Heads of HTTP/1.1 messages: what was read, and the bytes to write. Pure.

Names of fields are lower-case bytes. Values are as they came, without the white space around them.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias

Fields: TypeAlias = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1, and the older names that intermediaries still meet.
HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
SWITCHING: Final = 101
COPIED_BYTES: Final = 8192  # what is smaller is copied, to be written with what precedes it
_NO_BODY: Final = frozenset((101, 204, 304))
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
_NAMES_NOTHING: Final = frozenset((b"", b"close", b"keep-alive"))  # values of Connection


@dataclass(slots=True)
class RequestHead:
    """A request's head.

    Attributes:
        method: such as b"POST".
        target: as it came: path and query, not decoded.
        fields: in order, names in lower case.
        named: the first value of each field.
        keep_alive: whether the client may send another request on this connection.
        length: bytes of the body; None: chunked.
        upgrade: the protocol that the client asks to switch to, in lower case; empty: none.
        chunks: whether the client understands chunks: HTTP/1.0 does not.
    """

    method: bytes
    target: bytes
    fields: Fields
    named: Mapping[bytes, bytes]
    keep_alive: bool
    length: int | None
    upgrade: bytes = b""
    chunks: bool = True

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return self.length != 0

    @property
    def expects_continue(self) -> bool:
        """Whether the client sends its body only after `100 Continue`."""
        return self.named.get(b"expect", b"").lower() == b"100-continue"


@dataclass(slots=True)
class ResponseHead:
    """A response's head.

    Attributes:
        status: 101 where a switch of protocols was asked for, else 200 to 599.
        fields: in order, names in lower case.
        named: the first value of each field.
        keep_alive: whether the connection can be used again after the body.
        length: bytes of the body; None: chunked, or until the connection's end.
        alone: whether nothing of the body has come with it, and not its end.
    """

    status: int
    fields: Fields
    named: Mapping[bytes, bytes]
    keep_alive: bool
    length: int | None
    alone: bool = True


def first(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The first value of a field; empty without one."""
    for field, value in fields:
        if field == name:
            return value
    return b""


def values(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """All values of a field, in order."""
    return [value for field, value in fields if field == name]


def end_to_end(
    head: RequestHead | ResponseHead, dropped: AbstractSet[bytes] = HOP_BY_HOP, *, prefix: bytes = b"\0"
) -> Fields:
    """The fields that an intermediary passes on: without `dropped`, those that Connection names, and a prefix.

    Args:
        head: that was read.
        dropped: names to leave out; it includes `HOP_BY_HOP`.
        prefix: of names that are left out.
    """
    if b"connection" in head.named:
        named = {token.strip() for value in values(head.fields, b"connection") for token in value.lower().split(b",")}
        if not named <= _NAMES_NOTHING:
            dropped = dropped | named
    return [field for field in head.fields if field[0] not in dropped and not field[0].startswith(prefix)]


def request_bytes(method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request's head as bytes. The caller vouches for the fields: nothing is checked for line breaks."""
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, b"".join([b"%b: %b\r\n" % field for field in fields]))


def response_bytes(status: int, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A response's head as bytes. The caller vouches for the fields: nothing is checked for line breaks."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%b%b\r\n" % (line, b"".join([b"%b: %b\r\n" % field for field in fields]))


def has_body(status: int, method: bytes) -> bool:
    """Whether a response of this status to this method has a body."""
    return status not in _NO_BODY and method != b"HEAD"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
