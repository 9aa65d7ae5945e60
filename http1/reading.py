"""What reading a request and reading a response share: httptools parses, in bounds.

httptools (llhttp, strict) refuses what smuggles requests: a length beside chunks, two lengths, a bare line feed, a
folded field. This adds bounds, what a message's framing is, and what a server must refuse beyond that.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import httptools

from http1.head import Fields, values

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 128
_CHUNKED: Final = [b"chunked"]


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


class MessageReader:
    """Fields of a head, pieces of a body, and their bounds. A subclass hands them to its sink."""

    __slots__ = ("_bare_bytes", "_fields", "_in_head", "_parser", "_pieces", "_problem", "_sink", "_trailers")

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._fields: Fields = []
        self._pieces: list[bytes] = []  # of a body, read since the sink was last called
        self._bare_bytes = 0  # read since the last that was of use: heads, trailers, chunk extensions
        self._trailers = 0
        self._in_head = True
        self._problem: MessageError | None = None
        self._parser: Any = None

    def _parse(self, data: bytes) -> bytes | None:
        """Parses more bytes and hands on what they hold; returns what follows a switch of protocols, None without one.

        What came before bytes that are refused is handed on, too: how a stream is cut makes no difference.
        """
        self._bare_bytes += len(data)
        rest: bytes | None = None
        problem: Exception | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            problem = self._problem or (cause if isinstance(cause, Exception) else error)
        except httptools.HttpParserError as error:
            problem = MessageError(400, "malformed", f"not a valid HTTP/1.1 message: {error}")
        self._hand_on()
        if problem is not None:
            raise problem from None
        if self._bare_bytes > MAX_HEAD_BYTES:
            if self._in_head:
                raise _head_too_large()
            raise MessageError(400, "malformed", "a body with too much beside its bytes")
        return rest

    def close(self) -> None:
        """Nothing more will be read: reader, parser and sink let go of one another; none awaits a collection."""
        self._parser = self._sink = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One field; also called for trailers, which are dropped."""
        if not self._in_head:
            self._trailers += 1
            if self._trailers > MAX_FIELDS:
                self._refuse(MessageError(400, "malformed", f"more than {MAX_FIELDS} trailers"))
            return
        if len(self._fields) >= MAX_FIELDS:
            self._refuse(MessageError(431, "too_many_fields", f"the head has more than {MAX_FIELDS} fields"))
        self._fields.append((name.lower(), value.strip(b" \t")))

    def _hand_on(self) -> None:
        """Hands on what was parsed: a head, the pieces of a body as one, an end."""
        raise NotImplementedError

    def _end_head(self) -> None:
        """Checks the size of a complete head. What came since the last bytes of use is at least as much."""
        if self._bare_bytes > MAX_HEAD_BYTES and sum(map(_field_bytes, self._fields)) > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        self._in_head = False
        self._bare_bytes = 0

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._bare_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _refuse(self, problem: MessageError) -> NoReturn:
        self._problem = problem
        raise problem

    def _framing(self, named: Mapping[bytes, bytes]) -> tuple[int | None, bool]:
        """Length of the body, if stated, and whether it is chunked. The parser lets no two lengths pass."""
        length = named.get(b"content-length")
        if b"transfer-encoding" not in named:
            return None if length is None else int(length), False
        if [value.lower() for value in values(self._fields, b"transfer-encoding")] != _CHUNKED:
            message = "the only transfer encoding that is accepted is chunked"
            self._refuse(MessageError(501, "transfer_encoding", message))
        return None, True


def _field_bytes(field: tuple[bytes, bytes]) -> int:
    return len(field[0]) + len(field[1]) + 4


def _head_too_large() -> MessageError:
    return MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")
