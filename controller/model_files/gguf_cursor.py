"""Goes through the front of a file that nobody vouches for: it never reads beyond the file, nor beyond a limit."""

import struct
from typing import Final

from controller.model_files.errors import MetadataError
from controller.model_files.files import ModelFiles, where

MAX_HEADER_BYTES: Final = 64 * 2**20  # the largest vocabularies take about 12 MiB
_FIRST_BYTES: Final = 2**20  # then twice as much each time, so that a hub is asked a few times only
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class Cursor:
    """A place in a file. Every step forward is checked before it is made.

    Raises:
        MetadataError: terminal, naming the file, where a step would leave it; retryable where it cannot be read.
    """

    def __init__(self, files: ModelFiles, name: str) -> None:
        self._files, self._name = files, name
        self._end = min(files.sizes[name], MAX_HEADER_BYTES)
        self._buffer = b""
        self.at = 0

    def wrong(self, what: str, *, retryable: bool = False) -> MetadataError:
        """The error that says what is wrong with this file; retryable where it may only be on its way here."""
        return MetadataError(f"{where(self._files, self._name)}: {what}; replace the file", retryable=retryable)

    def skip(self, length: int) -> int:
        """Goes forward, and returns where it was."""
        at = self.at
        if length > self._end - at:
            raise self.wrong(f"its header says more than {self._end} bytes hold")
        self.at = at + length
        if self.at > len(self._buffer):
            self._fill()
        return at

    def u32(self) -> int:
        """An unsigned number of four bytes."""
        at = self.skip(4)
        return int(_U32.unpack_from(self._buffer, at)[0])

    def u64(self) -> int:
        """An unsigned number of eight bytes."""
        at = self.skip(8)
        return int(_U64.unpack_from(self._buffer, at)[0])

    def take(self, length: int) -> bytes:
        """Bytes as they stand there."""
        at = self.skip(length)
        return self._buffer[at : at + length]

    def text(self, max_bytes: int) -> str | None:
        """A string: its length, then UTF-8. None where it is longer than anybody needs, or no text."""
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
        if len(self._buffer) < wanted:  # it was cut off since its size was read
            raise MetadataError(f"{where(self._files, self._name)} has become shorter", retryable=True)
