"""Reads the GPUs every second, and closes a sampling period every few seconds, with or without a controller."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import structlog

from agent.clock import Clock
from agent.gpus.reader import GpuReading, GpuWork
from agent.inventory import InventoryWatch
from agent.process_records import ProcessKey, ProcessRecord
from agent.sampling.backlog import Backlog
from agent.sampling.periods import Holder, PeriodAccumulator
from agent.sampling.pid_owners import PidOwners
from agent.sampling.request_counts import RequestCounter
from schemas.wire import SAMPLE_S, SamplePeriod

READ_EVERY_S: Final = 1.0
_OWNERS_LIMIT_S: Final = 1.0
_NO_WORK: Final = GpuWork()

log = structlog.get_logger()


class Sampler:
    """Owns the sampling periods.

    Attributes:
        period_s: length of a period; a change also applies to the present period.

    Args:
        inventory: reads the GPUs; limits the time of each reading.
        live: the processes that run now.
        owners: maps pids to processes.
        requests: counts requests.
        backlog: keeps the closed periods.
        clock: seconds since the host's boot.
    """

    def __init__(
        self,
        inventory: InventoryWatch,
        live: Callable[[], tuple[ProcessRecord, ...]],
        owners: PidOwners,
        requests: RequestCounter,
        backlog: Backlog,
        clock: Clock,
    ) -> None:
        self.period_s = SAMPLE_S
        self._inventory = inventory
        self._live = live
        self._owners = owners
        self._requests = requests
        self._backlog = backlog
        self._clock = clock
        self._finding: asyncio.Task[dict[int, ProcessKey | None]] | None = None
        self._seq = 0

    async def run(self) -> None:
        """Samples until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests.run(), name="request gauges")
                await self._sample()
        finally:
            if self._finding is not None:
                self._finding.cancel()  # its thread cannot be cancelled: it ends by itself

    async def _sample(self) -> NoReturn:
        began_s = self._clock()
        while True:
            self._close(await self._read_period(began_s))
            began_s += self.period_s
            # Periods follow one another without a gap, unless the host slept or a reading took longer than a period.
            if (now_s := self._clock()) >= began_s + self.period_s:
                began_s = now_s

    async def _read_period(self, began_s: float) -> PeriodAccumulator:
        readings = PeriodAccumulator()
        while (left_s := began_s + self.period_s - self._clock()) > 0:
            await asyncio.sleep(min(READ_EVERY_S, left_s))
            reading = await self._inventory.sample_gpus()
            if reading is not None:
                owners = await self._owners_of(reading)
                for gpu in reading.gpus:
                    readings.add(gpu, reading.work.get(gpu.uuid, _NO_WORK), owners)
        return readings

    def _close(self, readings: PeriodAccumulator) -> None:
        live = self._live()
        requests = self._requests.take(live)
        gpus = readings.gpus()
        if not gpus:
            return  # nothing was read
        now_s = self._clock()
        self._seq = max(self._seq + 1, int(now_s * 1000))
        holders = (Holder(r.key, tuple(claim.device for claim in r.claims), requests[r.key]) for r in live)
        self._backlog.add(
            SamplePeriod(
                seq=self._seq,
                sampled_s=now_s,
                period_s=self.period_s,
                gpus=gpus,
                processes=tuple(readings.process(holder) for holder in holders if holder.devices),
            )
        )

    async def _owners_of(self, reading: GpuReading) -> Mapping[int, ProcessKey | None]:
        """The owners of the driver's pids; empty (all unknown) while /proc cannot be read."""
        pids = {pid for work in reading.work.values() for pid in (*work.running, *(work.percent or ()))}
        if not pids:
            return {}
        if self._finding is not None and not self._finding.done():
            return {}
        self._finding = asyncio.create_task(asyncio.to_thread(self._owners.find, pids, self._live()))
        await asyncio.wait({self._finding}, timeout=_OWNERS_LIMIT_S)
        if not self._finding.done():
            return {}
        try:
            return self._finding.result()
        except OSError as error:
            log.warning("owners of GPU processes not read", error=repr(error))
            return {}
