"""Heartbeats and GPU readings: kept in memory, written for all connections once a second.

Liveness comes first: one narrow statement for all connections, on database connections of its own, so that neither
joins nor readings delay it. A slow database is waited for. If no such statement is answered for `CUT_AFTER_S`, the
controller cuts its agents' connections, so that they connect to another controller: by then a leader elsewhere
considers them silent, and a fence relies on their end.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec
import structlog

from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.workers.devices import DetailsRow, write_details
from controller.store.workers.heartbeats import (
    ConnectionState,
    ForeignUse,
    Reading,
    newest_sessions,
    write_liveness,
    write_readings,
)
from schemas.wire import GpuDetails, ReportedGpu

log = structlog.get_logger(__name__)

FLUSH_S: Final = 1.0
RETURNED_AFTER_S: Final = 10.0  # silence after which a worker may have been marked unreachable
UNHEALTHY_AFTER_S: Final = 5.0  # without a successful write
CUT_AFTER_S: Final = 25.0  # without a successful write; a fence's margin covers it
_AGAIN_AFTER_S: Final = 8.0  # without an answer: as one connection may hang, the write is repeated on another
_TRIES: Final = 3  # at once
_READINGS_LIMIT_S: Final = 30.0
_READ_AT_ONCE: Final = 256  # workers


@dataclass(slots=True)
class _Unwritten:
    """The unwritten liveness of one connection. `last`: time of its last message, monotonic."""

    last: float
    connected: bool = True
    notify: bool = False


@dataclass(slots=True)
class _Unread:
    """The unwritten readings of one connection."""

    at: float
    gpus: tuple[ReportedGpu, ...] | None
    unread: tuple[str, ...] = ()  # GPUs that could not be read


class Liveness:
    """Keeps and writes the liveness of all connections.

    `superseded` is called with a session that is no longer its worker's newest, or whose worker is deleted; `cut_all`
    when writes have failed for so long that agents must connect to another controller. A message after
    `returned_after_s` of silence wakes the leader, because the worker may have been marked unreachable.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        superseded: Callable[[Session], None],
        cut_all: Callable[[str], None],
        returned_after_s: float = RETURNED_AFTER_S,
    ) -> None:
        self._returned_after_s = returned_after_s
        self._database = database
        self._clock = clock
        self._superseded = superseded
        self._cut_all = cut_all
        self._last: dict[Session, float] = {}
        self._unwritten: dict[Session, _Unwritten] = {}
        self._readings: dict[Session, _Unread] = {}
        self._now = asyncio.Event()
        self._last_write: float | None = None
        self._healthy_since: float | None = None

    def healthy_for_s(self) -> float:
        """Seconds for which writes have succeeded without a gap; 0 while they do not."""
        now = self._clock.monotonic()
        if self._last_write is None or self._healthy_since is None or now - self._last_write > UNHEALTHY_AFTER_S:
            return 0.0
        return now - self._healthy_since

    def opened(self, session: Session) -> None:
        self._last[session] = self._clock.monotonic()

    def heard(self, session: Session) -> None:
        """Notes the arrival of any message."""
        now = self._clock.monotonic()
        returned = now - self._last.get(session, now) >= self._returned_after_s
        self._last[session] = now
        unwritten = self._of(session)
        unwritten.last = now
        unwritten.notify = unwritten.notify or returned

    def read(self, session: Session, gpus: tuple[ReportedGpu, ...] | None) -> None:
        """Notes the readings of a heartbeat; None: the GPUs could not be read."""
        self._of(session)
        before = self._readings.get(session)
        unread = () if before is None else before.unread
        if gpus is None:
            unread = unread or tuple(gpu.uuid for gpu in session.gpus or ())
        self._readings[session] = _Unread(self._last.get(session, self._clock.monotonic()), gpus, unread)

    def leaves(self, session: Session) -> None:
        """Notes that the agent shuts down. It is written at once, since nothing may be placed there any more."""
        if not session.clean:
            session.clean = True
            self._of(session).notify = True
            self._now.set()

    def recheck(self, session: Session) -> None:
        """Makes the next write check that the session is still the newest."""
        self._of(session)

    def closed(self, session: Session) -> None:
        """Notes the end of a connection. It is written at once, unless the controller ended it for its own reasons."""
        last = self._last.pop(session, self._clock.monotonic())
        if session.ours:
            self._unwritten.pop(session, None)
            self._readings.pop(session, None)
            return
        unwritten = self._unwritten.setdefault(session, _Unwritten(last))
        unwritten.connected = False
        unwritten.notify = True
        self._now.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        own = await self._database.apart(_TRIES)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run_liveness(own), name="liveness-seen")
                group.create_task(self._run_readings(), name="liveness-readings")
                group.create_task(self._cut_when_away(), name="liveness-cut")
        finally:
            await own.abandon()

    async def _run_liveness(self, database: Database) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._now.wait()
            self._now.clear()
            try:
                await self._flush_liveness(database)
            except DATABASE_ERRORS as error:
                log.warning("liveness not written", error=str(error) or type(error).__name__)
                self._healthy_since = None
                await self._clock.sleep(FLUSH_S)

    async def _run_readings(self) -> None:
        while True:
            await self._clock.sleep(FLUSH_S)
            try:
                await self._flush_readings()
            except DATABASE_ERRORS as error:
                log.warning("readings of GPUs not written", error=str(error) or type(error).__name__)

    async def _cut_when_away(self) -> None:
        since = self._clock.monotonic()
        while True:
            since = max(since, self._last_write or since)
            if self._clock.monotonic() - since >= CUT_AFTER_S:
                since = self._clock.monotonic()
                self._healthy_since = None
                self._cut_all("the controller cannot reach its database")
            await self._clock.sleep(min(FLUSH_S, CUT_AFTER_S / 2))

    def _of(self, session: Session) -> _Unwritten:
        return self._unwritten.setdefault(session, _Unwritten(self._last.get(session, self._clock.monotonic())))

    def _wrote(self) -> None:
        now = self._clock.monotonic()
        if self._last_write is None or now - self._last_write > UNHEALTHY_AFTER_S or self._healthy_since is None:
            self._healthy_since = now
        self._last_write = now

    async def _flush_liveness(self, database: Database) -> None:
        """Writes all liveness. After a failure it is kept for the next write."""
        batch, self._unwritten = self._unwritten, {}
        try:
            current = await self._first_answer(database, _newest(batch))
        except BaseException:
            for session, older in batch.items():
                newer = self._unwritten.get(session)
                if newer is None:
                    self._unwritten[session] = older
                else:
                    newer.notify = newer.notify or older.notify
            raise
        for session in batch:
            if session not in current:
                self._superseded(session)

    async def _first_answer(self, database: Database, newest: Mapping[Session, _Unwritten]) -> set[Session]:
        """The sessions that are the newest of their workers, by the first of several equal writes that is answered."""
        tries: set[asyncio.Task[set[Session]]] = set()
        try:
            while True:
                tries.add(asyncio.create_task(self._write(database, newest), name="liveness-write"))
                again_at = self._clock.monotonic() + _AGAIN_AFTER_S
                while (left_s := again_at - self._clock.monotonic()) > 0 or len(tries) == _TRIES:
                    wait_s = max(left_s, FLUSH_S)
                    done, tries = await asyncio.wait(tries, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in sorted(done, key=lambda task: task.exception() is not None):
                        if task.exception() is None or not tries:
                            return task.result()
        finally:
            for task in tries:
                task.cancel()
            if tries:
                await asyncio.wait(tries)

    async def _write(self, database: Database, newest: Mapping[Session, _Unwritten]) -> set[Session]:
        now = self._clock.monotonic()
        states = [
            ConnectionState(s.worker_id, s.number, h.connected, s.clean, max(0.0, now - h.last))
            for s, h in newest.items()
        ]
        # A single statement is its own transaction. A lost hint is sent again with the repeated write.
        async with database.connection() as connection:
            written = await write_liveness(connection, states)
            self._wrote()  # not later, because a fence counts from the written times
            current = {session for session in newest if session.worker_id in written}
            await notify(connection, "worker", {session.worker_id for session in current if newest[session].notify})
        return current

    async def _flush_readings(self) -> None:
        """Writes the readings in batches of workers. After a failure a batch is kept."""
        for sessions in _batches(list(self._readings)):
            batch = {
                session: unread for session in sessions if (unread := self._readings.pop(session, None)) is not None
            }
            try:
                async with asyncio.timeout(_READINGS_LIMIT_S):
                    await self._write_readings(batch)
            except BaseException:
                self._readings = batch | self._readings
                raise

    async def _write_readings(self, batch: Mapping[Session, _Unread]) -> None:
        now = self._clock.monotonic()
        async with self._database.transaction() as connection:
            newest = await newest_sessions(connection, [(s.worker_id, s.number) for s in batch])
            current = {session: batch[session] for session in batch if (session.worker_id, session.number) in newest}
            foreign = await write_readings(
                connection, [r for session, unread in current.items() for r in _readings(session, unread, now)]
            )
            await write_details(
                connection,
                [r for session, unread in current.items() for r in details_of(session.worker_id, unread.gpus)],
            )
            names = {session.worker_id: session.name for session in current}
            await write_events(connection, foreign_events(foreign, names))
            await notify(connection, "worker", {use.worker_id for use in foreign})


def _batches(sessions: Sequence[Session]) -> Iterable[Sequence[Session]]:
    return (sessions[n : n + _READ_AT_ONCE] for n in range(0, len(sessions), _READ_AT_ONCE))


def foreign_events(uses: Iterable[ForeignUse], names: Mapping[str, str] = MappingProxyType({})) -> Iterable[NewEvent]:
    """Events for the start and the end of unclaimed memory use; changes in between make none.

    `names`: of workers whose agents are the actors of the events; otherwise the actor is the current one.
    """
    for use in uses:
        actor = f"agent:{names[use.worker_id]}" if use.worker_id in names else ""
        objects = (f"gpu:{use.device}", f"worker:{use.worker_id}")
        if not use.before_mib:
            message = f"{use.foreign_mib} MiB of {use.device} are in use without a claim and cannot be placed on"
            yield NewEvent("gpu_memory_unclaimed", message, objects, {"foreign_mib": use.foreign_mib}, actor)
        elif not use.foreign_mib:
            message = f"the memory of {use.device} that was in use without a claim is free again"
            yield NewEvent("gpu_memory_explained", message, objects, {"before_mib": use.before_mib}, actor)


def _newest(batch: Mapping[Session, _Unwritten]) -> dict[Session, _Unwritten]:
    """Each worker's newest connection."""
    newest: dict[str, Session] = {}
    for session in batch:
        known = newest.get(session.worker_id)
        if known is None or session.number > known.number:
            newest[session.worker_id] = session
    return {session: batch[session] for session in newest.values()}


def details_of(worker_id: str, gpus: Iterable[ReportedGpu] | None) -> list[DetailsRow]:
    """Rows of the GPUs for which the agent sends details now."""
    return [
        DetailsRow(worker_id, gpu.uuid, _details_json(gpu.details)) for gpu in gpus or () if gpu.details is not None
    ]


def _details_json(details: GpuDetails) -> str:
    known = {name: value for name, value in msgspec.structs.asdict(details).items() if value is not None}
    return msgspec.json.encode(known).decode()


def _readings(session: Session, unread: _Unread, now: float) -> Iterable[Reading]:
    age_s = max(0.0, now - unread.at)
    for gpu in unread.gpus or ():
        yield Reading(session.worker_id, gpu.uuid, gpu.used_mib, gpu.utilization, age_s)
    if unread.gpus is None:
        for uuid in unread.unread:
            yield Reading(session.worker_id, uuid, None, None, age_s)
