"""Heads of HTTP/1.1 messages: what was read, and the bytes to write. Pure.

Names of fields are lower-case bytes. Values are as they came, without the white space around them.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

Fields: TypeAlias = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1, and the older names that intermediaries still meet.
HOP_BY_HOP: Final = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
# What differs between heads that are alike else; each hop has its own way with it.
VARYING: Final = frozenset((b"content-length", b"x-request-id"))
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
SWITCHING: Final = 101
COPIED_BYTES: Final = 8192  # what is smaller is copied, to be written with what precedes it
NO_BODY: Final = frozenset((101, 204, 304))
STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus
}
# What long streams have in place of their fields. All share it, so that it must not change.
_NO_FIELDS: Final = cast("Fields", ())
_NOTHING: Final = cast("dict[Any, Any]", MappingProxyType({}))
_NAMES_NOTHING: Final = frozenset((b"", b"close", b"keep-alive"))  # values of Connection


@dataclass(slots=True)
class RequestHead:
    """A request's head.

    Attributes:
        target: path and query as they came, not decoded.
        fields: names, in lower case, and values, in order.
        named: the first value of each field.
        keep_alive: the client may send another request on this connection.
        length: bytes of the body; None: chunked.
        upgrade: the protocol that the client requests to switch to, in lower case; empty: none.
        chunks: the client understands chunks: HTTP/1.0 does not.
        body: all of it, where it has come with the head; see `take_body`.
        alike: results for all heads that differ only in `VARYING`.
        first: the start of a body that has come with the head, where more follows; see `take_first`.
    """

    method: bytes
    target: bytes
    fields: Fields
    named: dict[bytes, bytes]
    keep_alive: bool
    length: int | None
    upgrade: bytes = b""
    chunks: bool = True
    body: bytes | None = None
    alike: dict[Any, Any] = attribute(default_factory=dict)
    first: memoryview | None = None

    @property
    def path(self) -> bytes:
        """The target without its query."""
        return self.target.partition(b"?")[0]

    @property
    def has_body(self) -> bool:
        return self.length != 0

    def take_body(self) -> bytes | None:
        """The complete body, where it has come with the head and was not taken yet.

        A handler that takes it when it gets the head is not called with it; see `Handler`.
        """
        body, self.body = self.body, None
        return body

    def take_first(self) -> memoryview | None:
        """The beginning of the body, uncopied, where it has come with the head; as `take_body`."""
        first, self.first = self.first, None
        return first

    @property
    def expects_continue(self) -> bool:
        """Whether the client sends its body only after `100 Continue`."""
        return self.named.get(b"expect", b"").lower() == b"100-continue"

    def drop_fields(self) -> None:
        """Frees the fields of a long stream, which needs them no longer."""
        self.fields, self.named, self.alike = _NO_FIELDS, _NOTHING, _NOTHING

    @property
    def plain(self) -> bool:
        """Whether nothing but a body of a stated length can follow, and another request."""
        unusual = self.upgrade or not self.chunks or b"transfer-encoding" in self.named or b"expect" in self.named
        return self.keep_alive and not unusual

    def begins(self, line: bytes) -> bool:
        return line == b"%b %b HTTP/1.1" % (self.method, self.target)

    def maker(self) -> "Callable[[Fields, dict[bytes, bytes], bool, int], RequestHead]":
        """Makes plain heads like this one, but for the fields of `VARYING`."""
        return partial(RequestHead, self.method, self.target, alike=self.alike)


@dataclass(slots=True)
class ResponseHead:
    """A response's head.

    Attributes:
        status: 101 where a switch of protocols was requested, else 200 to 599.
        fields: names, in lower case, and values, in order.
        named: the first value of each field.
        keep_alive: the connection can be used again after the body.
        length: bytes of the body; None: chunked, or until the connection's end.
        alone: nothing of the body has come with it, and not its end.
        alike: results for all heads that differ only in `VARYING`.
    """

    status: int
    fields: Fields
    named: dict[bytes, bytes]
    keep_alive: bool
    length: int | None
    alone: bool = True
    alike: dict[Any, Any] = attribute(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether nothing but a body of a stated length can follow, and another response."""
        return self.keep_alive and self.status not in NO_BODY and b"transfer-encoding" not in self.named

    def begins(self, line: bytes) -> bool:
        return line.startswith(b"HTTP/1.1 %d" % self.status)

    def maker(self) -> "Callable[[Fields, dict[bytes, bytes], bool, int], ResponseHead]":
        """Makes plain heads like this one, but for the fields of `VARYING`."""
        return partial(ResponseHead, self.status, alike=self.alike)


def first(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The first value of a field; empty without one."""
    return next((value for field, value in fields if field == name), b"")


def values(fields: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """All values of a field, in order."""
    return [value for field, value in fields if field == name]


def end_to_end(
    head: RequestHead | ResponseHead,
    dropped: AbstractSet[bytes] = HOP_BY_HOP,
    *,
    prefix: bytes | tuple[bytes, ...] = b"\0",
) -> Fields:
    """The fields that an intermediary passes on: without `dropped`, those that Connection names, and `prefix`.

    `dropped` includes `HOP_BY_HOP`.
    """
    if b"connection" in head.named:
        named = {token.strip() for value in values(head.fields, b"connection") for token in value.lower().split(b",")}
        if not named <= _NAMES_NOTHING:
            dropped = dropped | named
    return [field for field in head.fields if field[0] not in dropped and not field[0].startswith(prefix)]


@dataclass(frozen=True, slots=True, eq=False)
class PassedOn:
    """Fields that an intermediary passes on: not these, nor those that Connection names, nor those of `VARYING`.

    `dropped` includes `HOP_BY_HOP`; `passes` judges the other names.
    """

    dropped: AbstractSet[bytes]
    prefix: bytes | tuple[bytes, ...] = b"\0"
    passes: Callable[[bytes], bool] | None = None

    def lines(self, head: RequestHead | ResponseHead) -> bytes:
        """Their lines, which are the same for all heads that are alike, and kept in their `alike` by this object."""
        lines: bytes | None = head.alike.get(self)
        if lines is None:
            fields = end_to_end(head, self.dropped | VARYING, prefix=self.prefix)
            passes = self.passes
            lines = lines_of(fields if passes is None else [field for field in fields if passes(field[0])])
            head.alike[self] = lines
        return lines


def lines_of(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The lines of fields. The caller vouches for them: nothing is checked for line breaks."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


def request_bytes(method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A request's head as bytes; as `lines_of`."""
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, lines_of(fields))


def response_bytes(status: int, lines: bytes) -> bytes:
    """A response's head as bytes, from the lines of its fields."""
    return b"%b%b\r\n" % (status_line(status), lines)


def status_line(status: int) -> bytes:
    """The first line of a response, with its end."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
