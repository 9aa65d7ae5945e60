"""Takes agents' samples, and writes what has come together in one transaction. Acknowledged after the commit."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.telemetry.partition_maintenance import PartitionMaintenance
from controller.store.telemetry.samples import NoPartitionError, SamplesWritten, SessionSamples, write_samples
from schemas.wire import SamplePeriod, Samples, SamplesAck

log = structlog.get_logger(__name__)

GATHER_S: Final = 0.5
BATCH: Final = 20_000  # readings of GPUs and processes in one transaction
MAX_WAITING: Final = 50_000  # of one agent; it sends no more than a few hundred KiB before it is answered
WRITE_LIMIT_S: Final = 20.0
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_PUT_OFF: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, NoPartitionError)


@dataclass(slots=True)
class _Waiting:
    """What one connection has sent and is not written yet, by sequence number."""

    session: Session
    periods: dict[int, SamplePeriod] = field(default_factory=dict)
    size: int = 0

    def add(self, period: SamplePeriod) -> None:
        if period.seq not in self.periods:
            self.periods[period.seq] = period
            self.size += 1 + len(period.gpus) + len(period.processes)


class SampleWriter:
    """One writer for all connections. While the database is away nothing is acknowledged: agents keep what they have.

    Args:
        database: where to write.
        clock: time.
        partitions: creates missing ones.
    """

    def __init__(self, database: Database, clock: Clock, partitions: PartitionMaintenance) -> None:
        self._database = database
        self._clock = clock
        self._partitions = partitions
        self._waiting: dict[Session, _Waiting] = {}
        self._more = asyncio.Event()

    def take(self, session: Session, samples: Samples) -> None:
        """Takes a message that has just come."""
        session.compare_clocks(self._clock.monotonic(), samples.sent_s)
        waiting = self._waiting.setdefault(session, _Waiting(session))
        for period in samples.periods:
            waiting.add(period)
        if waiting.size > MAX_WAITING:
            self.closed(session)
            session.cut("more samples are waiting than can be kept; send them again, fewer at a time")
            return
        self._more.set()

    def closed(self, session: Session) -> None:
        """Forgets what is not written: the agent sends it again on its next connection."""
        self._waiting.pop(session, None)

    async def run(self) -> None:
        """Writes until cancelled."""
        await self._partitions.ready.wait()
        failures = 0
        while True:
            await self._more.wait()
            await self._clock.sleep(GATHER_S)
            # After a failure one connection at a time: if one of them is at fault, the others are not held up by it.
            batch = self._take_batch(1 if failures else BATCH)
            try:
                async with asyncio.timeout(WRITE_LIMIT_S):
                    await self._write(batch)
                failures = 0
            except _PUT_OFF as error:
                if isinstance(error, NoPartitionError):
                    self._partitions.wake()
                self._put_back(batch)
                wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
                failures += 1
                log.warning("samples not written", error=str(error), attempt=failures, retry_s=wait_s)
                await self._clock.sleep(wait_s)

    def _take_batch(self, limit: int) -> list[_Waiting]:
        """Whole connections' worth of what waits, about `limit` readings; the longest waiting first."""
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and size < limit:
            batch.append(self._waiting.pop(next(iter(self._waiting))))
            size += batch[-1].size
        if not self._waiting:
            self._more.clear()
        return batch

    def _put_back(self, batch: Iterable[_Waiting]) -> None:
        """Keeps what was not written, behind the others, where its connection lives."""
        for old in batch:
            if old.session.over:
                continue
            newer = self._waiting.pop(old.session, None)
            for period in newer.periods.values() if newer is not None else ():
                old.add(period)
            self._waiting[old.session] = old
        if self._waiting:
            self._more.set()

    async def _write(self, batch: list[_Waiting]) -> None:
        async with self._database.transaction() as connection:
            written = await write_samples(connection, [_of_session(w) for w in batch], self._clock.monotonic)
        if written.too_old:
            log.info("samples left out: older than is kept", rows=written.too_old)
        _acknowledge(batch, written)


def _of_session(waiting: _Waiting) -> SessionSamples:
    session = waiting.session
    return SessionSamples(
        session.worker_id, session.number, session.boot_id, session.offset_s or 0.0, tuple(waiting.periods.values())
    )


def _acknowledge(batch: Iterable[_Waiting], written: SamplesWritten) -> None:
    for waiting in batch:
        session = waiting.session
        if (session.worker_id, session.number) not in written.held:
            session.cut("a newer connection of this worker has taken over")
        elif waiting.periods:
            session.send(SamplesAck(seq=max(waiting.periods)))
