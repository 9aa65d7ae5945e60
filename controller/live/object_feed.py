"""Reads objects as they change, once for all watchers: one task, from the first watcher to the last."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from controller.live.change_fanout import ChangeFanout, Subscription
from controller.live.errors import WatchEndedError
from controller.live.objects import Batch, Objects, Scope, Shown, View, Wanted, shown
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database, Reader
from controller.store.views.deployments import deployments_by_uid
from controller.store.views.instances import instances_of
from controller.store.views.policies import all_policies
from controller.store.views.workers import workers_by_id

__all__ = ["ObjectFeed", "ObjectStream", "Wanted"]

log = structlog.get_logger(__name__)

COALESCE_S: Final = 0.1  # between two reads
SWEEP_S: Final = 5.0  # between reads of what no notification tells
READ_LIMIT_S: Final = 15.0
MAX_BATCHES: Final = 128  # that wait for one watcher
MAX_WAITING_BYTES: Final = 32 * 2**20
_STOP_LIMIT_S: Final = 2.0
_TURN: Final = 100  # objects encoded before other work has its turn


class ObjectStream:
    """What one watcher gets: the snapshot, then all updates after it. Bounded: one that falls behind is ended."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.snapshot = b""
        self._waiting: deque[Batch] = deque()
        self._bytes = 0
        self._ended = ""
        self._some = asyncio.Event()

    def put(self, batch: Batch) -> None:
        """Adds updates; ends the stream where too many wait."""
        full = len(self._waiting) >= MAX_BATCHES or self._bytes + batch.size > MAX_WAITING_BYTES
        if self._waiting and full:
            self.end("the watcher does not read")
        else:
            self._waiting.append(batch)
            self._bytes += batch.size
            self._some.set()

    def end(self, why: str) -> None:
        """No more comes."""
        self._ended = why
        self._waiting.clear()
        self._some.set()

    async def take(self) -> list[Batch]:
        """Waits for updates and returns all; the caller limits the wait.

        Raises:
            WatchEndedError: no more comes.
        """
        await self._some.wait()
        if self._ended:
            raise WatchEndedError(self._ended)
        self._some.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken


class _Reading:
    """One reader task, what it has read, and its watchers."""

    def __init__(self, database: Database, changes: ChangeFanout) -> None:
        self._database = database
        self._changes = changes
        self._objects = Objects()
        self._streams: set[ObjectStream] = set()
        self._first = asyncio.Event()  # the first read has ended, well or not
        self._sweep_at = 0.0
        self.watchers = 0
        self.task = asyncio.create_task(self._run(), name="object-feed")
        self.task.add_done_callback(self._note_end)

    async def begin(self, stream: ObjectStream) -> None:
        """Waits for the first read, then gives the stream the present state and all that follows, in one step.

        Raises:
            WatchEndedError: the read failed, or took too long.
        """
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                await self._first.wait()
        except TimeoutError as error:
            raise WatchEndedError("the objects are not read in time") from error
        if self.task.done():
            raise WatchEndedError("the objects cannot be read")
        stream.snapshot = self._objects.snapshot(stream.wanted)
        self._streams.add(stream)

    def leave(self, stream: ObjectStream) -> None:
        """The stream gets no more."""
        self._streams.discard(stream)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with self._changes.subscribe() as subscription:  # before the read: what changes meanwhile is read again
            await self._read(Scope(everything=True))
            self._first.set()
            self._sweep_at = loop.time() + SWEEP_S
            while True:
                scope = await self._next(subscription)
                if loop.time() >= self._sweep_at:
                    scope |= self._objects.sweep()
                    self._sweep_at = loop.time() + SWEEP_S
                if scope:
                    await self._read(scope)
                await asyncio.sleep(COALESCE_S)

    async def _next(self, subscription: Subscription) -> Scope:
        try:
            async with asyncio.timeout_at(self._sweep_at):
                return Scope.of(await subscription.take())
        except TimeoutError:
            return Scope()

    async def _read(self, scope: Scope) -> None:
        async with asyncio.timeout(READ_LIMIT_S), self._database.snapshot() as connection:
            found = await _read_deployments(connection, scope)
            workers = scope.workers | self._objects.workers_of_changed_claims(found, scope)
            scope = Scope(scope.everything, scope.deployments, workers, scope.policies)
            if scope.everything or workers:
                found += await _encode(await workers_by_id(connection, None if scope.everything else workers))
            if scope.everything or scope.policies:
                found += await _encode(await all_policies(connection))
        updates = self._objects.merge(found, scope)
        if updates:
            batch = Batch(tuple(updates))
            for stream in self._streams:
                stream.put(batch)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """After a failed read all watchers end: they come again and get a snapshot."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DATABASE_ERRORS):
            why = str(error) or type(error).__name__
            log.warning("watches end: the objects cannot be read", error=why, watches=self.watchers)
        elif error is not None:
            log.error("watches end: the objects cannot be read", exc_info=error, watches=self.watchers)
        self._first.set()
        for stream in self._streams:
            stream.end("the objects cannot be read")


class ObjectFeed:
    """Gives watchers the objects and their updates.

    Args:
        database: to read from.
        changes: which objects have changed; counts the watchers too.
    """

    def __init__(self, database: Database, changes: ChangeFanout) -> None:
        self._database = database
        self._changes = changes
        self._reading: _Reading | None = None
        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def watch(self, key_id: str, wanted: Wanted) -> AsyncIterator[ObjectStream]:
        """A watcher's stream, with its snapshot, for as long as the context lasts.

        Raises:
            WatchEndedError: the objects cannot be read.
            TooManyOfKeyError, TooManySubscribersError: see `ChangeFanout.admitted`.
        """
        stream = ObjectStream(wanted)
        with self._changes.admitted(key_id, stream):
            if self._reading is None or self._reading.task.done():
                self._reading = _Reading(self._database, self._changes)
            reading = self._reading
            reading.watchers += 1
            try:
                await reading.begin(stream)
                yield stream
            finally:
                reading.leave(stream)
                reading.watchers -= 1
                if not reading.watchers:
                    self._end(reading)

    async def stop(self) -> None:
        """Ends the reader."""
        if self._reading is not None:
            self._end(self._reading)
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=_STOP_LIMIT_S)

    def _end(self, reading: _Reading) -> None:
        if reading is self._reading:
            self._reading = None
        if not reading.task.done():
            self._ending.add(reading.task)
            reading.task.add_done_callback(self._ending.discard)
            reading.task.cancel()


async def _read_deployments(connection: Reader, scope: Scope) -> list[Shown]:
    if not scope.everything and not scope.deployments:
        return []
    uids = None if scope.everything else scope.deployments
    found = await _encode(await deployments_by_uid(connection, uids))
    return found + await _encode(await instances_of(connection, uids))


async def _encode(views: Iterable[View]) -> list[Shown]:
    encoded: list[Shown] = []
    for view in views:
        encoded.append(shown(view))
        if len(encoded) % _TURN == 0:
            await asyncio.sleep(0)
    return encoded
