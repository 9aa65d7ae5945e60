"""Streamed forms with files (multipart/form-data). Of a file only size and digest are kept."""

import hashlib
import re
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Any, Final

from rig.engine.errors import BadRequestError

_MAX_HEAD: Final = 16 * 1024
_MAX_FIELD: Final = 1024 * 1024
_BOUNDARY: Final = re.compile(r'boundary="?([^";]+)"?')
_NAME: Final = re.compile(r'[; ]name="([^"]*)"')
_FILE: Final = re.compile(r"[; ]filename\*?=")


@dataclass(slots=True)
class FormData:
    """A form: texts of fields by name, and its files."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)  # name, bytes, sha256


class _Part:
    def __init__(self, head: str) -> None:
        name = _NAME.search(head)
        if name is None:
            raise BadRequestError("body", "the form has a part without a name")
        self._name = name[1].removesuffix("[]")
        self._is_file = _FILE.search(head) is not None
        self._digest = hashlib.sha256()
        self._size = 0
        self._text = b""

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._is_file:
            self._digest.update(data)
            return
        self._text += data
        if self._size > _MAX_FIELD:
            raise BadRequestError(self._name, f"{self._name}: must be at most {_MAX_FIELD} bytes")

    def finish(self, form: FormData) -> None:
        if self._is_file:
            form.files.append({"name": self._name, "bytes": self._size, "sha256": self._digest.hexdigest()})
        else:
            form.fields[self._name] = self._text.decode(errors="replace")


class _Reader:
    def __init__(self, boundary: str) -> None:
        self.form = FormData()
        self.ended = False
        self._delimiter = b"\r\n--" + boundary.encode("latin-1")
        self._part: _Part | None = None  # None: before the first
        self._in_head = False
        self._rest = b"\r\n"  # the first delimiter may have no line before it

    def feed(self, data: bytes) -> None:
        self._rest += data
        while not self.ended and (self._read_head() if self._in_head else self._read_content()):
            pass

    def _read_head(self) -> bool:
        if self._rest.startswith(b"--"):
            self.ended = True
            return False
        head, complete, following = self._rest.partition(b"\r\n\r\n")
        if not complete:
            if len(head) > _MAX_HEAD:
                raise BadRequestError("body", "the form has a part with too long a head")
            return False
        self._part, self._rest, self._in_head = _Part(head.decode("latin-1")), following, False
        return True

    def _read_content(self) -> bool:
        """Reads up to the next delimiter, which may be incomplete."""
        content, delimiter, following = self._rest.partition(self._delimiter)
        if not delimiter:
            content = self._rest[: 1 - len(self._delimiter)]
            following = self._rest[len(content) :]
        if self._part is not None:
            self._part.feed(content)
            if delimiter:
                self._part.finish(self.form)
        self._rest, self._in_head = following, bool(delimiter)
        return bool(delimiter)


async def read_form(content_type: str, chunks: AsyncIterable[bytes]) -> FormData:
    """Raises BadRequestError if the body is not a complete form."""
    boundary = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or boundary is None:
        raise BadRequestError("body", "Content-Type: must be multipart/form-data with a boundary")
    reader = _Reader(boundary[1])
    async for chunk in chunks:
        reader.feed(chunk)
    if not reader.ended:
        raise BadRequestError("body", "the form is incomplete")
    return reader.form
