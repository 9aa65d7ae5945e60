"""Writes agents' samples, batched over all connections. Acknowledged after the commit."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.hub.session import Session
from controller.hub.write_queue import WriteQueue
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.telemetry.partition_maintenance import PartitionMaintenance
from controller.store.telemetry.samples import NoPartitionError, SamplesWritten, SessionSamples, write_samples
from schemas.wire import SamplePeriod, Samples, SamplesAck

log = structlog.get_logger(__name__)

GATHER_S: Final = 0.5
BATCH: Final = 20_000  # readings of GPUs and processes in one transaction
MAX_UNWRITTEN: Final = 50_000  # of one agent, which sends at most a few hundred KiB before an acknowledgement

_RETRIED: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, NoPartitionError)


@dataclass(slots=True)
class _Unwritten:
    """What one connection has sent and is not written yet, by sequence number."""

    session: Session
    periods: dict[int, SamplePeriod] = field(default_factory=dict)
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def add(self, period: SamplePeriod) -> None:
        if period.seq not in self.periods:
            self.periods[period.seq] = period
            self.size += 1 + len(period.gpus) + len(period.processes)


def _merge(older: _Unwritten, newer: _Unwritten) -> None:
    for period in newer.periods.values():
        older.add(period)


class SampleWriter:
    """One writer for all connections. Without the database nothing is acknowledged, and agents keep their samples.

    Args:
        database: to write to.
        clock: time.
        partitions: creates the partitions of samples.
    """

    def __init__(self, database: Database, clock: Clock, partitions: PartitionMaintenance) -> None:
        self._database = database
        self._clock = clock
        self._partitions = partitions
        self._queue = WriteQueue(clock, _Unwritten, _merge, keep_ended=False)

    def take(self, session: Session, samples: Samples) -> None:
        """Queues the samples of a message that has just arrived."""
        session.compare_clocks(self._clock.monotonic(), samples.sent_s)
        unwritten = self._queue.entry(session)
        for period in samples.periods:
            unwritten.add(period)
        if unwritten.size > MAX_UNWRITTEN:
            self.closed(session)
            session.cut("too many unwritten samples; send them again, fewer at a time")
            return
        self._queue.added()

    def closed(self, session: Session) -> None:
        """Drops unwritten samples: the agent sends them again on its next connection."""
        self._queue.drop(session)

    async def run(self) -> None:
        """Writes until cancelled."""
        await self._partitions.ready.wait()
        await self._queue.run("samples", self._write, batch_size=BATCH, gather_s=GATHER_S, retried=_RETRIED)

    async def _write(self, batch: list[_Unwritten]) -> None:
        try:
            async with self._database.transaction() as connection:
                written = await write_samples(connection, [_of_session(u) for u in batch], self._clock.monotonic)
        except NoPartitionError:
            self._partitions.wake()
            raise
        if written.too_old:
            log.info("samples dropped: older than the retention", rows=written.too_old)
        _acknowledge(batch, written)


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
        elif unwritten.periods:
            session.send(SamplesAck(seq=max(unwritten.periods)))
