"""Heartbeats and GPU readings: kept in memory, written for all connections once a second."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog

from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.workers.gpu_details import DetailsRow, write_details
from controller.store.workers.heartbeats import ConnectionState, ForeignUse, Reading, write_liveness, write_readings
from schemas.wire import DeviceFacts

log = structlog.get_logger(__name__)

FLUSH_S: Final = 1.0
FLUSH_LIMIT_S: Final = 8.0
RETURNED_AFTER_S: Final = 10.0  # silence after which a worker may have been marked unreachable
UNHEALTHY_AFTER_S: Final = 5.0  # without a successful write
CUT_AFTER_S: Final = 20.0  # without a successful write; a fence's margin covers it


@dataclass(slots=True)
class _Unwritten:
    """What one connection has sent and is not written yet."""

    last: float
    connected: bool = True
    notify: bool = False
    gpus: tuple[DeviceFacts, ...] | None = ()
    unread: tuple[str, ...] = ()  # GPUs that could not be read


class Liveness:
    """Keeps and writes liveness of all connections.

    Args:
        database: to write to.
        clock: time.
        superseded: called with a session that is no longer its worker's newest, or whose worker is deleted.
        cut_all: called when writes have failed for so long that agents must connect to another controller.
        returned_after_s: a message after so much silence wakes the leader: the worker may have been marked unreachable.
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
        """Notes a written hello."""
        self._last[session] = self._clock.monotonic()

    def heard(self, session: Session) -> None:
        """Notes the arrival of any message."""
        now = self._clock.monotonic()
        returned = now - self._last.get(session, now) >= self._returned_after_s
        self._last[session] = now
        unwritten = self._of(session)
        unwritten.last = now
        unwritten.notify = unwritten.notify or returned

    def read(self, session: Session, gpus: tuple[DeviceFacts, ...] | None) -> None:
        """Notes the readings of a heartbeat; None: the GPUs could not be read."""
        unwritten = self._of(session)
        if gpus is None:
            unwritten.unread = unwritten.unread or tuple(gpu.uuid for gpu in session.gpus or ())
        unwritten.gpus = gpus

    def leaves(self, session: Session) -> None:
        """Notes that the agent shuts down. It is written at once: nothing may be placed there any more."""
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
            return
        unwritten = self._unwritten.setdefault(session, _Unwritten(last))
        unwritten.connected = False
        unwritten.notify = True
        self._now.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        started = self._clock.monotonic()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._now.wait()
            self._now.clear()
            try:
                async with asyncio.timeout(FLUSH_LIMIT_S):
                    await self._flush()
            except DATABASE_ERRORS as error:
                log.warning("liveness not written", error=str(error) or type(error).__name__)
                self._healthy_since = None
                if self._clock.monotonic() - (self._last_write or started) >= CUT_AFTER_S:
                    self._cut_all("the controller cannot reach its database")
                await self._clock.sleep(FLUSH_S)
                continue
            self._wrote()

    def _of(self, session: Session) -> _Unwritten:
        return self._unwritten.setdefault(session, _Unwritten(self._last.get(session, self._clock.monotonic())))

    def _wrote(self) -> None:
        now = self._clock.monotonic()
        if self._last_write is None or now - self._last_write > UNHEALTHY_AFTER_S or self._healthy_since is None:
            self._healthy_since = now
        self._last_write = now

    async def _flush(self) -> None:
        """Writes all in one transaction; a failed write stays for the next one."""
        batch, self._unwritten = self._unwritten, {}
        try:
            current = await self._write(batch)
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

    async def _write(self, batch: dict[Session, _Unwritten]) -> set[Session]:
        now = self._clock.monotonic()
        newest = _newest(batch)
        async with self._database.transaction() as connection:
            seen = [
                ConnectionState(s.worker_id, s.number, h.connected, s.clean, max(0.0, now - h.last))
                for s, h in newest.items()
            ]
            written = await write_liveness(connection, seen)
            current = {session for session in newest if session.worker_id in written}
            foreign = await write_readings(connection, [r for s in current for r in _readings(s, newest[s], now)])
            await write_details(connection, [r for s in current for r in details_of(s.worker_id, newest[s].gpus)])
            names = {session.worker_id: session.name for session in newest}
            await write_events(connection, foreign_events(foreign, names))
            touched = {session.worker_id for session in current if newest[session].notify}
            touched |= {use.worker_id for use in foreign}
            await notify(connection, "worker", touched)
        return current


def foreign_events(uses: Iterable[ForeignUse], names: Mapping[str, str] = MappingProxyType({})) -> Iterable[NewEvent]:
    """Events for the begin and the end of unclaimed memory use; changes in between make none.

    Args:
        uses: the changes.
        names: of the workers, whose agents are the actors; without a name it is the agent at work.
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


def _newest(batch: dict[Session, _Unwritten]) -> dict[Session, _Unwritten]:
    """Each worker's newest connection."""
    newest: dict[str, Session] = {}
    for session in batch:
        known = newest.get(session.worker_id)
        if known is None or session.number > known.number:
            newest[session.worker_id] = session
    return {session: batch[session] for session in newest.values()}


def details_of(worker_id: str, gpus: Iterable[DeviceFacts] | None) -> list[DetailsRow]:
    """The details of those GPUs with which the agent sends them now."""
    return [
        DetailsRow(worker_id, gpu.uuid, gpu.details.model_dump_json(exclude_none=True))
        for gpu in gpus or ()
        if gpu.details is not None
    ]


def _readings(session: Session, unwritten: _Unwritten, now: float) -> Iterable[Reading]:
    age_s = max(0.0, now - unwritten.last)
    for gpu in unwritten.gpus or ():
        yield Reading(session.worker_id, gpu.uuid, gpu.used_mib, gpu.utilization, age_s)
    if unwritten.gpus is None:
        for uuid in unwritten.unread:
            yield Reading(session.worker_id, uuid, None, None, age_s)
