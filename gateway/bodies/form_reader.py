"""What the gateway reads of a form (multipart/form-data): its model, and that all parts are in the grammar. Pure."""

from enum import Enum, auto
from hashlib import sha256
from typing import Final

from gateway.bodies.form_grammar import FORM, MODEL, Part, boundary_of, media_type, part_of
from gateway.bodies.parameters import TRUE, BadRequestError

_LINE_END: Final = b"\r\n"
_HEAD_END: Final = b"\r\n\r\n"
_CLOSED: Final = b"--"
_AFTER_END: Final = b"\r\n\r\n"  # some clients send one line end, some two, some none
_MOST_HEAD_BYTES: Final = 16 * 1024  # of a part
_MOST_NAME_BYTES: Final = 1024  # of the model
_STREAM: Final = "stream"
_MOST_STREAM_BYTES: Final = 8  # more than any word for true has
_MOST_PARTS: Final = 1000


class _Place(Enum):
    """What the bytes that are not decided upon begin with."""

    START = auto()  # the first delimiter, without anything before it
    DELIMITED = auto()  # what follows a delimiter
    HEAD = auto()  # a part's head, with the line end before it
    CONTENT = auto()
    ENDED = auto()  # what follows the form


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is a form with parts."""
    return media_type(content_type) == FORM


def model_part(name: str) -> bytes:
    """The part that names a model, from the line behind its delimiter to the next one's line end."""
    return b'Content-Disposition: form-data; name="model"\r\n\r\n' + name.encode()


