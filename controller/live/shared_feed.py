"""One reader for all watchers of a kind, until a little after the last one left; a bounded queue for each watcher."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

import structlog

from controller.live.errors import WatchEndedError
from controller.runtime.database import DATABASE_ERRORS

log = structlog.get_logger(__name__)

READ_LIMIT_S: Final = 15.0
LINGER_S: Final = 10.0  # a reader continues without watchers, so that one that returns soon needs no full read
MAX_BATCHES: Final = 128  # queued for one watcher
MAX_WAITING_BYTES: Final = 32 * 2**20
_STOP_LIMIT_S: Final = 2.0


class Sized(Protocol):
    """A batch for watchers; `size` in bytes."""

    @property
    def size(self) -> int: ...


B = TypeVar("B", bound=Sized)


class Stream(Generic[B]):
    """One watcher's stream: a snapshot, then all batches that follow. A watcher that falls behind is ended."""

    def __init__(self) -> None:
        self._render: Callable[[], bytes] | None = None
        self._has_snapshot = False
        self._waiting: deque[B] = deque()
        self._bytes = 0
        self._ended = ""
        self._some = asyncio.Event()

    def attach(self, render: Callable[[], bytes]) -> None:
        """`render`: makes the snapshot."""
        self._render = render

    def snapshot(self) -> bytes:
        """Renders the present state, which is large and not kept. Raises WatchEndedError if the stream has ended."""
        if self._ended or self._render is None:
            raise WatchEndedError(self._ended or "the watcher is not attached")
        self._has_snapshot = True
        return self._render()

    def put(self, batch: B) -> None:
        """Adds a batch; ends the stream where too much waits. Drops batches before the snapshot."""
        if not self._has_snapshot:
            return
        full = len(self._waiting) >= MAX_BATCHES or self._bytes + batch.size > MAX_WAITING_BYTES
        if self._waiting and full:
            self.end("the watcher does not read")
        else:
            self._waiting.append(batch)
            self._bytes += batch.size
            self._some.set()

    def end(self, why: str) -> None:
        self._ended = why
        self._waiting.clear()
        self._some.set()

    async def take(self) -> list[B]:
        """Waits for batches and returns all; the caller limits the wait. Raises WatchEndedError at the end."""
        await self._some.wait()
        if self._ended:
            raise WatchEndedError(self._ended)
        self._some.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken


class Reading(ABC, Generic[B]):
    """One reader task and its watchers."""

    def __init__(self, name: str) -> None:
        self._streams: set[Stream[B]] = set()
        self._first = asyncio.Event()  # the first read has succeeded or failed
        self.watchers = 0
        self.task = asyncio.create_task(self._run(), name=name)
        self.task.add_done_callback(self._note_end)

    @abstractmethod
    async def _run(self) -> None:
        """Reads until cancelled; sets `_first` after the first read, and passes later batches to `_hand_out`."""

    @abstractmethod
    def _snapshot(self, stream: Stream[B]) -> bytes:
        """Renders the present state for this stream."""

    def _hand_out(self, batch: B) -> None:
        for stream in self._streams:
            stream.put(batch)

    async def begin(self, stream: Stream[B]) -> None:
        """Waits for the first read, then attaches the stream. Raises WatchEndedError if it fails or takes too long."""
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                await self._first.wait()
        except TimeoutError as error:
            raise WatchEndedError("the database does not answer in time") from error
        if self.task.done():
            raise WatchEndedError("the database cannot be read")
        stream.attach(lambda: self._snapshot(stream))
        self._streams.add(stream)

    def leave(self, stream: Stream[B]) -> None:
        self._streams.discard(stream)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Ends all watchers after a failed read. They watch again, with a new snapshot."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DATABASE_ERRORS):
            why = str(error) or type(error).__name__
            log.warning("watches end: a read failed", reader=task.get_name(), error=why, watches=self.watchers)
        elif error is not None:
            log.error("watches end: a read failed", reader=task.get_name(), exc_info=error, watches=self.watchers)
        self._first.set()
        for stream in self._streams:
            stream.end("the database cannot be read")


class SharedFeed(Generic[B]):
    """Holds the reader while there are watchers, and for `LINGER_S` after the last."""

    def __init__(self, new_reading: Callable[[], Reading[B]]) -> None:
        self._new_reading = new_reading
        self._reading: Reading[B] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._linger: asyncio.TimerHandle | None = None  # ends the reader; there is one while it has no watchers
        self._stopped = False

    @asynccontextmanager
    async def attached(self, stream: Stream[B]) -> AsyncIterator[None]:
        """Feeds the stream while the context lasts. Raises WatchEndedError if a read fails, or the server stops."""
        if self._stopped:
            raise WatchEndedError("the server stops")
        if self._reading is None or self._reading.task.done():
            self._reading = self._new_reading()
        reading = self._reading
        self._keep()
        reading.watchers += 1
        try:
            await reading.begin(stream)
            yield
        finally:
            reading.leave(stream)
            reading.watchers -= 1
            if not reading.watchers:
                self._let_go(reading)

    async def stop(self) -> None:
        self._stopped = True
        self._keep()
        if self._reading is not None:
            self._end(self._reading)
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=_STOP_LIMIT_S)

    def _keep(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _let_go(self, reading: Reading[B]) -> None:
        if reading is not self._reading or self._stopped:
            self._end(reading)
        else:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._end, reading)

    def _end(self, reading: Reading[B]) -> None:
        if reading is self._reading:
            self._reading = None
        if not reading.task.done():
            self._ending.add(reading.task)
            reading.task.add_done_callback(self._ending.discard)
            reading.task.cancel()
