"""A cursor over the beginning of an untrusted file. It never reads beyond the file or a size limit."""

import struct
from typing import Final

from controller.model_files.errors import MetadataError
from controller.model_files.files import ModelFiles, where

MAX_HEADER_BYTES: Final = 64 * 2**20  # the largest vocabularies take about 12 MiB
_FIRST_BYTES: Final = 2**20  # then twice as much each time, so that few requests reach a hub
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Cursor:
    """A position in a file. Every step forward is checked first.

    Raises:
        MetadataError: terminal if a step would leave the file, retryable if it cannot be read; names the file.
    """

    def __init__(self, files: ModelFiles, name: str) -> None:
        self._files, self._name = files, name
        self._end = min(files.sizes[name], MAX_HEADER_BYTES)
        self._buffer = b""
        self.at = 0

    def invalid(self, what: str, *, retryable: bool = False) -> MetadataError:
        """The error for an invalid file; retryable if it may still be copied."""
        return MetadataError(f"{where(self._files, self._name)}: {what}; replace the file", retryable=retryable)

    def skip(self, length: int) -> int:
        """Moves forward, and returns the position before."""
        at = self.at
        if length > self._end - at:
            raise self.invalid(f"its header exceeds the {self._end} bytes that may be read")
        self.at = at + length
        if self.at > len(self._buffer):
            self._fill()
        return at

    def u32(self) -> int:
        at = self.skip(4)
        return int(_U32.unpack_from(self._buffer, at)[0])

    def u64(self) -> int:
        at = self.skip(8)
        return int(_U64.unpack_from(self._buffer, at)[0])

    def take(self, length: int) -> bytes:
        at = self.skip(length)
        return self._buffer[at : at + length]

    def text(self, max_bytes: int) -> str | None:
        """A string: its length, then UTF-8. None if it is longer than the limit or not UTF-8."""
        length = self.u64()
        if length > max_bytes:
            self.skip(length)
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            return None

    def _fill(self) -> None:
        wanted = min(max(self.at, 2 * len(self._buffer), _FIRST_BYTES), self._end)
        self._buffer += self._files.read(self._name, len(self._buffer), wanted - len(self._buffer))
        if len(self._buffer) < wanted:  # truncated since its size was read
            raise MetadataError(f"{where(self._files, self._name)} was truncated while it was read", retryable=True)
