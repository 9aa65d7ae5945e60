"""Samples as the evaluation reads them: new ones since the last read, and the history of some GPUs."""

from collections.abc import Collection
from typing import Any, Final, NamedTuple

_COLUMNS: Final = "device, extract(epoch from at)::float8 as at, max, mean, period_s, read_s, used_mib, processes"
# Rows that the previous snapshot could not see. Its oldest open transaction as the only bound would be correct, but a
# long transaction would then have the same rows read again and again.
_NEW: Final = f"""
    select {_COLUMNS} from samples
     where tx >= pg_snapshot_xmin($1::text::pg_snapshot) and not pg_visible_in_snapshot(tx, $1::text::pg_snapshot)
     order by at"""  # noqa: S608 - the columns are named above
_HISTORY: Final = f"""
    select {_COLUMNS} from samples where device = any($1) and at >= to_timestamp($2::float8)
     order by device, at"""  # noqa: S608 - the columns are named above


class ProcessReading(NamedTuple):
    """One process with a claim on the GPU. Percent; None is unknown, never zero.

    `requests` is the most at once, `arrived` the number that came.
    """

    instance: str
    epoch: int
    rank: int
    mean: float | None
    max: float | None
    requests: int | None
    arrived: int | None = None


class Sample(NamedTuple):
    """One GPU over the part of a sampling period that was read, which ended `at`. Percent, MiB.

    Attributes:
        device: the GPU.
        at: epoch seconds, by the database's clock.
        max: the highest reading.
        mean: of the readings.
        period_s: length of the sampling period.
        used_mib: memory in use.
        processes: with a claim on the GPU.
        read_s: seconds that were read, up to `at`; None: an older agent, which does not say.
    """

    device: str
    at: float
    max: float
    mean: float
    period_s: float
    used_mib: int | None
    processes: tuple[ProcessReading, ...]
    read_s: float | None = None


async def read_horizon(connection: Any) -> str:
    """The present snapshot. Read it first and the history after it, so that no sample falls between the two.

    The connection must be in one REPEATABLE READ transaction, as for `read_new`.
    """
    return str(await connection.fetchval("select pg_current_snapshot()::text"))


async def read_new(connection: Any, horizon: str) -> tuple[list[Sample], str]:
    """Every sample that was not visible at `horizon`, oldest first, and the horizon for the next read."""
    seen = await read_horizon(connection)
    return [_sample(row) for row in await connection.fetch(_NEW, horizon)], seen


async def read_history(connection: Any, devices: Collection[str], since: float) -> list[Sample]:
    """The samples of these GPUs since `since` (epoch seconds, by the database's clock), by GPU and time."""
    return [_sample(row) for row in await connection.fetch(_HISTORY, sorted(devices), since)]


def _sample(row: Any) -> Sample:
    return Sample(
        row["device"],
        row["at"],
        row["max"],
        row["mean"],
        row["period_s"],
        row["used_mib"],
        tuple(ProcessReading(*process) for process in row["processes"]),
        row["read_s"],
    )
