"""Periods close on time, even if the driver hangs or the host sleeps."""

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.engine_proxy.in_flight import InFlightRequests
from agent.gpus.reader import GpuReading, GpuWork
from agent.host_inventory.inventory import InventoryWatch
from agent.sampling.backlog import Backlog
from agent.sampling.pid_owners import PidOwners
from agent.sampling.request_counts import RequestCounter
from agent.sampling.sampler import Sampler
from agent.state.process_records import ProcessRecord
from schemas.wire import ReportedGpu, ReportedHost, SamplePeriod
from support.builders.in_flight import a_request
from support.standins.controller import start_order

pytestmark = pytest.mark.looptime

HOST = ReportedHost(os="linux", arch="x", hostname="h", memory_mib=1, cpu_milli=1)


class Host:
    """A host with one GPU; a test sets its answers, and moves its clock forward as after a sleep."""

    def __init__(self) -> None:
        self.slept_s = 5_000.0
        self.percent = 10.0
        self.takes_s = 0.0
        self.live: tuple[ProcessRecord, ...] = ()
        self.in_flight = InFlightRequests()
        self.answer: Callable[[], Awaitable[None]] | None = None
        self.work: dict[str, GpuWork] = {}
        self.backlog = Backlog()

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.slept_s

    async def open(self) -> None: ...
    async def aclose(self) -> None: ...
    async def driver(self) -> str | None:
        return None

    async def read(self) -> tuple[ReportedGpu, ...] | None:
        reading = await self.sample()
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        if self.answer is not None:
            await self.answer()
            return None
        await asyncio.sleep(self.takes_s)
        gpu = ReportedGpu(uuid="GPU-a", index=0, model="H100", memory_mib=1, utilization=self.percent)
        return GpuReading((gpu,), self.work)

    async def closed(self) -> list[SamplePeriod]:
        """The periods in the backlog."""
        if not len(self.backlog):
            return []
        self.backlog.rewind()
        return list(await self.backlog.next())


@asynccontextmanager
async def sampling(host: Host, folder: Path, period_s: float = 10.0) -> AsyncIterator[Sampler]:
    requests = RequestCounter(lambda: host.live, host.in_flight, host.clock)
    inventory = InventoryWatch(host, HOST)
    sampler = Sampler(inventory, lambda: host.live, PidOwners(str(folder)), requests, host.backlog, host.clock)
    sampler.period_s = period_s
    running = asyncio.create_task(sampler.run())
    try:
        yield sampler
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_period_holds_only_its_own_readings(tmp_path: Path) -> None:
    host = Host()
    async with sampling(host, tmp_path):
        await asyncio.sleep(9.5)
        host.percent = 90.0
        await asyncio.sleep(1.0)
        host.percent = 0.0
        await asyncio.sleep(10.0)
        first, second = await host.closed()
    assert (first.gpus[0].max, first.gpus[0].mean) == (90.0, pytest.approx(18.0))
    assert second.gpus[0].max == 0.0
    assert [first.sampled_s, second.sampled_s] == pytest.approx([5_010, 5_020], abs=0.01)
    assert (first.seq, first.period_s) == (int(first.sampled_s * 1000), 10.0)


async def test_a_hanging_driver_makes_no_samples_and_blocks_nothing(tmp_path: Path) -> None:
    host = Host()
    async with sampling(host, tmp_path) as sampler:
        await asyncio.sleep(10.5)
        host.answer = lambda: asyncio.sleep(1_000)
        await asyncio.sleep(60.0)
        host.answer = None
        await asyncio.sleep(20.0)
        periods = await host.closed()
        assert sampler.period_s == 10.0
    gaps = [after.sampled_s - before.sampled_s for before, after in itertools.pairwise(periods)]
    assert gaps[0] > 50  # no samples for the time in between
    assert all(gap == pytest.approx(10, abs=0.01) for gap in gaps[1:])


