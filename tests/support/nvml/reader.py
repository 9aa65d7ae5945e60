"""The NVML reader over the false driver library, with a clock that a test moves."""

import asyncio

import psutil

from agent.gpus.child_reader import ChildReader
from agent.gpus.reader import GpuReading
from agent.gpus.verdicts import Verdicts
from schemas.wire import ReportedGpu
from support.nvml.false_driver import GPUS, SLICES, FalseDriver

A, B = GPUS[:2]
MIB_OF_HOST = 120_000


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def living_readers() -> list[psutil.Process]:
    """The children that read GPUs, without dead ones of other tests."""
    living = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return [child for child in living if "agent.gpus.nvml" in child.cmdline()]


class Reader(ChildReader):
    """A reader with a generous limit and a clock that a test moves."""

    def __init__(self, limit_s: float = 20.0, verdicts: Verdicts | None = None) -> None:
        self.clock = Clock()
        super().__init__(
            limit_s=limit_s, clock=self.clock, host="host-1", host_memory_mib=MIB_OF_HOST, verdicts=verdicts
        )

    async def after(self, seconds: float) -> tuple[ReportedGpu, ...]:
        """What is read so much later."""
        self.clock.now_s += seconds
        return await self.read() or ()

    async def by_uuid(self, seconds: float = 0.0) -> dict[str, ReportedGpu]:
        return {gpu.uuid: gpu for gpu in await self.after(seconds)}

    async def sampled(self) -> GpuReading:
        reading = await self.sample()
        assert reading is not None
        return reading

    async def seen(self, uuid: str, code: int, times: int = 1) -> ReportedGpu:
        """The GPU once the event has arrived. Its loop begins a moment after the first reading."""
        async with asyncio.timeout(20):
            while True:
                gpu = (await self.by_uuid(11))[uuid]
                if gpu.details is not None and gpu.details.xids.get(str(code), 0) >= times:
                    return gpu
                await asyncio.sleep(0.05)

    async def watching(self, driver: FalseDriver) -> None:
        """Opens it; returns when events are seen."""
        await self.open()
        driver.xid(B, 13)
        await self.read()
        async with asyncio.timeout(20):
            while not ((b := (await self.by_uuid(11))[B]).details and b.details.last_xid):
                driver.xid(B, 13)
                await asyncio.sleep(0.2)


def cut_into_slices(driver: FalseDriver) -> None:
    """The first GPU in MIG mode, with two slices."""
    driver.set(A, mig=1, util="none", name="NVIDIA_A100")
    for n, slice_ in enumerate(SLICES[:2]):
        driver.slices[slice_] = {
            "parent": A,
            "gi": n + 1,
            "ci": 0,
            "mem": 20096,
            "used": 100 * n,
            "name": "NVIDIA_A100",
        }
    driver.write()
