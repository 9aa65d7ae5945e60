"""Packs the minutes of past hours into columns, which reports over weeks read (`minute_columns.py`).

An hour is packed some minutes after its end, the newest first, so that past time follows after an upgrade. From then
on a trigger keeps the columns equal to the minutes, whatever changes these. Readers take an hour from the columns only
if all of its minutes are there.
"""

from datetime import timedelta
from typing import Any, Final

from controller.store.telemetry.minutes import OLDEST_PARTITION, WRITABLE_SINCE

PORTION: Final = 500  # GPUs of one call: some 30,000 minutes, more where GPUs are shared
_SETTLED: Final = timedelta(minutes=10)  # most late samples have come by then; later ones cost more
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
# The next GPUs of the day, by one look into the index for each.
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


async def pack_hours(connection: Any, *, portion: int = PORTION) -> bool:
    """Packs the minutes of some GPUs in the newest hour that is not packed.

    Args:
        connection: in a READ COMMITTED transaction of the leader, which has checked its term.
        portion: most GPUs of this call.

    Returns:
        Whether all hours are packed whose minutes are rolled up.
    """
    rolled_up_to = await connection.fetchval(_ROLLED_UP_TO)  # no roll-up changes minutes in the meantime
    await connection.execute(_LOCK)
    await connection.execute("set local plan_cache_mode = force_custom_plan")  # for one partition, not for all
    found = await connection.fetchrow(_NEXT, rolled_up_to - _SETTLED)
    if found is None:
        return True
    hour = found["hour"]
    day = hour.replace(hour=0)
    rows = await connection.fetch(_GPUS, day, day + timedelta(days=1), found["up_to"], portion)
    gpus = [row["device"] for row in rows]
    await connection.execute(_PACK, hour, gpus)
    await connection.execute(_MARK, hour, gpus[-1] if len(gpus) == portion else None)
    return False