async def test_periods_restart_after_the_host_slept(tmp_path: Path) -> None:
    host = Host()
    async with sampling(host, tmp_path):
        await asyncio.sleep(14.0)
        host.slept_s += 3_600.0
        await asyncio.sleep(31.0)
        periods = await host.closed()
        times = [period.sampled_s - 5_000 for period in periods]
        spoken = [period.read_s for period in periods]
    assert times == pytest.approx([10, 13, 3_614, 3_624, 3_634, 3_644], abs=0.01)  # none for the hour of sleep
    assert spoken == pytest.approx([9, 3, 0, 10, 10, 10], abs=0.01)


@pytest.mark.parametrize("percent", [101.0, -1.0, 2.0**32, float("nan")])
async def test_u48_an_impossible_reading_is_unknown_and_counted(tmp_path: Path, percent: float) -> None:
    host = Host()
    async with sampling(host, tmp_path):
        await asyncio.sleep(4.5)
        host.percent = percent
        await asyncio.sleep(4.0)
        host.percent = 10.0
        await asyncio.sleep(12.0)
        periods = await host.closed()
    assert [(p.gpus[0].max, p.read_s, p.impossible) for p in periods] == [
        (10.0, pytest.approx(3, abs=0.01), 4),
        (10.0, pytest.approx(1, abs=0.01), 0),
        (10.0, pytest.approx(10, abs=0.01), 0),
    ]


@pytest.mark.parametrize("takes_s", [1.2, 1.9])
async def test_slow_readings_leave_no_gap(tmp_path: Path, takes_s: float) -> None:
    host = Host()
    host.takes_s = takes_s
    async with sampling(host, tmp_path):
        await asyncio.sleep(61.0)
        periods = await host.closed()
    ends = [(p.sampled_s - (p.read_s or 0), p.sampled_s) for p in periods]
    assert len(ends) >= 4
    assert [begin for begin, _ in ends[1:]] == pytest.approx([end for _, end in ends[:-1]])


async def test_requests_of_a_time_without_samples_come_with_the_next_one(tmp_path: Path) -> None:
    host = Host()
    record = ProcessRecord(
        instance="i", epoch=1, rank=0, state="running", boot_id="b", ready=True, port=1,
        order=start_order("run", gpus=("GPU-a",)),
    )  # fmt: skip
    host.live = (record,)
    async with sampling(host, tmp_path):
        await asyncio.sleep(10.5)
        host.answer = lambda: asyncio.sleep(1_000)
        await asyncio.sleep(20)
        for _ in range(3):
            with a_request(host.in_flight):
                pass
        await asyncio.sleep(20)
        host.answer = None
        await asyncio.sleep(30)
        periods = await host.closed()
    seen = [(p.processes[0].requests, p.processes[0].arrived) for p in periods]
    assert seen[:3] == [(0, 0), (1, 3), (0, 0)]


async def test_a_new_period_length_applies_at_once(tmp_path: Path) -> None:
    host = Host()
    async with sampling(host, tmp_path, period_s=60.0) as sampler:
        await asyncio.sleep(3.5)
        sampler.period_s = 2.0
        await asyncio.sleep(3.0)  # closed at 4, with the new length, and at 6
        assert [period.period_s for period in await host.closed()] == [2.0, 2.0]


async def test_a_reader_and_owners_without_files_are_unknown_and_sampling_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_files() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def find(*_: object) -> dict[int, None]:
        raise OSError(errno.EMFILE, "Too many open files")

    host = Host()
    host.work = {"GPU-a": GpuWork(running=(7,), percent={7: 50.0})}
    monkeypatch.setattr(PidOwners, "find", find)
    async with sampling(host, tmp_path):
        await asyncio.sleep(10.5)
        host.answer = no_files
        await asyncio.sleep(20.0)
        assert await InventoryWatch(host, HOST).read_gpus() is None
        host.answer = None
        await asyncio.sleep(20.0)
        first, *_, last = await host.closed()
    assert first.gpus[0].mean == 10.0
    assert last.sampled_s - first.sampled_s > 20