class FormReader:
    """Finds the model in a form that is fed in parts. Each byte costs the same, whatever the parts.

    Attributes:
        model: the field's value; None until it has come.
        span: its part, from its head to the end of its value: see `model_part`.
        text_bytes: bytes of fields that are no files, so far.

    Raises:
        BadRequestError: the type states no boundary.
    """

    __slots__ = (
        *("_content_bytes", "_dashes", "_digest", "_head_at", "_part", "_parts", "_passed", "_place", "_rest"),
        *("_searched", "_stream", "_value", "model", "span", "text_bytes"),
    )

    def __init__(self, content_type: bytes) -> None:
        self._dashes = b"--" + boundary_of(content_type)
        self.model: str | None = None
        self.span = (0, 0)
        self.text_bytes = 0
        self._place = _Place.START
        self._rest = bytearray()  # what is not decided upon
        self._passed = 0  # bytes of the body before that
        self._searched = 0  # bytes of it in which no end of a head begins
        self._parts = 0
        self._part = Part("", None)
        self._head_at = 0  # where the part's head began in the body
        self._content_bytes = 0  # bytes of the part's content so far
        self._digest = sha256()
        self._value = b""  # the model's content, so far
        self._stream = b""  # the beginning of the content of `stream`

    @property
    def streams(self) -> bool:
        """Whether the form, as far as it came, requests a stream of events."""
        return self._stream.decode("latin-1").lower() in TRUE

    def feed(self, data: bytes) -> None:
        """Reads the next piece.

        Raises:
            BadRequestError: it is not a valid form, or has no model or a second one.
        """
        self._rest += data
        while self._read():
            pass

    def end(self) -> None:
        if self._place is not _Place.ENDED:
            raise _missing() if self.model is None else BadRequestError("body: the form breaks off; send all of it")

    @property
    def digest(self) -> bytes:
        """A digest of the fields, whatever the boundary: clients choose another at each try. Empty: incomplete."""
        return self._digest.digest() if self._place is _Place.ENDED else b""

    def _read(self) -> bool:
        """Advances by one step; returns whether another may follow."""
        match self._place:
            case _Place.START:
                return self._start()
            case _Place.DELIMITED:
                return self._delimited()
            case _Place.HEAD:
                return self._head()
            case _Place.CONTENT:
                return self._content()
            case _Place.ENDED:
                if not _AFTER_END.startswith(self._rest):
                    raise BadRequestError("body: has bytes after the end of the form; leave them out")
                return False

    def _start(self) -> bool:
        size = len(self._dashes)
        if not self._dashes.startswith(self._rest[:size]):
            raise BadRequestError("body: the form must begin with the boundary of its Content-Type; write --BOUNDARY")
        if len(self._rest) < size:
            return False
        self._pass(size)
        self._place = _Place.DELIMITED
        return True

    def _delimited(self) -> bool:
        follows = bytes(self._rest[:2])
        if follows in (b"", _CLOSED[:1], _LINE_END[:1]):
            return False
        if follows == _CLOSED:
            if self.model is None:
                raise _missing()
            self._pass(len(_CLOSED))
            self._place = _Place.ENDED
        elif follows == _LINE_END:
            self._place, self._searched = _Place.HEAD, 0
        else:
            raise BadRequestError("body: after the boundary of a form must follow a line end (CRLF) or --")
        return True

    def _head(self) -> bool:
        rest, end = self._rest, self._rest.find(_HEAD_END, self._searched)
        if (len(rest) if end < 0 else end) > _MOST_HEAD_BYTES:
            raise BadRequestError(f"body: a part of the form has a head of more than {_MOST_HEAD_BYTES} bytes")
        if end < 0:
            self._searched = max(len(rest) - len(_HEAD_END) + 1, 0)
            return False
        self._begin_part(bytes(rest[len(_LINE_END) : end]))
        self._head_at = self._passed + len(_LINE_END)
        self._pass(end + len(_HEAD_END))
        self._place = _Place.CONTENT
        return True

    def _begin_part(self, head: bytes) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise BadRequestError(f"body: the form has more than {_MOST_PARTS} parts")
        if self._dashes in head:
            raise _boundary_inside()
        self._part, self._content_bytes = part_of(head), 0
        self._digest.update(b"%d\0%b" % (len(head), head))
        if self._part.name == MODEL and self.model is not None:
            raise BadRequestError("model: must be given once, got it twice", MODEL)

    def _content(self) -> bool:
        """Reads to the next delimiter, of which a part may not have come yet."""
        at = self._rest.find(self._dashes)
        if at < 0:
            self._pass_content(max(len(self._rest) - len(self._dashes) - 1, 0))
            return False
        size = at - len(_LINE_END)
        if size < 0 or self._rest[size:at] != _LINE_END:
            raise _boundary_inside()
        self._pass_content(size)
        if self._part.length not in (None, self._content_bytes):
            raise BadRequestError("body: Content-Length of a part is not the length of its content; leave it out")
        self._digest.update(b"\0%d" % self._content_bytes)  # no content can pass for the head behind it
        if self._part.name == MODEL:
            self._end_model()
        self._pass(len(_LINE_END) + len(self._dashes))
        self._place = _Place.DELIMITED
        return True

    def _pass_content(self, size: int) -> None:
        self._content_bytes += size
        self.text_bytes += 0 if self._part.is_file else size
        self._digest.update(self._rest[:size])
        if self._part.name == MODEL:
            self._value += self._rest[:size]
            if len(self._value) > _MOST_NAME_BYTES:
                raise BadRequestError(f"model: must have at most {_MOST_NAME_BYTES} bytes", MODEL)
        elif self._part.name == _STREAM:
            self._stream = (self._stream + self._rest[:size])[:_MOST_STREAM_BYTES]
        self._pass(size)

    def _pass(self, size: int) -> None:
        del self._rest[:size]
        self._passed += size

    def _end_model(self) -> None:
        try:
            self.model = self._value.decode()
        except UnicodeDecodeError as error:
            raise BadRequestError("model: must be UTF-8", MODEL) from error
        if not self.model:
            raise _missing()
        if not self.model.isprintable():
            raise BadRequestError("model: must be one line of plain text; leave out line breaks", MODEL)
        self.span = (self._head_at, self._passed)


def _missing() -> BadRequestError:
    return BadRequestError("model: is required; write the name of a deployment into a field of the form", MODEL)


def _boundary_inside() -> BadRequestError:
    return BadRequestError("body: the form's boundary stands inside a part; choose one that no part contains")
