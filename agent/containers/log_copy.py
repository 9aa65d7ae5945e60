"""Copies a container's output into the instance's log, where `gpuward logs` reads it.

Docker keeps each frame with its time. A mark next to the log has the time of the last copied frame and how many frames
share it, so that a later agent continues from there.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from agent.clock import boot_clock
from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.logs.log_index import LogIndex

_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")
MOST_BYTES: Final = 4 * 2**20  # read and not written yet, plus one frame
_SILENT_S: Final = 120.0  # then the stream may be dead and is opened again
_FLUSH_S: Final = 0.1
_RETRY_S: Final = (0.2, 1.0, 2.0, 5.0)
_LAST_OUTPUT_RETRY_S: Final = 0.2

log = structlog.get_logger()


class LogCopy:
    """The log of one container. `index` gets Docker's times."""

    def __init__(self, log: Path, index: LogIndex | None = None) -> None:
        self._log = log
        self._index = index or LogIndex(log)
        self._index.begin()
        self._mark = log.with_suffix(".since")
        self._last, self._count = b"", 0  # the time of the last frame, and how many frames in a row have it
        with contextlib.suppress(OSError, ValueError):
            last, _, count = self._mark.read_bytes().partition(b" ")
            self._last, self._count = last, int(count or b"1")
        self.begin()

    def begin(self) -> None:
        """Starts a new stream from `since` on. Its first frames are in the log already."""
        self._known, self._left = self._last, self._count

    @property
    def since(self) -> str:
        """The second of the last frame, since 1970: the new stream starts there."""
        try:
            last = datetime.fromisoformat(self._last.decode("ascii").partition(".")[0])
        except ValueError:
            return "0"
        return str(int(last.replace(tzinfo=UTC).timestamp()))

    def write(self, frames: list[bytes]) -> None:
        """Appends new frames. Blocks. On OSError nothing is written, and the stream must be read again."""
        fresh = [(time, text) for time, text in map(_split, frames) if not self._has(time)]
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
        """Whether the log has this frame of the stream already."""
        # Only the first frames are compared: the clock may be set back, and parts of a line share a time.
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

    def append_line(self, text: str) -> None:
        """Appends a line of the agent. Blocks."""
        with self._log.open("ab") as file:
            file.write(f"gpuward: {text}\n".encode())

    def forget(self) -> None:
        """Removes the mark of an ended container."""
        self._mark.unlink(missing_ok=True)
        self._mark.with_suffix(".since-part").unlink(missing_ok=True)


def _ends(size: int, frames: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, int]]:
    """Size of the log after each frame with a time, and that time in milliseconds since 1970."""
    second, begin_ms = b"", 0
    for time, text in frames:
        size += len(text)
        if time:
            if time[:19] != second:
                second = time[:19]
                begin_ms = int(datetime.fromisoformat(second.decode("ascii")).replace(tzinfo=UTC).timestamp()) * 1000
            yield size, begin_ms + int(time[20:23])


def _split(frame: bytes) -> tuple[bytes, bytes]:
    """A comparable time (empty if none) and the output."""
    match = _TIME.match(frame)
    if match is None:
        return b"", frame
    return match[1] + b"." + (match[2] or b"").ljust(9, b"0"), frame[match.end() :]


class LogFollow:
    """Follows a container's output over restarts of Docker and lost connections, until the container has ended."""

    def __init__(self, engine: DockerEngine, name: str, copy: LogCopy) -> None:
        self.held_bytes = 0
        self._engine = engine
        self._name = name
        self._copy = copy
        self._wanted = asyncio.Event()
        self._over = asyncio.Event()
        self._held: list[bytes] = []
        self._has_space = asyncio.Event()

    def begin(self) -> None:
        self._wanted.set()

    def end(self) -> None:
        """The container has ended: `run` returns after its last output."""
        self._over.set()
        self._wanted.set()

    async def run(self) -> None:
        delays = iter(_RETRY_S)
        while True:
            await self._wanted.wait()
            started_s = boot_clock()
            over = self._over.is_set()  # read before the copy, which then includes the last output
            try:
                await self._copy_stream()
            except (DockerAwayError, DockerRefusalError) as error:
                if over and isinstance(error, DockerRefusalError):
                    return
            except Exception as error:  # noqa: BLE001 - the engine continues on a full disk
                log.warning("log not copied", container=self._name, error=str(error))
            else:
                if over:
                    return
                if boot_clock() - started_s >= _RETRY_S[-1]:
                    delays = iter(_RETRY_S)
            delay_s = next(delays, _RETRY_S[-1])
            if over:
                await asyncio.sleep(_LAST_OUTPUT_RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._over.wait()

    async def _copy_stream(self) -> None:
        """Copies until the stream ends, or is silent for `_SILENT_S`."""
        self._copy.begin()
        self._take()
        reading = asyncio.create_task(self._read(), name=f"log of {self._name}")
        try:
            while not (reading.done() and not self._held):
                if taken := self._take():
                    await asyncio.to_thread(self._copy.write, taken)
                else:
                    await asyncio.wait([reading], timeout=_FLUSH_S)
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self) -> None:
        async with contextlib.aclosing(self._engine.log(self._name, self._copy.since, _SILENT_S)) as read:
            async for frame in read:
                while self.held_bytes >= MOST_BYTES:
                    self._has_space.clear()
                    await self._has_space.wait()  # until the held frames are written
                self._held.append(frame)
                self.held_bytes += len(frame)

    def _take(self) -> list[bytes]:
        taken, self._held, self.held_bytes = self._held, [], 0
        self._has_space.set()
        return taken
