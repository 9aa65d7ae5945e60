"""What reading a request and reading a response share: httptools parses, in bounds.

httptools (llhttp, strict) refuses what smuggles requests: a length beside chunks, two lengths, a bare line feed, a
folded field. This adds bounds, what a message's framing is, and what a server must refuse beyond that.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final, NoReturn

import httptools

from http1.head import Fields, values
from http1.known_heads import Known, KnownHeads

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 128
MAX_BESIDE_BYTES: Final = 2**20  # and as many again as the body has: of chunks' heads, extensions and trailers
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


class MessageReader(ABC):
    """Fields of a head, pieces of a body, and their bounds. A subclass hands them to its sink.

    Attributes:
        on_body: the parser calls it with each piece of a body. A list's own method costs no frame for each event.
    """

    __slots__ = (
        *(
            "_bare_bytes",
            "_beside",
            "_fields",
            "_fresh",
            "_in_head",
            "_known",
            "_left",
            "_parser",
            "_pieces",
            "_problem",
            "_sink",
            "_trailers",
        ),
        "_unknown",
        "on_body",
    )
    _most_beside: ClassVar[float] = MAX_BESIDE_BYTES

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._fields: Fields = []
        self._pieces: list[bytes] = []  # of a body, read since the sink was last called
        self.on_body = self._pieces.append
        self._bare_bytes = 0  # read since the last that was of use: heads, trailers, chunk extensions
        self._beside = 0  # bytes of a body's frames, less those of the body
        self._trailers = 0
        self._in_head = True
        self._problem: MessageError | None = None
        self._parser: Any = None  # made for the first message that needs it
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
        if self._pieces:
            problem = problem or self._count_beside()
        elif self._bare_bytes > MAX_HEAD_BYTES and problem is None:
            problem = _head_too_large() if self._in_head else _mostly_frames()
        self._hand_on(problem)
        return rest

    def _parse(self, data: bytes) -> bytes:
        parser = self._parser
        if parser is None:
            parser = self._parser = self._new_parser()
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._after_switch(data[upgrade.args[0] :])
        return b""

    def _after_switch(self, rest: bytes) -> bytes:
        """The parser ended with a head that asks to switch protocols; returns the bytes of the other protocol."""
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
            self._refuse(MessageError(400, "malformed", f"more than {MAX_FIELDS} trailers"))

    def _read_known(self, heads: KnownHeads[Any], data: bytes) -> tuple[Any, int] | None:
        """The head with which the bytes begin, mostly like the last one, and its size; None: it must be parsed."""
        found = self._known.read(data) if self._known is not None else None
        if found is None:
            known = self._known = heads.find(data)
            found = known.read(data) if known is not None else None
        return found

    def _first_bytes(self) -> bytes:
        """The bytes that the complete head begins; empty for a head behind others of the same bytes."""
        unknown, self._unknown = self._unknown, b""
        return unknown

    @abstractmethod
    def _new_parser(self) -> Any:
        """A parser of httptools that calls this."""

    @abstractmethod
    def _feed_known(self, data: bytes) -> bytes | None:
        """As `feed`, for a message with a known head, which the parser need not read; None: it must."""

    @abstractmethod
    def _hand_on(self, problem: Exception | None) -> None:
        """Hands on what was parsed: a head, the pieces of a body as one, an end. Then raises the problem, if any."""

    def _cause_of(self, error: httptools.HttpParserError) -> Exception:
        """What the parser or one of its callbacks refused; a defect of ours as it is."""
        if not isinstance(error, httptools.HttpParserCallbackError):
            return MessageError(400, "malformed", f"not a valid HTTP/1.1 message: {error}")
        cause = error.__context__
        return self._problem or (cause if isinstance(cause, Exception) else error)

    def _count_beside(self) -> MessageError | None:
        """Bytes of a body came: refuses one that is mostly frames, since each of them costs what a long one does."""
        self._beside += self._bare_bytes - 2 * sum(map(len, self._pieces))
        self._bare_bytes = 0
        return _mostly_frames() if self._beside > self._most_beside else None

    def _end_head(self) -> dict[bytes, bytes]:
        """Checks the bounds of a complete head; returns the first value of each field."""
        fields = self._fields
        if len(fields) > MAX_FIELDS:
            self._refuse(MessageError(431, "too_many_fields", f"the head has more than {MAX_FIELDS} fields"))
        # What came since the last bytes of use is at least as much.
        if self._bare_bytes > MAX_HEAD_BYTES and sum(map(_field_bytes, fields)) > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        self._in_head = False
        self._bare_bytes = self._beside = 0
        return dict(reversed(fields))

    def _taken(self) -> bytes:
        """The pieces of a body as one; there is at least one."""
        taken = b"".join(self._pieces)  # one alone is not copied
        self._pieces.clear()
        return taken

    def _refuse(self, problem: MessageError) -> NoReturn:
        self._problem = problem
        raise problem

    def _check_coding(self) -> None:
        """Refuses all transfer encodings but one: chunks."""
        if [value.lower() for value in values(self._fields, b"transfer-encoding")] != _CHUNKED:
            message = "the only transfer encoding that is accepted is chunked"
            self._refuse(MessageError(501, "transfer_encoding", message))


def _field_bytes(field: tuple[bytes, bytes]) -> int:
    return len(field[0]) + len(field[1]) + 4


def _mostly_frames() -> MessageError:
    return MessageError(400, "malformed", "a body with too much beside its bytes; send it in larger chunks")


def _head_too_large() -> MessageError:
    return MessageError(431, "head_too_large", f"the head has more than {MAX_HEAD_BYTES} bytes")
