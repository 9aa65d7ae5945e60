"""Reads a log line by line, each with its time and position, over its rotation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agent.logs.log_index import LogIndex, size_of
from agent.logs.plain_log import CUT, LINE_BYTES, read_at
from agent.logs.redaction import Redactor

LINES_MAX: Final = 1_000_000  # as in the API; the files, which rotate, bound reads
_CHUNK_BYTES: Final = 262_144
_END: Final = re.compile(rb"\r\n|\n|\r(?!\n)(?!\Z)")  # each state of a progress bar is a line


class TimedLog:
    """The log of one process, from a line on. Its methods block."""

    def __init__(self, log: Path, index: LogIndex, redactor: Redactor) -> None:
        self._redactor = redactor
        self._files = (log.with_suffix(".log.1"), log)
        self._index = index
        self._position = 0  # of the next byte to read
        self._rest = b""  # of an unfinished line; it ends at `_position`
        self._cut = True  # the next line may start within a logged line
        self._skips = False  # the rest of a line that is too long

    def begin(self, *, since_ms: int | None, tail: int | None) -> None:
        """Seeks the first line that was written since then and is within the tail."""
        with self._index.lock:
            self._index.poll()
            first = self._index.rotated_base if since_ms is None else self._index.first_since(since_ms)
            if tail is not None:
                first = max(first, self._last_lines(tail, first))
            self._position = self._line_start(first)

    def read(self, *, last: bool = False) -> list[bytes] | None:
        """The next lines as frames (`schemas.wire.proxy`); None if there are none now. `last`: no more will come."""
        with self._index.lock:
            if self._position < self._index.rotated_base:  # the next output does not continue the unfinished line
                self._position, self._rest, self._cut, self._skips = self._index.rotated_base, b"", True, False
            text = self._bytes(self._position, _CHUNK_BYTES)
            if not text and not (last and self._rest):
                return None
            begin = self._position - len(self._rest)
            self._position += len(text)
            return list(self._frames(begin, self._rest + text, last=last and not text))

    def _frames(self, begin: int, text: bytes, *, last: bool) -> Iterator[bytes]:
        at = 0
        for end in _END.finditer(text):
            if not self._skips:
                yield self._frame(begin + at, self._cut_line(text[at : end.start()]), begin + end.end())
            at, self._cut, self._skips = end.end(), False, False
        rest = text[at:]
        is_long = bool(rest) and (last or len(rest) >= LINE_BYTES)
        if is_long and not self._skips:
            shown = self._redactor.without_head(self._redactor.redact(self._cut_line(rest))).rstrip(b"\r\n")
            yield self._frame(begin + at, shown, begin + len(text), cut=not last)
            self._cut, self._skips = False, not last
        if is_long or self._skips:
            rest = b"\r" if rest.endswith(b"\r") and not last else b""  # a line's end, unless a line feed follows
        self._rest = rest

    def _cut_line(self, line: bytes) -> bytes:
        """The line; if it may start at a cut, without the end of a secret at its start."""
        return self._redactor.without_tail(self._redactor.redact(line)) if self._cut else line

    def _frame(self, begin: int, line: bytes, end: int, *, cut: bool = False) -> bytes:
        at_ms, exact = self._index.time_of(end)
        shown = self._redactor.redact(line)
        if cut or len(shown) > LINE_BYTES:
            shown = shown[:LINE_BYTES] + CUT
        return b"L%d %d %d %b\n" % (at_ms, exact, begin, shown)

    def _last_lines(self, number: int, first: int) -> int:
        """The position of the last `number` lines, no earlier than `first`."""
        end = self._index.base + size_of(self._files[1])
        if number <= 0:
            return end
        at, left = end, number + (self._bytes(max(end - 1, first), 1) in (b"\n", b"\r"))
        while at > first:
            begin = max(first, at - _CHUNK_BYTES)
            text = self._bytes(begin, at - begin)
            for match in reversed(list(_END.finditer(text))):
                left -= 1
                if left == 0:
                    return begin + match.end()
            at = begin
        return first

    def _line_start(self, position: int) -> int:
        """The start of the line at a position."""
        if position <= self._index.rotated_base:
            return position
        begin = max(self._index.rotated_base, position - LINE_BYTES)
        before = self._bytes(begin, position - begin)
        return begin + max(before.rfind(b"\n"), before.rfind(b"\r")) + 1

    def _bytes(self, position: int, most: int) -> bytes:
        """Output from a position on, of one file; empty at the end."""
        rotated, log = self._files
        if position < self._index.base:
            text = read_at(rotated, position - self._index.rotated_base, min(most, self._index.base - position))
            if text:
                return text
            position = self._index.base if position != self._position else self._skip()
        return read_at(log, position - self._index.base, most)

    def _skip(self) -> int:
        """The rotated log is gone: continues with the present log."""
        self._position, self._rest, self._cut, self._skips = self._index.base, b"", True, False
        return self._position
