"""One reader of changed objects for all watchers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.live.change_fanout import ChangeFanout, Subscription
from controller.live.database_full import while_full
from controller.live.objects import Batch, Objects, Scope, Shown, View, Wanted, shown
from controller.live.shared_feed import READ_LIMIT_S, Reading, SharedFeed, Stream
from controller.store.core.database import Database, Reader
from controller.store.views.deployments import deployments_by_uid
from controller.store.views.instances import instances_of
from controller.store.views.policies import all_policies
from controller.store.views.workers import workers_by_id

__all__ = ["ObjectFeed", "ObjectStream", "Wanted"]

COALESCE_S: Final = 0.1  # between two reads
SWEEP_S: Final = 5.0  # between reads of changes without a notification
_TURN: Final = 100  # objects that are encoded before the loop runs other work

Redactions = Callable[[], Redaction]


class ObjectStream(Stream[Batch]):
    """One watcher's stream."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self.wanted = wanted


class _ObjectReading(Reading[Batch]):
    def __init__(self, database: Database, changes: ChangeFanout, redaction: Redactions) -> None:
        super().__init__("object-feed")
        self._database = database
        self._changes = changes
        self._redaction = redaction
        self._objects = Objects()
        self._sweep_at = 0.0

    def _snapshot(self, stream: Stream[Batch]) -> bytes:
        return self._objects.snapshot(stream.wanted if isinstance(stream, ObjectStream) else Wanted())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with self._changes.subscribe() as subscription:  # before the read: later changes are read again
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
        redaction = self._redaction()
        async with asyncio.timeout(READ_LIMIT_S), self._database.snapshot() as connection:
            objects = await _read_deployments(connection, scope, redaction, full=self._database.space.full)
            workers = scope.workers | self._objects.workers_of_changed_claims(objects, scope)
            scope = Scope(scope.everything, scope.deployments, workers, scope.policies)
            if scope.everything or workers:
                read = await workers_by_id(connection, None if scope.everything else workers)
                objects += await _encode(read, redaction)
            if scope.everything or scope.policies:
                objects += await _encode(await all_policies(connection), redaction)
        updates = self._objects.merge(objects, scope)
        if updates:
            self._hand_out(Batch(tuple(updates)))


class ObjectFeed(SharedFeed[Batch]):
    """The feed of objects and their updates."""

    def __init__(
        self, database: Database, changes: ChangeFanout, redaction: Redactions = lambda: NOTHING_REDACTED
    ) -> None:
        super().__init__(lambda: _ObjectReading(database, changes, redaction))

    @asynccontextmanager
    async def watch(self, wanted: Wanted) -> AsyncIterator[ObjectStream]:
        """Yields a watcher's stream while the context lasts. Raises `WatchEndedError`: the objects cannot be read."""
        stream = ObjectStream(wanted)
        async with self.attached(stream):
            yield stream


async def _read_deployments(connection: Reader, scope: Scope, redaction: Redaction, *, full: bool) -> list[Shown]:
    if not scope.everything and not scope.deployments:
        return []
    uids = None if scope.everything else scope.deployments
    deployments = await _encode(await deployments_by_uid(connection, uids), redaction, full=full)
    return deployments + await _encode(await instances_of(connection, uids), redaction, full=full)


async def _encode(views: Iterable[View], redaction: Redaction, *, full: bool = False) -> list[Shown]:
    encoded: list[Shown] = []
    for view in views:
        encoded.append(shown(while_full(view, full=full), redaction))
        if len(encoded) % _TURN == 0:
            await asyncio.sleep(0)
    return encoded
