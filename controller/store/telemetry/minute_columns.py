"""Reads minutes as columns: those of packed hours (`minute_hours.py`), and single minutes where hours are not packed.

The two give the same, so nothing changes with an upgrade, a late sample, or the end of the retention. Weeks of many
GPUs are millions of minutes, of 16 bytes each as columns: read a day and some hundred GPUs at a time.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from controller.domain.history import MinuteColumns
from controller.store.core.database import Reader

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

Key = tuple[str, str]  # a GPU; the instance whose own use is meant, empty: the whole GPU
_Raw = tuple[bytes, bytes, bytes, bytes]


async def read_columns(
    connection: Reader, keys: Collection[Key], begin: datetime, end: datetime
) -> "dict[Key, MinutesRead]":
    """What is stored of some GPUs; keys without minutes are missing.

    Args:
        connection: in one REPEATABLE READ transaction.
        keys: what to read.
        begin: of the first minute, inclusive.
        end: of the last one's beginning, exclusive.
    """
    await connection.fetch(_PLAN_BY_NUMBER)
    packed = {row["hour"] for row in await connection.fetch(_PACKED_HOURS, begin, end)}
    devices, owners = (sorted(set(column)) for column in zip(*keys, strict=True)) if keys else ([], [])
    found: defaultdict[Key, MinutesRead] = defaultdict(lambda: MinutesRead(begin, end))
    for is_packed, since, until in _runs(packed, begin, end):
        for row in await connection.fetch(_PACKED if is_packed else _SINGLE, devices, owners, since, until):
            found[row["device"], row["instance_id"]].add(row["minute"], row["mean"], row["high"], row["covered"])
    return dict(found)


class MinutesRead:
    """Minutes of one series as they were read, in any order; `columns` costs more, so it belongs in a thread."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self._begin = begin
        self._end = end
        self._parts: list[_Raw] = []

    def add(self, minute: bytes, mean: bytes, high: bytes, covered: bytes) -> None:
        """Adds some."""
        self._parts.append((minute, mean, high, covered))

    def columns(self) -> MinuteColumns:
        """In order of time, cut to what was asked for."""
        raw = [b"".join(parts) for parts in zip(*self._parts, strict=True)]
        minute = np.frombuffer(raw[0], ">i4").astype(np.int64)
        order = np.argsort(minute, kind="stable")
        mean, high, covered = (np.frombuffer(one, ">f4").astype(np.float32)[order] for one in raw[1:])
        return MinuteColumns(minute[order], mean, high, covered).begin_within(
            self._begin.timestamp(), self._end.timestamp()
        )


def _runs(packed: Collection[datetime], begin: datetime, end: datetime) -> Iterator[tuple[bool, datetime, datetime]]:
    """Stretches of hours that are all packed, or of which none is. Those that are packed are whole hours."""
    hour = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end:
        is_packed, since = hour in packed, hour
        while hour < end and (hour in packed) == is_packed:
            hour += _HOUR
        yield (True, since, hour) if is_packed else (False, max(since, begin), min(hour, end))
