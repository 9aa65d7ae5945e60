"""Writes agents' samples, batched over all connections. Acknowledged after the commit."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.hub.partitions import PartitionUpkeep
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.telemetry.samples import NoPartitionError, SamplesWritten, SessionSamples, write_samples
from schemas.wire import SamplePeriod, Samples, SamplesAck

log = structlog.get_logger(__name__)

GATHER_S: Final = 0.5
BATCH: Final = 20_000  # readings of GPUs and processes in one transaction
MAX_UNWRITTEN: Final = 50_000  # of one agent, which sends at most a few hundred KiB before an acknowledgement
WRITE_LIMIT_S: Final = 20.0
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_RETRIED: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, NoPartitionError)


@dataclass(slots=True)
class _Unwritten:
    """What one connection has sent and is not written yet, by sequence number."""

    session: Session
    periods: dict[int, SamplePeriod] = field(default_factory=dict)
    size: int = 0

    def add(self, period: SamplePeriod) -> None:
        if period.seq not in self.periods:
            self.periods[period.seq] = period
            self.size += 1 + len(period.gpus) + len(period.processes)


class SampleWriter:
    """One writer for all connections. Without the database nothing is acknowledged, and agents keep their samples.

    Args:
        database: to write to.
        clock: time.
        partitions: creates the partitions of samples.
    """

    def __init__(self, database: Database, clock: Clock, partitions: PartitionUpkeep) -> None:
        self._database = database
        self._clock = clock
        self._partitions = partitions
        self._unwritten: dict[Session, _Unwritten] = {}
        self._more = asyncio.Event()

    def take(self, session: Session, samples: Samples) -> None:
        """Queues the samples of a message that has just arrived."""
        session.compare_clocks(self._clock.monotonic(), samples.sent_s)
        unwritten = self._unwritten.setdefault(session, _Unwritten(session))
        for period in samples.periods:
            unwritten.add(period)
        if unwritten.size > MAX_UNWRITTEN:
            self.closed(session)
            session.cut("too many unwritten samples; send them again, fewer at a time")
            return
        self._more.set()

    def closed(self, session: Session) -> None:
        """Drops unwritten samples: the agent sends them again on its next connection."""
        self._unwritten.pop(session, None)

    async def run(self) -> None:
        """Writes until cancelled."""
        await self._partitions.ready.wait()
        failures = 0
        while True:
            await self._more.wait()
            await self._clock.sleep(GATHER_S)
            # After a failure one connection at a time, so that a connection at fault does not block the others.
            batch = self._take_batch(1 if failures else BATCH)
            try:
                async with asyncio.timeout(WRITE_LIMIT_S):
                    await self._write(batch)
                failures = 0
            except _RETRIED as error:
                if isinstance(error, NoPartitionError):
                    self._partitions.wake()
                self._put_back(batch)
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                log.warning("samples not written", error=str(error), attempt=failures, retry_s=wait_s)
                await self._clock.sleep(wait_s)

    def _take_batch(self, limit: int) -> list[_Unwritten]:
        """The queues of whole connections, about `limit` readings, the oldest first."""
        batch: list[_Unwritten] = []
        size = 0
        while self._unwritten and size < limit:
            batch.append(self._unwritten.pop(next(iter(self._unwritten))))
            size += batch[-1].size
        if not self._unwritten:
            self._more.clear()
        return batch

    def _put_back(self, batch: Iterable[_Unwritten]) -> None:
        """Queues an unwritten batch again, behind the others, except for connections that have ended."""
        for old in batch:
            if old.session.over:
                continue
            newer = self._unwritten.pop(old.session, None)
            for period in newer.periods.values() if newer is not None else ():
                old.add(period)
            self._unwritten[old.session] = old
        if self._unwritten:
            self._more.set()

    async def _write(self, batch: list[_Unwritten]) -> None:
        async with self._database.transaction() as connection:
            written = await write_samples(connection, [_of_session(w) for w in batch], self._clock.monotonic)
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
