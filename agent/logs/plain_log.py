"""Reads a log without times, over its rotation: its end, and then new output.

A rotation copies and empties the log while the process writes. So output may be missing between both files, and where a
reader is late: at each such seam parts of secrets are redacted as well.
"""

import io
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, TypeAlias

from agent.logs.log_index import LogIndex
from agent.logs.redaction import RedactedStream, Redactor

LINE_BYTES: Final = 65_536  # of a line in a tail; the rest is omitted
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
        """The last lines, including the rotated log; at most `_TAIL_MAX_BYTES`, and `LINE_BYTES` of a line."""
        with self._index.lock, ExitStack() as files:
            self._index.poll()
            log = _Backwards(_opened(self._log, files))
            self._position = self._index.base + log.size
            rotated = _Backwards(_opened(self._rotated, files))
            newest = log.last_lines(lines, _TAIL_MAX_BYTES)
            shown = sum(map(_shown, newest))
            # The rotated log's last line may continue in the log.
            lacking = lines - len(newest) + (log.is_complete and bool(newest) and not rotated.ends_line)
            older = rotated.last_lines(lacking, _TAIL_MAX_BYTES - shown) if log.is_complete else []
            text = [self._show(line, rotated.read(*line)) for line in older]
            text += [self._show(line, log.read(*line), seam=bool(older and not at)) for at, line in enumerate(newest)]
        return b"".join(text)

    def _show(self, line: Span, text: bytes, *, seam: bool = False) -> bytes:
        """A redacted line, cut if it is too long."""
        shown = self._stream.seam(text) if seam else self._stream.feed(text)
        return shown + self._stream.end() + CUT + b"\n" if line[1] - line[0] > LINE_BYTES else shown

    def read(self) -> bytes | None:
        """New output; None if there is none."""
        with self._index.lock:
            self._index.poll()
            missed = self._position < self._index.rotated_base
            self._position = max(self._position, self._index.rotated_base)
            seam = missed or self._position == self._index.base
            text = b""
            if self._position < self._index.base:
                most = min(self._index.base - self._position, _CHUNK_BYTES)
                text = read_at(self._rotated, self._position - self._index.rotated_base, most)
                if not text:  # it is gone
                    self._position, seam = self._index.base, True
            if not text:
                text = read_at(self._log, self._position - self._index.base, _CHUNK_BYTES)
            self._position += len(text)
        if not text:
            return None
        return self._stream.seam(text) if seam else self._stream.feed(text)

    def rest(self) -> bytes:
        """The held back end, once nothing more is read."""
        return self._stream.end()


def read_at(path: Path, offset: int, most: int) -> bytes:
    """At most `most` bytes; empty if the file is missing."""
    try:
        with path.open("rb") as file:
            file.seek(max(offset, 0))
            return file.read(most)
    except FileNotFoundError:
        return b""


def _opened(path: Path, files: ExitStack) -> IO[bytes]:
    try:
        return files.enter_context(path.open("rb"))
    except FileNotFoundError:
        return io.BytesIO()


def _shown(line: Span) -> int:
    return min(line[1] - line[0], LINE_BYTES)


class _Backwards:
    """Finds the last lines of a file, and holds only a chunk: a line may be as long as the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.seek(0, 2)
        self.ends_line = not self.size or self.read(self.size - 1, self.size) in (b"\n", b"\r")
        self.is_complete = not self.size  # `last_lines` has found all lines

    def read(self, begin: int, end: int) -> bytes:
        """At most `LINE_BYTES`."""
        self._file.seek(begin)
        return self._file.read(min(end - begin, LINE_BYTES))

    def last_lines(self, lines: int, most_bytes: int) -> list[Span]:
        """Start and end of the last lines, bounded by a number of lines and of shown bytes."""
        spans: list[Span] = []
        shown, end = 0, self.size
        for begin in self._starts():
            line = begin, end
            shown += _shown(line)
            if len(spans) >= lines or shown > most_bytes:
                return spans[::-1]
            spans.append(line)
            end = begin
        self.is_complete = True
        return spans[::-1]

    def _starts(self) -> Iterator[int]:
        """The start of each line, the last first."""
        at = before = self.size
        while at > 0:
            begin = max(0, at - LINE_BYTES + 1)
            text = self.read(begin, at + 1)  # a line feed may follow on a carriage return
            ends = [begin + match.end() for match in _END.finditer(text) if begin + match.start() < at]
            for end in reversed(ends):
                if end < before:
                    yield end
                    before = end
            at = begin
        if self.size:
            yield 0
