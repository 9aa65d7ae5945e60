"""Agents' samples: fenced, written once each, dated by the database's clock, written by COPY."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from controller.store.core.events import notify
from controller.store.deployments.processes import lock_sessions
from controller.store.telemetry.partitions import samples_range
from schemas.wire import ProcessSample, Readings, SamplePeriod

_COLUMNS: Final = ("at", "device", "worker_id", "seq", "period_s", "read_s", "mean", "max", "used_mib", "processes")
_PROGRESS: Final = "select worker_id, boot_id, seq from sample_progress where worker_id = any($1::uuid[])"
_OWNERS: Final = "select uuid, worker_id from devices where uuid = any($1)"
# Rows in key order, as everywhere, so that two writers never deadlock.
_RAISE: Final = """
    insert into sample_progress (worker_id, boot_id, seq)
    select * from unnest($1::uuid[], $2::text[], $3::bigint[]) as p(worker_id, boot_id, seq) order by 1
        on conflict (worker_id) do update set boot_id = excluded.boot_id, seq = excluded.seq"""
_PRESSURE_FOR_S: Final = 30.0
# A value without a new report stays, with the time of its report, while the epoch is the same.
_ENGINE_LOADS: Final = """
    insert into engine_loads as l (instance_id, epoch, queued, kv_use, at, requests, requests_at)
    select x.id, x.epoch, x.queued, x.kv_use,
           case when x.queued is null and x.kv_use is null then '-infinity' else clock_timestamp() end,
           x.requests, case when x.requests is null then '-infinity' else clock_timestamp() end
      from unnest($1::text[], $2::int[], $3::int[], $4::real[], $5::int[], $6::uuid[])
           as x (id, epoch, queued, kv_use, requests, worker_id)
      join instances i on i.id = x.id and i.epoch = x.epoch
     where exists (select 1 from claims c join devices d on d.uuid = c.device
                    where c.instance_id = i.id and c.epoch = x.epoch and c.rank = 0 and d.worker_id = x.worker_id)
     order by x.id
    on conflict (instance_id) do update
       set epoch = excluded.epoch,
           (queued, kv_use, at) = (
               select s.queued, s.kv_use, s.at from (values (l.epoch, l.queued, l.kv_use, l.at),
                      (excluded.epoch, excluded.queued, excluded.kv_use, excluded.at)) s (epoch, queued, kv_use, at)
                where s.epoch = excluded.epoch order by s.at desc limit 1),
           (requests, requests_at) = (
               select s.requests, s.at from (values (l.epoch, l.requests, l.requests_at),
                      (excluded.epoch, excluded.requests, excluded.requests_at)) s (epoch, requests, at)
                where s.epoch = excluded.epoch order by s.at desc limit 1)"""
_DROPPED: Final = """
    update workers set samples_dropped_at = clock_timestamp(), samples_dropped = $3
     where id = $1::uuid and session = $2"""
_Row = tuple[Any, ...]
_READ_COLUMNS: Final = "device, extract(epoch from at)::float8 as at, max, mean, period_s, read_s, used_mib, processes"
# Rows that the previous snapshot could not see. Its oldest open transaction as the only bound would be correct, but a
# long transaction would then have the same rows read repeatedly.
_NEW: Final = f"""
    select {_READ_COLUMNS} from samples
     where tx >= pg_snapshot_xmin($1::text::pg_snapshot) and not pg_visible_in_snapshot(tx, $1::text::pg_snapshot)
     order by at"""  # noqa: S608 - the columns are named above
_HISTORY: Final = f"""
    select {_READ_COLUMNS} from samples where device = any($1) and at >= to_timestamp($2::float8)
     order by device, at"""  # noqa: S608 - the columns are named above


class NoPartitionError(Exception):
    """The database's clock is ahead of all partitions, which must be created before samples can be written."""


