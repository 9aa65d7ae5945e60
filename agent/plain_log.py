"""Reads a log as it is, over its rotation: its end, and then what is added.

A rotation copies and empties the log while the process writes. So between both files, and where a reader is late,
something may be missing: at each such seam parts of secrets are taken out as well.
"""

from pathlib import Path
from typing import Final

from agent.log_index import LogIndex
from agent.redaction import RedactedStream, Redactor

_TAIL_MAX_BYTES: Final = 4 * 2**20  # of each file
_CHUNK_BYTES: Final = 65_536


class PlainLog:
    """The log of one process. Its methods block: call them in a thread.

    Args:
        log: the file.
        index: its index, which knows of rotations.
        redactor: takes out what must not be shown.
    """

    def __init__(self, log: Path, index: LogIndex, redactor: Redactor) -> None:
        self._rotated, self._log = log.with_suffix(".log.1"), log
        self._index = index
        self._stream = RedactedStream(redactor, cut=True)
        self._position = 0  # of the next byte to read

    def tail(self, lines: int) -> bytes:
        """The last lines, of the rotated log too."""
        with self._index.lock:
            self._index.look()
            text, end = _end_of(self._log)
            self._position = self._index.base + end
            before = b"" if text.count(b"\n") > lines else _end_of(self._rotated)[0]
        kept = len(b"".join((before + text).splitlines(keepends=True)[-lines:])) if lines else 0
        if kept > len(text):
            return self._stream.feed(before[len(text) - kept :]) + self._stream.seam(text)
        return self._stream.feed(text[len(text) - kept :])

    def read(self) -> bytes | None:
        """What was added; None: nothing."""
        with self._index.lock:
            self._index.look()
            missed = self._position < self._index.rotated_base
            self._position = max(self._position, self._index.rotated_base)
            seam = missed or self._position == self._index.base
            text = b""
            if self._position < self._index.base:
                text = _read(
                    self._rotated, self._position - self._index.rotated_base, self._index.base - self._position
                )
                if not text:  # it is gone
                    self._position, seam = self._index.base, True
            if not text:
                text = _read(self._log, self._position - self._index.base, _CHUNK_BYTES)
            self._position += len(text)
        if not text:
            return None
        return self._stream.seam(text) if seam else self._stream.feed(text)

    def rest(self) -> bytes:
        """What is held back of the end, once nothing more is read."""
        return self._stream.end()


def _read(path: Path, offset: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(min(most, _CHUNK_BYTES))
    except FileNotFoundError:
        return b""


def _end_of(path: Path) -> tuple[bytes, int]:
    """The last lines that are read, and where the file ends."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, 2) - _TAIL_MAX_BYTES)
            file.seek(begin)
            text = file.read(_TAIL_MAX_BYTES)
            end = file.tell()
            return text[text.find(b"\n") + 1 :] if begin else text, end
    except FileNotFoundError:
        return b"", 0
