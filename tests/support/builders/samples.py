"""Samples by hand: periods as an agent makes them, and the rows that follow."""

from collections.abc import Mapping
from typing import Any

from controller.store.core.database import Database
from controller.store.telemetry.partitions import SampleRetention, make_partitions
from schemas.wire import GpuSample, ProcessSample, Readings, SamplePeriod, Samples

ROWS = """
    select device, seq, max, mean, used_mib, processes, extract(epoch from clock_timestamp() - at)::float8 as age
      from samples order by at, device"""


def period(
    seq: int, sampled_s: float, gpus: Mapping[str, float], *processes: ProcessSample, period_s: float = 10.0
) -> SamplePeriod:
    """A period in which each GPU stayed at its percentage."""
    samples = tuple(GpuSample(uuid=uuid, mean=percent, max=percent, used_mib=7) for uuid, percent in gpus.items())
    return SamplePeriod(seq=seq, sampled_s=sampled_s, period_s=period_s, gpus=samples, processes=processes)


def own(instance: str, gpus: Mapping[str, float | None], requests: int | None = 0, epoch: int = 1) -> ProcessSample:
    """A process with its own percentages."""
    readings = {uuid: None if p is None else Readings(mean=p, max=p) for uuid, p in gpus.items()}
    return ProcessSample(instance=instance, epoch=epoch, utilization=readings, requests=requests)


def samples(sent_s: float, *periods: SamplePeriod) -> Samples:
    return Samples(sent_s=sent_s, periods=periods)


async def add_partitions(db: Database, *, samples_h: float = 8, history_days: int = 1) -> None:
    """Makes partitions, where no hub has made them."""
    async with db.transaction() as connection:
        await make_partitions(connection, SampleRetention(samples_h, history_days))


async def sample_rows(db: Database) -> list[dict[str, Any]]:
    async with db.connection() as connection:
        return [dict(row) for row in await connection.fetch(ROWS)]
