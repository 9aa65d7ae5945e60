"""Writes agents' samples, batched over all connections. Acknowledged after the commit."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self

import asyncpg
import structlog

from controller.hub.agent_messages import size_of
from controller.hub.session import Session
from controller.hub.worker_budget import MAX_UNWRITTEN_SAMPLES
from controller.hub.write_queue import Unwritten, WriteQueue
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.metrics import HubMetrics
from controller.store.core.database import Database
from controller.store.telemetry.partitions import PartitionMaintenance
from controller.store.telemetry.samples import (
    NoPartitionError,
    SamplesWritten,
    SessionSamples,
    record_dropped,
    write_samples,
)
from schemas.wire import SamplePeriod, Samples, SamplesAck

log = structlog.get_logger(__name__)

GATHER_S: Final = 0.5
BATCH: Final = 20_000  # readings of GPUs and processes in one transaction
RECORD_EVERY_S: Final = 30.0

# Errors of values, not of the database: a later attempt would fail in the same way.
UNTAKEABLE: Final[tuple[type[Exception], ...]] = (
    asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, ValueError, TypeError, OverflowError,
)  # fmt: skip
_RETRIED: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, NoPartitionError)


@dataclass(slots=True)
class _Unwritten(Unwritten):
    """The unwritten periods of one connection, by sequence number."""

    session: Session
    periods: dict[int, SamplePeriod] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)  # invalid periods, with the reason
    size: int = 0

    def __len__(self) -> int:
        return self.size + len(self.dropped)

    def drop(self, seq: int, reason: str) -> None:
        if self.periods.pop(seq, None) is not None:
            self.size -= 1  # a lower bound is enough
        self.dropped[seq] = reason

    def add(self, period: SamplePeriod) -> None:
        if period.seq not in self.periods:
            self.periods[period.seq] = period
            self.size += size_of(period)

    def add_newer(self, newer: Self) -> None:
        for period in newer.periods.values():
            self.add(period)
        for seq, reason in newer.dropped.items():
            self.drop(seq, reason)


class SampleWriter:
    """One writer for all connections. Without the database nothing is acknowledged, and agents keep their samples."""

    def __init__(self, database: Database, clock: Clock, partitions: PartitionMaintenance, metrics: HubMetrics) -> None:
        self._database = database
        self._clock = clock
        self._partitions = partitions
        self._metrics = metrics
        self._recorded_s: dict[Session, float] = {}  # when a dropped period was last recorded
        self._queue = WriteQueue(clock, _Unwritten, keep_ended=False)

    def take(self, session: Session, samples: Samples) -> None:
        session.compare_clocks(self._clock.monotonic(), samples.sent_s)
        unwritten = self._queue.entry(session)
        for period in samples.periods:
            unwritten.add(period)
        for seq, reason in session.doubts.dropped.items():
            unwritten.drop(seq, reason)
        if len(unwritten) > MAX_UNWRITTEN_SAMPLES:
            self.closed(session)
            session.cut("too many unwritten samples; send them again, fewer at a time")
            return
        self._queue.added()

    def closed(self, session: Session) -> None:
        """Drops unwritten samples: the agent sends them again on its next connection."""
        self._queue.drop(session)
        self._recorded_s.pop(session, None)

    async def run(self) -> None:
        await self._partitions.ready.wait()
        await self._queue.run("samples", self._write, batch_size=BATCH, gather_s=GATHER_S, retried=_RETRIED)

    async def _write(self, batch: list[_Unwritten]) -> None:
        """Writes a batch. If the database refuses a value, each period is tried by itself."""
        try:
            written = await self._store(batch)
        except UNTAKEABLE as error:
            log.warning("samples refused by the database", error=str(error), connections=len(batch))
            for unwritten in batch:
                await self._try_each(unwritten)
            written = await self._store(batch)
        if written.too_old:
            log.info("samples dropped: older than the retention", rows=written.too_old)
        for unwritten in batch:
            await self._record_dropped(unwritten)
        _acknowledge(batch, written)

    async def _store(self, batch: list[_Unwritten]) -> SamplesWritten:
        try:
            async with self._database.transaction() as connection:
                return await write_samples(connection, [_of_session(u) for u in batch], self._clock.monotonic)
        except NoPartitionError:
            self._partitions.wake()
            raise

    async def _try_each(self, unwritten: _Unwritten) -> None:
        """Writes the periods one by one, in order, and drops those that the database refuses."""
        for seq in sorted(unwritten.periods):
            try:
                await self._store([_Unwritten(unwritten.session, {seq: unwritten.periods[seq]})])
            except UNTAKEABLE as error:
                unwritten.drop(seq, f"the database refuses it: {error}")
                self._metrics.doubted(0, 1)

    async def _record_dropped(self, unwritten: _Unwritten) -> None:
        """Shows on the worker that periods were dropped, at most once in `RECORD_EVERY_S`."""
        if not unwritten.dropped:
            return
        session, now_s = unwritten.session, self._clock.monotonic()
        if now_s - self._recorded_s.get(session, -RECORD_EVERY_S) < RECORD_EVERY_S:
            return
        seq, reason = max(unwritten.dropped.items())
        log.warning("sampling period dropped", worker=session.name, seq=seq, reason=reason)
        self._recorded_s[session] = now_s
        try:
            async with self._database.transaction() as connection:
                await record_dropped(connection, session.worker_id, session.number, f"period {seq}: {reason}")
        except (*UNTAKEABLE, *DATABASE_ERRORS) as error:  # the written periods are acknowledged regardless
            log.warning("dropped period not recorded", worker=session.name, error=str(error) or type(error).__name__)


def _of_session(unwritten: _Unwritten) -> SessionSamples:
    session = unwritten.session
    return SessionSamples(
        session.worker_id, session.number, session.boot_id, session.offset_s or 0.0, tuple(unwritten.periods.values())
    )


def _acknowledge(batch: Iterable[_Unwritten], written: SamplesWritten) -> None:
    for unwritten in batch:
        session = unwritten.session
        if (session.worker_id, session.number) not in written.held:
            session.cut("a newer connection of this worker has taken over")
        elif unwritten.periods or unwritten.dropped:
            session.send(SamplesAck(seq=max([*unwritten.periods, *unwritten.dropped])))
