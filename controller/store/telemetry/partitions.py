"""Time partitions of samples and minutes: created ahead, dropped after their retention.

Every controller maintains them, since every controller may receive samples; a lock in the database serializes that.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from controller.store.core.database import DRIVER_ERRORS, Database

_HOUR_S: Final = 3600.0
_DAY_S: Final = 24 * _HOUR_S
_AHEAD_S: Final = _DAY_S  # the database may be unable to create partitions for this long
_BEYOND_WINDOW_S: Final = _HOUR_S  # an evaluation reads the window after its end, possibly late
_LOCK: Final = 0x67707764  # one controller at a time
_NAMES: Final = """
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = $1::text::regclass"""
_LONGEST_WINDOW_S: Final = """
    select coalesce(max(window_s), 0)::float8 from (
        select (spec->>'time_window')::float8 as window_s from policies
        union all
        select (spec->'utilization_policy'->>'time_window')::float8 from deployments
         where jsonb_typeof(spec->'utilization_policy') = 'object') as used"""
log = structlog.get_logger(__name__)
ROUND_S: Final = 3600.0
RETRY_S: Final = 5.0
ROUND_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SampleRetention:
    """How long samples are kept (hours; longer where a policy's window is longer), and their minutes (days)."""

    samples_h: float
    history_days: int


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The time that partitions cover without a gap: `begin` inclusive, `end` exclusive."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class _Kind:
    """A partitioned table and the time span of a partition. A partition's name contains its begin (UTC)."""

    table: str
    span_s: float
    suffix: str

    def name(self, start_s: float) -> str:
        return f"{self.table}_{datetime.fromtimestamp(start_s, UTC):{self.suffix}}"

    def start_s(self, name: str) -> float:
        text = name.removeprefix(f"{self.table}_")
        return datetime.strptime(text, self.suffix).replace(tzinfo=UTC).timestamp()

    def floor_s(self, at_s: float) -> float:
        return at_s // self.span_s * self.span_s


_SAMPLES: Final = _Kind("samples", 3 * _HOUR_S, "%Y%m%d_%H")
_MINUTES: Final = _Kind("sample_minutes", _DAY_S, "%Y%m%d")
_HOURS: Final = _Kind("minute_hours", _DAY_S, "%Y%m%d")  # one for each partition of minutes
_FORGET_PACKED: Final = "delete from packed_hours where hour >= to_timestamp($1) and hour < to_timestamp($2)"


async def make_partitions(connection: Any, retention: SampleRetention) -> None:
    """Creates missing partitions, from the oldest kept time to a day ahead. In its own transaction."""
    await connection.execute("set local lock_timeout = '3s'")
    await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
    now_s, samples_s, _ = await _now_and_retention(connection, retention)
    for kind in (_SAMPLES, _MINUTES):
        existing = set(await _names(connection, kind))
        start_s = kind.floor_s(now_s - samples_s)
        while start_s <= now_s + _AHEAD_S:
            if kind.name(start_s) not in existing:
                await connection.execute(_create(kind, start_s))
            start_s += kind.span_s
    packed = {_HOURS.start_s(name) for name in await _names(connection, _HOURS)}
    for start_s in sorted({_MINUTES.start_s(name) for name in await _names(connection, _MINUTES)} - packed):
        await connection.execute(_create(_HOURS, start_s))


async def find_old_partitions(connection: Any, retention: SampleRetention) -> list[str]:
    """The partitions whose rows are all past their retention."""
    now_s, samples_s, minutes_s = await _now_and_retention(connection, retention)
    return [
        name
        for kind, kept_s in ((_SAMPLES, samples_s), (_MINUTES, minutes_s), (_HOURS, minutes_s))
        for name in await _names(connection, kind)
        if kind.start_s(name) + kind.span_s <= now_s - kept_s
    ]


async def drop_partition(connection: Any, name: str) -> None:
    """Drops one partition, minutes together with their packed hours. In its own transaction.

    It waits only briefly for readers, since others wait behind it.

    Raises:
        asyncpg.LockNotAvailableError: readers took longer; it can be dropped later.
    """
    await connection.execute("set local lock_timeout = '500ms'")
    await connection.execute(f'drop table if exists "{name}"')
    if name.startswith(f"{_MINUTES.table}_"):
        start_s = _MINUTES.start_s(name)
        await connection.execute(f'drop table if exists "{_HOURS.name(start_s)}"')
        await connection.execute(_FORGET_PACKED, start_s, start_s + _HOURS.span_s)


async def samples_range(connection: Any) -> PartitionRange | None:
    """The time of which samples can be written, valid until the transaction ends; None without partitions."""
    await connection.execute("lock table samples in row exclusive mode")
    starts = {_SAMPLES.start_s(name) for name in await _names(connection, _SAMPLES)}
    if not starts:
        return None
    begin_s = end_s = max(starts) + _SAMPLES.span_s
    while begin_s - _SAMPLES.span_s in starts:
        begin_s -= _SAMPLES.span_s
    return PartitionRange(datetime.fromtimestamp(begin_s, UTC), datetime.fromtimestamp(end_s, UTC))


async def _now_and_retention(connection: Any, retention: SampleRetention) -> tuple[float, float, float]:
    """Returns the present time and the retention of samples and of minutes; all in seconds."""
    now_s = float(await connection.fetchval("select extract(epoch from clock_timestamp())::float8"))
    window_s = float(await connection.fetchval(_LONGEST_WINDOW_S))
    samples_s = max(retention.samples_h * _HOUR_S, window_s + _BEYOND_WINDOW_S)
    return now_s, samples_s, max(retention.history_days * _DAY_S, samples_s)


async def _names(connection: Any, kind: _Kind) -> list[str]:
    return [row["relname"] for row in await connection.fetch(_NAMES, kind.table)]


def _create(kind: _Kind, start_s: float) -> str:
    begin, end = (datetime.fromtimestamp(s, UTC).isoformat() for s in (start_s, start_s + kind.span_s))
    name = kind.name(start_s)
    return f"create table \"{name}\" partition of {kind.table} for values from ('{begin}') to ('{end}')"


class PartitionMaintenance:
    """Runs a round each hour, and at each `wake`."""

    def __init__(self, database: Database, retention: SampleRetention) -> None:
        self.ready = asyncio.Event()  # the first round has created partitions; before that no sample can be written
        self._database = database
        self._retention = retention
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Runs a round now, where a partition is missing."""
        self._wanted.set()

    async def run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await self.round()
            except DRIVER_ERRORS as error:
                log.warning("partition maintenance failed", error=str(error) or type(error).__name__, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._wanted.wait()

    async def round(self) -> None:
        async with self._database.transaction() as connection:
            await make_partitions(connection, self._retention)
        self.ready.set()
        async with self._database.connection() as connection:
            old = await find_old_partitions(connection, self._retention)
        for name in old:
            async with self._database.transaction() as connection:
                await drop_partition(connection, name)
            log.info("partition dropped", partition=name)
