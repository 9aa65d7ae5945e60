"""Copies what a container prints into the instance's log, where `gpuward logs` reads it.

Docker keeps each piece with its time. The time of the last copied piece, and how many have it, stand beside the log:
an agent that comes later continues from there.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agent.logs.log_index import LogIndex

_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")


class LogCopy:
    """The log of one container.

    Args:
        log: the instance's file.
        index: of that file, which gets Docker's times.
    """

    def __init__(self, log: Path, index: LogIndex | None = None) -> None:
        self._log = log
        self._index = index or LogIndex(log)
        self._index.begin()
        self._mark = log.with_suffix(".since")
        self._last, self._count = b"", 0  # the time of the last piece, and how many pieces in a row have it
        with contextlib.suppress(OSError, ValueError):
            last, _, count = self._mark.read_bytes().partition(b" ")
            self._last, self._count = last, int(count or b"1")
        self.begin()

    def begin(self) -> None:
        """A new stream comes, from `since` on: its first pieces are those that the log has already."""
        self._known, self._left = self._last, self._count

    @property
    def since(self) -> str:
        """From when on pieces are wanted: the second of the last one, counted from 1970."""
        try:
            last = datetime.fromisoformat(self._last.decode("ascii").partition(".")[0])
        except ValueError:
            return "0"
        return str(int(last.replace(tzinfo=UTC).timestamp()))

    def write(self, pieces: list[bytes]) -> None:
        """Appends pieces, without those that it has already. Blocks.

        Only the first pieces of a stream are compared: the clock may be set back, and parts of a line share a time.

        Raises:
            OSError: the disk is full; nothing is written, and the stream must be read again.
        """
        fresh = [(time, text) for time, text in map(_split, pieces) if not self._has(time)]
        if not fresh:
            return
        last, count = self._last, self._count
        for time, _ in fresh:
            if time:
                last, count = time, (count + 1 if time == last else 1)
        with self._index.lock, self._log.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                left = memoryview(b"".join(text for _, text in fresh))
                while left:
                    left = left[file.write(left) :]
                self._note(last, count)
                self._index.note(_ends(before, fresh))
            except OSError:
                if os.fstat(file.fileno()).st_size > before:  # it may have been rotated in between
                    os.ftruncate(file.fileno(), before)
                raise
        self._last, self._count = last, count

    def _has(self, time: bytes) -> bool:
        """Whether the log has this piece of the stream already."""
        if not time or not self._left:
            return False
        if time > self._known:
            self._left = 0
            return False
        if time == self._known:
            self._left -= 1
        return True

    def _note(self, last: bytes, count: int) -> None:
        part = self._mark.with_suffix(".since-part")
        part.write_bytes(b"%b %d" % (last, count))
        part.replace(self._mark)

    def say(self, text: str) -> None:
        """Appends a line of the agent's own. Blocks."""
        with self._log.open("ab") as file:
            file.write(f"gpuward: {text}\n".encode())

    def forget(self) -> None:
        """Removes the mark, once nothing can come any more."""
        self._mark.unlink(missing_ok=True)
        self._mark.with_suffix(".since-part").unlink(missing_ok=True)


def _ends(size: int, pieces: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, int]]:
    """The log's size after each piece that has a time, and that time in milliseconds."""
    second, begin_ms = b"", 0
    for time, text in pieces:
        size += len(text)
        if time:
            if time[:19] != second:
                second = time[:19]
                begin_ms = int(datetime.fromisoformat(second.decode("ascii")).replace(tzinfo=UTC).timestamp()) * 1000
            yield size, begin_ms + int(time[20:23])


def _split(piece: bytes) -> tuple[bytes, bytes]:
    """The time, so written that it can be compared, and what was printed; without a time all of it."""
    match = _TIME.match(piece)
    if match is None:
        return b"", piece
    return match[1] + b"." + (match[2] or b"").ljust(9, b"0"), piece[match.end() :]