@dataclass(frozen=True, slots=True)
class SessionSamples:
    """Samples of one connection."""

    worker_id: str
    session: int
    boot_id: str  # the host's, from the connection's hello: sequence numbers rise between two boots
    offset_s: float  # from the agent's clock to our monotonic clock
    periods: Sequence[SamplePeriod]  # in any order, possibly repeated


@dataclass(frozen=True, slots=True)
class SamplesWritten:
    """The result of a write."""

    held: set[tuple[str, int]]  # (worker, session) of durable samples
    rows: int  # written
    too_old: int  # rows past their retention


async def write_samples(
    connection: Any, batch: Sequence[SessionSamples], monotonic: Callable[[], float]
) -> SamplesWritten:
    """Writes samples that were not written before, of sessions that are still their workers' newest.

    In a transaction. `batch`: an entry for each session. `monotonic`: the clock of `offset_s`, in seconds.

    Raises:
        NoPartitionError: no partition covers the present time.
    """
    held = await lock_sessions(connection, [(s.worker_id, s.session) for s in batch])
    current = [s for s in batch if (s.worker_id, s.session) in held]
    fresh = [(s, periods) for s, periods in await _unwritten(connection, current) if periods]
    if not fresh:
        return SamplesWritten(held, 0, 0)
    covered = await samples_range(connection)
    now, now_s = await connection.fetchval("select clock_timestamp()"), monotonic()
    owned = await _owned(connection, fresh)

    rows: list[_Row] = []
    too_old = 0
    for sender, periods in fresh:
        for period in periods:
            # A sample from the future is dated now: its agent's clock runs ahead of the known offset.
            at = now - timedelta(seconds=max(0.0, now_s - (period.sampled_s + sender.offset_s)))
            if covered is None or at >= covered.end:
                raise NoPartitionError(f"no partition of samples covers {at}")
            of_period = [row for row in _rows(sender, period, at) if (row[1], sender.worker_id) in owned]
            if at < covered.begin:
                too_old += len(of_period)
            else:
                rows += of_period
    await connection.copy_records_to_table("samples", records=rows, columns=_COLUMNS)
    await _raise_progress(connection, fresh)
    await _write_engine_loads(connection, fresh, now_s)
    return SamplesWritten(held, len(rows), too_old)


async def record_dropped(connection: Any, worker_id: str, session: int, what: str) -> None:
    """Shows on the worker, for a time, that one of its sampling periods was dropped."""
    await connection.execute(_DROPPED, worker_id, session, what)
    await notify(connection, "worker", [worker_id])


async def _unwritten(
    connection: Any, batch: Sequence[SessionSamples]
) -> list[tuple[SessionSamples, list[SamplePeriod]]]:
    """The periods with new sequence numbers, in order."""
    rows = await connection.fetch(_PROGRESS, [s.worker_id for s in batch])
    known = {(str(row["worker_id"]), row["boot_id"]): row["seq"] for row in rows}
    return [
        (s, sorted((p for p in s.periods if p.seq > known.get((s.worker_id, s.boot_id), -1)), key=lambda p: p.seq))
        for s in batch
    ]


async def _owned(connection: Any, fresh: Iterable[tuple[SessionSamples, list[SamplePeriod]]]) -> set[tuple[str, str]]:
    """Returns (GPU, worker) of the sampled GPUs: samples of another worker's GPU are ignored."""
    devices = {gpu.uuid for _, periods in fresh for period in periods for gpu in period.gpus}
    return {(row["uuid"], str(row["worker_id"])) for row in await connection.fetch(_OWNERS, sorted(devices))}


async def _raise_progress(connection: Any, fresh: Sequence[tuple[SessionSamples, list[SamplePeriod]]]) -> None:
    await connection.execute(
        _RAISE,
        [s.worker_id for s, _ in fresh],
        [s.boot_id for s, _ in fresh],
        [periods[-1].seq for _, periods in fresh],
    )


