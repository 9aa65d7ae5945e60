"""Reads a log as it is, over its rotation: its end, and then what is added.

A rotation copies and empties the log while the process writes. So between both files, and where a reader is late,
something may be missing: at each such seam parts of secrets are taken out as well.
"""

import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, TypeAlias

from agent.logs.log_index import LogIndex
from agent.logs.redaction import RedactedStream, Redactor

LINE_BYTES: Final = 65_536  # of a line that is not followed; the rest of it is left out
CUT: Final = b" [gpuward: cut after 64 KiB]"
_TAIL_MAX_BYTES: Final = 4 * 2**20  # of all lines together
_CHUNK_BYTES: Final = 65_536
_END: Final = re.compile(rb"\r\n|\n|\r")
Span: TypeAlias = tuple[int, int]


class PlainLog:
    """The log of one process. Its methods block: call them in a thread."""

    def __init__(self, log: Path, index: LogIndex, redactor: Redactor) -> None:
        self._rotated, self._log = log.with_suffix(".log.1"), log
        self._index = index
        self._stream = RedactedStream(redactor, cut=True)
        self._position = 0  # of the next byte to read

    def tail(self, lines: int) -> bytes:
        """The last lines, of the rotated log too; at most `_TAIL_MAX_BYTES`, and of each line `LINE_BYTES`."""
        with self._index.lock, ExitStack() as files:
            self._index.look()
            log = _Backwards(_opened(self._log, files))
            self._position = self._index.base + log.size
            rotated = _Backwards(_opened(self._rotated, files))
            newest = log.last_lines(lines, _TAIL_MAX_BYTES)
            shown = sum(map(_shown, newest))
            # The rotated log's last line may continue in the log.
            lacking = lines - len(newest) + (log.is_whole and bool(newest) and not rotated.ends_line)
            older = rotated.last_lines(lacking, _TAIL_MAX_BYTES - shown) if log.is_whole else []
            text = [self._show(line, rotated.read(*line)) for line in older]
            text += [self._show(line, log.read(*line), seam=bool(older and not at)) for at, line in enumerate(newest)]
        return b"".join(text)

    def _show(self, line: Span, text: bytes, *, seam: bool = False) -> bytes:
        """A line, of which no more than its begin is shown where it is too long."""
        shown = self._stream.seam(text) if seam else self._stream.feed(text)
        return shown + self._stream.end() + CUT + b"\n" if line[1] - line[0] > LINE_BYTES else shown

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


def _opened(path: Path, files: ExitStack) -> IO[bytes]:
    try:
        return files.enter_context(path.open("rb"))
    except FileNotFoundError:
        return io.BytesIO()


def _shown(line: Span) -> int:
    """How many bytes of a line are shown."""
    return min(line[1] - line[0], LINE_BYTES)


class _Backwards:
    """Finds the last lines of a file, and holds no more of it than a chunk: a line may be as long as the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.seek(0, 2)  # of the file, in bytes
        # whether its last line has ended
        self.ends_line = not self.size or self.read(self.size - 1, self.size) in (b"\n", b"\r")
        self.is_whole = not self.size  # whether `last_lines` has found all lines

    def read(self, begin: int, end: int) -> bytes:
        """What is between two positions, at most `LINE_BYTES` of it."""
        self._file.seek(begin)
        return self._file.read(min(end - begin, LINE_BYTES))

    def last_lines(self, lines: int, most_bytes: int) -> list[Span]:
        """The begin and the end of the last lines, at most so many, of which at most so many bytes are shown."""
        found: list[Span] = []
        shown, end = 0, self.size
        for begin in self._begins():
            line = begin, end
            shown += _shown(line)
            if len(found) >= lines or shown > most_bytes:
                return found[::-1]
            found.append(line)
            end = begin
        self.is_whole = True
        return found[::-1]

    def _begins(self) -> Iterator[int]:
        """Where each line begins, the last one first."""
        at = before = self.size
        while at > 0:
            begin = max(0, at - LINE_BYTES + 1)
            text = self.read(begin, at + 1)  # a line feed may follow on a carriage return
            ends = [begin + found.end() for found in _END.finditer(text) if begin + found.start() < at]
            for end in reversed(ends):
                if end < before:
                    yield end
                    before = end
            at = begin
        if self.size:
            yield 0
