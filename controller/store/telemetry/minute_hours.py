"""Packs the minutes of past hours into columns, which reports over weeks read (`read_columns`).

An hour is packed some minutes after its end, the newest first, so that past time follows after an upgrade. From then
on a trigger keeps the columns equal to the minutes, whatever changes these. Readers take an hour from the columns only
if all of its minutes are there.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from controller.domain.telemetry.history import MinuteColumns
from controller.store.core.database import Reader
from controller.store.telemetry.minutes import OLDEST_PARTITION, WRITABLE_SINCE

_HOUR: Final = timedelta(hours=1)
_PACKED_HOURS: Final = """
    select hour from packed_hours where hour > $1::timestamptz - interval '1 hour' and hour < $2 and up_to is null"""
_PACKED: Final = """
    select device, instance_id, string_agg(minute, '') as minute, string_agg(mean, '') as mean,
           string_agg(max, '') as high, string_agg(covered_s, '') as covered
      from minute_hours
     where device = any($1) and instance_id = any($2) and hour >= $3 and hour < $4
     group by device, instance_id"""
_SINGLE: Final = """
    select device, instance_id, string_agg(int4send((date_part('epoch', minute) / 60)::int), '') as minute,
           string_agg(float4send(mean), '') as mean, string_agg(float4send(max), '') as high,
           string_agg(float4send(covered_s), '') as covered
      from sample_minutes
     where device = any($1) and instance_id = any($2) and minute >= $3 and minute < $4
     group by device, instance_id"""
# A plan for any number of GPUs and any day would read GPU by GPU, from all days.
_PLAN_BY_NUMBER: Final = "set local plan_cache_mode = force_custom_plan"
Key = tuple[str, str]  # a GPU; the instance whose own use counts, empty: all use of the GPU
_Raw = tuple[bytes, bytes, bytes, bytes]
PORTION: Final = 500  # GPUs of one call: some 30,000 minutes, more where GPUs are shared
_SETTLED: Final = timedelta(minutes=10)  # most late samples have arrived by then; later samples cost more
_ROLLED_UP_TO: Final = "select at from rollup_progress where id = 1 for update"
# Neither kind of partition is dropped in the meantime. Minutes first, as in all writers.
_LOCK: Final = "lock table sample_minutes, minute_hours in row exclusive mode"
_NEXT: Final = f"""
    select hour, p.up_to
      from generate_series(greatest(({WRITABLE_SINCE}),
                                    coalesce(({OLDEST_PARTITION.format("minute_hours")}), 'infinity')),
                           date_bin('1 hour', $1, 'epoch') - interval '1 hour', interval '1 hour') as hour
      left join packed_hours p using (hour)
     where p.hour is null or p.up_to is not null
     order by hour desc limit 1"""  # noqa: S608 - constants
# The next GPUs of the day, by one index search for each.
_GPUS: Final = """
    with recursive gpu as (
        (select device, 1 as n from sample_minutes
          where minute >= $1 and minute < $2 and device > coalesce($3, '') order by device limit 1)
        union all
        select x.device, gpu.n + 1
          from gpu,
               lateral (select device from sample_minutes m
                         where m.minute >= $1 and m.minute < $2 and m.device > gpu.device order by m.device limit 1) x
         where gpu.n < $4
    )
    select device from gpu order by device"""
_PACK: Final = """
    insert into minute_hours (hour, device, instance_id, minute, mean, max, covered_s)
    select $1, device, instance_id,
           string_agg(int4send((date_part('epoch', minute) / 60)::int), '' order by minute),
           string_agg(float4send(mean), '' order by minute), string_agg(float4send(max), '' order by minute),
           string_agg(float4send(covered_s), '' order by minute)
      from sample_minutes
     where minute >= $1 and minute < $1::timestamptz + interval '1 hour' and device = any($2)
     group by device, instance_id"""
_MARK: Final = """
    insert into packed_hours (hour, up_to) values ($1, $2)
    on conflict (hour) do update set up_to = excluded.up_to"""


async def read_columns(
    connection: Reader, keys: Collection[Key], begin: datetime, end: datetime
) -> "dict[Key, MinutesRead]":
    """The minutes of some GPUs, from packed hours where there are any; keys without minutes are missing.

    Weeks of many GPUs are millions of minutes, of 16 bytes each: read a day and some hundred GPUs at a time. In one
    REPEATABLE READ transaction. `begin` (inclusive) and `end` (exclusive) are starts of minutes.
    """
    await connection.fetch(_PLAN_BY_NUMBER)
    packed = {row["hour"] for row in await connection.fetch(_PACKED_HOURS, begin, end)}
    devices, owners = (sorted(set(column)) for column in zip(*keys, strict=True)) if keys else ([], [])
    read: defaultdict[Key, MinutesRead] = defaultdict(lambda: MinutesRead(begin, end))
    for is_packed, since, until in _runs(packed, begin, end):
        for row in await connection.fetch(_PACKED if is_packed else _SINGLE, devices, owners, since, until):
            read[row["device"], row["instance_id"]].add(row["minute"], row["mean"], row["high"], row["covered"])
    return dict(read)


class MinutesRead:
    """Minutes of one series as they were read, in any order; `columns` costs more, so it belongs in a thread."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin = begin
        self._end = end
        self._parts: list[_Raw] = []

    def add(self, minute: bytes, mean: bytes, high: bytes, covered: bytes) -> None:
        self._parts.append((minute, mean, high, covered))

    def columns(self) -> MinuteColumns:
        """In order of time, cut to the requested time."""
        raw = [b"".join(parts) for parts in zip(*self._parts, strict=True)]
        minute = np.frombuffer(raw[0], ">i4").astype(np.int64)
        order = np.argsort(minute, kind="stable")
        mean, high, covered = (np.frombuffer(column, ">f4").astype(np.float32)[order] for column in raw[1:])
        return MinuteColumns(minute[order], mean, high, covered).begin_within(
            self._begin.timestamp(), self._end.timestamp()
        )


def _runs(packed: Collection[datetime], begin: datetime, end: datetime) -> Iterator[tuple[bool, datetime, datetime]]:
    """Stretches in which all hours are packed, or no hour is. Packed stretches begin and end with full hours."""
    hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end:
        is_packed, since = hour in packed, hour
        while hour < end and (hour in packed) == is_packed:
            hour += _HOUR
        yield (True, since, hour) if is_packed else (False, max(since, begin), min(hour, end))


async def pack_hours(connection: Any, *, portion: int = PORTION) -> bool:
    """Packs the minutes of some GPUs in the newest hour that is not packed.

    In a READ COMMITTED transaction of the leader. `portion`: most GPUs of this call.

    Returns:
        Whether all hours are packed whose minutes are rolled up.
    """
    rolled_up_to = await connection.fetchval(_ROLLED_UP_TO)  # no roll-up changes minutes in the meantime
    await connection.execute(_LOCK)
    await connection.execute("set local plan_cache_mode = force_custom_plan")  # for one partition, not for all
    unpacked = await connection.fetchrow(_NEXT, rolled_up_to - _SETTLED)
    if unpacked is None:
        return True
    hour = unpacked["hour"]
    day = hour.replace(hour=0)
    rows = await connection.fetch(_GPUS, day, day + timedelta(days=1), unpacked["up_to"], portion)
    gpus = [row["device"] for row in rows]
    await connection.execute(_PACK, hour, gpus)
    await connection.execute(_MARK, hour, gpus[-1] if len(gpus) == portion else None)
    return False