async def _write_engine_loads(
    connection: Any, fresh: Iterable[tuple[SessionSamples, list[SamplePeriod]]], now_s: float
) -> None:
    """Writes the last reports of engines' requests, queues and caches. Skips reports that an agent sent too late.

    Of an instance only the agent on whose host its first rank has its claims is believed.
    """
    reported: dict[tuple[str, str], _EngineLoad] = {}
    for sender, periods in fresh:
        for period in periods:
            if now_s - (period.sampled_s + sender.offset_s) <= _PRESSURE_FOR_S:
                for p in period.processes:
                    if p.rank == 0 and (p.queued, p.kv_use, p.requests) != (None, None, None):
                        key = p.instance, sender.worker_id
                        reported[key] = _EngineLoad(p, sender.worker_id, reported.get(key))
    loads = [reported[name] for name in sorted(reported)]
    if loads:
        await connection.execute(
            _ENGINE_LOADS,
            [load.process.instance for load in loads],
            [load.process.epoch for load in loads],
            [load.pressure[0] for load in loads],
            [load.pressure[1] for load in loads],
            [load.requests for load in loads],
            [load.worker_id for load in loads],
        )


class _EngineLoad:
    """The last reports of one engine. A value that a sample lacks stays as in the sample before, of the same epoch."""

    def __init__(self, process: ProcessSample, worker_id: str, before: "_EngineLoad | None") -> None:
        self.process: ProcessSample = process
        self.worker_id = worker_id
        self.pressure: tuple[int | None, float | None] = (process.queued, process.kv_use)
        self.requests: int | None = process.requests
        if before is not None and before.process.epoch != process.epoch:
            before = None
        if before is not None and self.pressure == (None, None):
            self.pressure = before.pressure
        if before is not None and self.requests is None:
            self.requests = before.requests


def _rows(sender: SessionSamples, period: SamplePeriod, at: datetime) -> Iterator[_Row]:
    processes = defaultdict(list)
    for process in period.processes:
        for uuid, own in process.utilization.items():
            processes[uuid].append(_process(process, own))
    for gpu in period.gpus:
        yield (
            at,
            gpu.uuid,
            sender.worker_id,
            period.seq,
            period.period_s,
            period.read_s,
            gpu.mean,
            gpu.max,
            gpu.used_mib,
            processes[gpu.uuid],
        )


def _process(process: ProcessSample, own: Readings | None) -> list[Any]:
    mean, most = (None, None) if own is None else (own.mean, own.max)
    return [process.instance, process.epoch, process.rank, mean, most, process.requests, process.arrived]


class ProcessReading(NamedTuple):
    """One process with a claim on the GPU. Percent; None is unknown, never zero."""

    instance: str
    epoch: int
    rank: int
    mean: float | None
    max: float | None
    requests: int | None  # the most at once
    arrived: int | None = None  # the number that arrived


class Sample(NamedTuple):
    """One GPU over the part of a sampling period that was read, which ended `at`. Percent."""

    device: str
    at: float  # epoch seconds, by the database's clock
    max: float  # the highest reading
    mean: float  # the readings' mean
    period_s: float
    used_mib: int | None
    processes: tuple[ProcessReading, ...]  # with a claim on the GPU
    read_s: float | None = None  # that were read, up to `at`; None: an older agent does not report it


async def read_horizon(connection: Any) -> str:
    """The present snapshot. Read it before the history, so that no sample falls between the two.

    In one REPEATABLE READ transaction, as for `read_new`.
    """
    return str(await connection.fetchval("select pg_current_snapshot()::text"))


async def read_new(connection: Any, horizon: str) -> tuple[list[Sample], str]:
    """Returns every sample that was not visible at `horizon`, oldest first, and the horizon for the next read."""
    next_horizon = await read_horizon(connection)
    return [_sample(row) for row in await connection.fetch(_NEW, horizon)], next_horizon


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
