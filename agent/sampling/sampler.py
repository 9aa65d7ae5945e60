"""Reads the GPUs every second, and closes a sampling period every few seconds, with or without a controller."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import structlog

from agent.clock import Clock
from agent.gpus.reader import GpuReading, GpuWork
from agent.host_inventory.inventory import InventoryWatch
from agent.sampling.backlog import Backlog
from agent.sampling.periods import Holder, PeriodAccumulator
from agent.sampling.pid_owners import PidOwners
from agent.sampling.request_counts import RequestCounter, Requests
from agent.state.process_records import ProcessKey, ProcessRecord
from schemas.wire import SAMPLE_S, SamplePeriod

READ_EVERY_S: Final = 1.0
_OWNERS_LIMIT_S: Final = 1.0
_NO_WORK: Final = GpuWork()

log = structlog.get_logger()


class Sampler:
    """Owns the sampling periods."""

    def __init__(
        self,
        inventory: InventoryWatch,
        live: Callable[[], tuple[ProcessRecord, ...]],
        owners: PidOwners,
        requests: RequestCounter,
        backlog: Backlog,
        clock: Clock,
    ) -> None:
        self.period_s = SAMPLE_S  # a change also applies to the present period
        self._inventory = inventory
        self._live = live
        self._owners = owners
        self._requests = requests
        self._backlog = backlog
        self._clock = clock
        self._finding: asyncio.Task[dict[int, ProcessKey | None]] | None = None
        self._seq = 0
        self._readings = PeriodAccumulator()
        self._unsent: dict[ProcessKey, Requests] = {}
        self._present: dict[ProcessKey, Requests] = {}
        self._impossible = 0
        self._due_s = 0.0  # of the last reading

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests.run(), name="request gauges")
                await self._sample()
        finally:
            if self._finding is not None:
                self._finding.cancel()  # its thread cannot be cancelled: it ends by itself

    async def _sample(self) -> NoReturn:
        started_s = self._due_s = self._clock()
        while True:
            await self._read_period(started_s)
            self._close()
            started_s += self.period_s
            # Periods follow one another without a gap, unless the host slept or a reading took longer than a period.
            if (now_s := self._clock()) >= started_s + self.period_s:
                started_s = now_s

    async def _read_period(self, started_s: float) -> None:
        """Reads each second. After a slow reading the next follows at once."""
        while (now_s := self._clock()) < (end_s := started_s + self.period_s):
            self._due_s = min(max(self._due_s + READ_EVERY_S, now_s), end_s)
            await asyncio.sleep(self._due_s - now_s)
            reading = await self._inventory.sample_gpus()
            if reading is not None:
                at_s = self._clock()
                owners = await self._owners_of(reading)
                self._inventory.note_processes(reading.work, owners)
                for gpu in reading.gpus:
                    self._readings.add(at_s, gpu, reading.work.get(gpu.uuid, _NO_WORK), owners)

    def _close(self) -> None:
        """Puts readings into the backlog. Requests are kept until a sample of their process can carry them."""
        live = self._live()
        self._gather_requests(live)
        impossible = self._impossible + self._inventory.take_impossible() + self._requests.take_impossible()
        for period in self._readings.close():
            processes = [sample for record in live if (sample := period.process(self._holder(record))) is not None]
            for sample in processes:
                self._unsent.pop(ProcessKey(sample.instance, sample.epoch, sample.rank), None)
            self._seq = max(self._seq + 1, int(period.end_s * 1000))
            self._backlog.add(
                SamplePeriod(
                    seq=self._seq,
                    sampled_s=period.end_s,
                    period_s=self.period_s,
                    read_s=period.read_s,
                    impossible=impossible,
                    gpus=period.gpus(),
                    processes=tuple(processes),
                )
            )
            impossible = 0
        self._impossible = impossible  # no sample could carry them

    def _gather_requests(self, live: tuple[ProcessRecord, ...]) -> None:
        """Adds the requests of this period to those not sampled yet."""
        taken = self._requests.take(live)
        before, self._unsent = self._unsent, dict(taken)
        self._present = taken
        for key, now in taken.items():
            if (kept := before.get(key)) is not None and (kept.most or kept.arrived):
                most = max(kept.most or 0, now.most or 0)
                self._unsent[key] = Requests(most or now.most, kept.arrived + now.arrived)

    def _holder(self, record: ProcessRecord) -> Holder:
        """The process with its requests; those in an earlier part of this period are not counted again."""
        requests = self._unsent.get(record.key, Requests(self._present[record.key].most, 0))
        devices = tuple(claim.device for claim in record.claims)
        pressure = self._requests.pressure(record.key)
        return Holder(record.key, devices, requests.most, requests.arrived, pressure.queued, pressure.kv_use)

    async def _owners_of(self, reading: GpuReading) -> Mapping[int, ProcessKey | None]:
        """The owners of the driver's pids; empty (unknown) while /proc cannot be read."""
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
