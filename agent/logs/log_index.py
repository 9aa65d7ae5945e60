"""When a log grew: positions and times for an engine's log, which the engine writes itself, without times.

A position counts all bytes that the process has logged, also those that rotations have removed. Next to `1-0.log` is
`1-0.index`: a head (mark, position of the log's first byte, position of the rotated log's first byte), then an entry
for each observed growth: the position of the end, and the time of the last write in milliseconds since 1970. Bytes
between two ends were written no later than the second time. An entry is inexact after a pause of polls, as between two
agents: then it has the latest possible time.
"""

import contextlib
import struct
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

MOST_ENTRIES: Final = 16_384
_HEAD: Final = struct.Struct("<8sQQ")
_ENTRY: Final = struct.Struct("<QQ")
_MARK: Final = b"gpwlog 1"
_INEXACT: Final = 1 << 62
_POLL_MS: Final = 2_500  # a poll each second, and slack


class LogIndex:
    """The index of one log. One object for each log, for all threads; its methods block.

    Attributes:
        lock: held while log and index change together, and while both are read.
        base: position of the log's first byte.
        rotated_base: position of the rotated log's first byte.
    """

    def __init__(self, log: Path) -> None:
        self.lock = threading.RLock()
        self.base = self.rotated_base = 0
        self._log = log
        self._path = log.with_suffix(".index")
        self._ends, self._times = array("Q"), array("Q")
        self._polled_ms = 0
        self._stale = False  # the file is incomplete
        self._load()

    def begin(self) -> None:
        """The process starts, so that its log is observed from the first byte."""
        with self.lock:
            if not self._ends and not size_of(self._log):
                self._polled_ms = _now_ms()
                self._rewrite()

    def poll(self) -> None:
        """Notes whether the log has grown."""
        with self.lock:
            try:
                status = self._log.stat()
            except FileNotFoundError:
                return
            if status.st_size < self._end - self.base:
                self._truncated()
            if self.base + status.st_size > self._end:
                written_ms = status.st_mtime_ns // 1_000_000
                exact = written_ms - self._polled_ms <= _POLL_MS
                self._append([(self.base + status.st_size, written_ms if exact else written_ms | _INEXACT)])
            self._polled_ms = _now_ms()

    def note(self, ends: Iterable[tuple[int, int]]) -> None:
        """Notes output of known times: the log's size after each piece, and milliseconds since 1970."""
        with self.lock:
            seconds: dict[int, tuple[int, int]] = {}
            for size, at_ms in ends:
                seconds[at_ms // 1000] = (self.base + size, at_ms)
            self._append([entry for entry in sorted(seconds.values()) if entry[0] > self._end])

    def rotated(self, kept: int, size: int) -> None:
        """The log of this size is empty now; its last `kept` bytes are the rotated log."""
        with self.lock:
            self.rotated_base = self.base + size - kept
            self.base += size
            first = bisect_left(self._ends, self.rotated_base + 1)
            self._ends, self._times = self._ends[first:], self._times[first:]
            self._rewrite()

    def time_of(self, end: int) -> tuple[int, bool]:
        """When the line that ends at this position was written, in milliseconds, and whether that is exact."""
        entry = bisect_left(self._ends, end)
        if entry == len(self._ends):  # since the last poll
            with contextlib.suppress(FileNotFoundError):
                return self._log.stat().st_mtime_ns // 1_000_000, True
            return _now_ms(), True
        at_ms = self._times[entry]
        return at_ms & ~_INEXACT, not at_ms & _INEXACT

    def first_since(self, at_ms: int) -> int:
        """The position before which all was written before that time."""
        before = self.rotated_base
        for end, entry_ms in zip(self._ends, self._times, strict=True):
            if entry_ms & ~_INEXACT >= at_ms:
                return before
            before = end
        return before

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else self.base

    def _truncated(self) -> None:
        """An agent died within a rotation, before the index knew of it."""
        kept = size_of(self._log.with_suffix(".log.1"))
        self.rotated(min(kept, self._end), self._end - self.base)

    def _append(self, entries: list[tuple[int, int]]) -> None:
        for end, at_ms in entries:
            self._ends.append(end)
            self._times.append(at_ms)
        if len(self._ends) > MOST_ENTRIES:
            self._thin()
            self._rewrite()
        elif self._stale:
            self._rewrite()
        elif entries:
            with self._writing(), self._path.open("ab") as file:
                file.write(b"".join(_ENTRY.pack(*entry) for entry in entries))

    def _thin(self) -> None:
        """Drops every second entry of the older half. Times of lines can only become later."""
        half = len(self._ends) // 2
        self._ends = self._ends[1:half:2] + self._ends[half:]
        self._times = self._times[1:half:2] + self._times[half:]

    def _rewrite(self) -> None:
        part = self._path.with_suffix(".index-part")
        with self._writing():
            entries = b"".join(_ENTRY.pack(*entry) for entry in zip(self._ends, self._times, strict=True))
            part.write_bytes(_HEAD.pack(_MARK, self.base, self.rotated_base) + entries)
            part.replace(self._path)
            self._stale = False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """On a full disk the index stays in memory and is written later."""
        try:
            yield
        except OSError:
            self._stale = True

    def _load(self) -> None:
        try:
            with self._path.open("rb") as file:
                head, content = file.read(_HEAD.size), file.read(_ENTRY.size * 2 * MOST_ENTRIES)
        except FileNotFoundError:
            self._stale = True
            self.rotated_base, self.base = 0, size_of(self._log.with_suffix(".log.1"))
            return
        if len(head) < _HEAD.size or not head.startswith(_MARK):
            self._stale = True
            return
        _, self.base, self.rotated_base = _HEAD.unpack(head)
        complete = len(content) - len(content) % _ENTRY.size
        self._stale = complete < len(content)  # cut within an entry
        for end, at_ms in _ENTRY.iter_unpack(content[:complete]):
            if not self._ends or end > self._ends[-1]:
                self._ends.append(end)
                self._times.append(at_ms)
        self._polled_ms = self._times[-1] & ~_INEXACT if self._times else 0


def size_of(path: Path) -> int:
    """Bytes; 0 if the file is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _now_ms() -> int:
    return int(time.time() * 1000)
