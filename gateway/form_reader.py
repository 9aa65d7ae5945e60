"""What the gateway reads of a form (multipart/form-data): the field `model`. Pure; all other bytes pass unseen."""

import re
from typing import Final

from gateway.request_body import BadRequestError

_FORM: Final = b"multipart/form-data"
_BOUNDARY: Final = re.compile(rb';\s*boundary=(?:"([^"]{1,200})"|([^\s;",]{1,200}))', re.IGNORECASE)
_DISPOSITION: Final = re.compile(rb"(?:^|\r\n)content-disposition[ \t]*:([^\r]*)", re.IGNORECASE)
_NAME: Final = re.compile(rb';[ \t]*name[ \t]*=[ \t]*(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)
_FILE: Final = re.compile(rb";[ \t]*filename\*?[ \t]*=", re.IGNORECASE)
_MOST_HEAD_BYTES: Final = 16 * 1024  # of a part
_MOST_NAME_BYTES: Final = 1024  # of the model
_MOST_PARTS: Final = 1000


def is_form(content_type: bytes) -> bool:
    """Whether a body of this type is a form with parts."""
    return content_type.lower().startswith(_FORM)


class FormReader:
    """Finds the model in a form that is fed piece by piece, and refuses a second one.

    Args:
        content_type: of the request.

    Attributes:
        model: the field's value; None: it did not come yet.
        span: where the value stands in the body.

    Raises:
        BadRequestError: the type states no boundary.
    """

    __slots__ = ("_at", "_delimiter", "_in_head", "_of_model", "_parts", "_rest", "_value", "ended", "model", "span")

    def __init__(self, content_type: bytes) -> None:
        found = _BOUNDARY.search(content_type)
        if found is None:
            raise BadRequestError("Content-Type: multipart/form-data needs a boundary")
        self.model: str | None = None
        self.span = (0, 0)
        self.ended = False
        self._delimiter = b"\r\n--" + (found[1] or found[2])
        self._rest = b"\r\n"  # the first delimiter may have no line before it
        self._at = -2  # of what is left, in the body
        self._in_head = self._of_model = False
        self._value = b""
        self._parts = 0

    def feed(self, data: bytes) -> None:
        """Reads the next piece.

        Raises:
            BadRequestError: it is not a valid form, or names a second model.
        """
        self._rest += data
        while not self.ended and (self._head() if self._in_head else self._content()):
            pass

    def _head(self) -> bool:
        """Reads what follows a delimiter: the end, or the head of a part."""
        rest = self._rest
        if rest.startswith(b"--"):
            self.ended, self._rest = True, b""
            return False
        end = rest.find(b"\r\n\r\n")
        if end < 0:
            if len(rest) > _MOST_HEAD_BYTES:
                raise BadRequestError(f"body: a part of the form has a head of more than {_MOST_HEAD_BYTES} bytes")
            return False
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise BadRequestError(f"body: the form has more than {_MOST_PARTS} parts")
        self._of_model = _names_model(rest[:end])
        if self._of_model and self.model is not None:
            raise BadRequestError("model: must be given once, got it twice", "model")
        self._skip(end + 4)
        self._in_head = False
        return True

    def _content(self) -> bool:
        """Reads to the next delimiter, of which a part may not have come yet."""
        rest, end = self._rest, self._rest.find(self._delimiter)
        found = end >= 0
        size = end if found else max(len(rest) - len(self._delimiter) + 1, 0)
        if self._of_model:
            self._value += rest[:size]
            if len(self._value) > _MOST_NAME_BYTES:
                raise BadRequestError(f"model: must have at most {_MOST_NAME_BYTES} bytes", "model")
        self._skip(size)
        if found:
            if self._of_model:
                self._model_ends()
            self._skip(len(self._delimiter))
            self._in_head = True
        return found

    def _skip(self, size: int) -> None:
        self._rest = self._rest[size:]
        self._at += size

    def _model_ends(self) -> None:
        value, self._value, self._of_model = self._value, b"", False
        try:
            self.model = value.decode()
        except UnicodeDecodeError as error:
            raise BadRequestError("model: must be UTF-8", "model") from error
        if not self.model:
            raise BadRequestError("model: is required; write the name of a deployment", "model")
        self.span = (self._at - len(value), self._at)


def _names_model(head: bytes) -> bool:
    """Whether a part is the field `model`, and no file."""
    disposition = _DISPOSITION.search(head)
    if disposition is None or _FILE.search(disposition[1]):
        return False
    name = _NAME.search(disposition[1])
    return name is not None and (name[1] or name[2]) == b"model"
