"""Since when utilization was low by stored minutes: for time whose samples are no longer read."""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from controller.store.telemetry.coverage import READ
from controller.store.telemetry.minutes import WRITABLE_SINCE

_MINUTE_S: Final = 60
_COVERED_S: Final = 58.0  # of a minute: verdicts take up to two seconds without a sample for no gap
# Minutes that may change still: the roll-up has not taken in these samples.
_UNROLLED: Final = f"""
    select s.device, min(extract(epoch from date_bin('1 min', s.at - {READ.format("s")}, 'epoch')))::float8 as since
      from samples s
     where s.tx >= (select horizon from rollup_progress where id = 1) and s.device = any($1)
     group by s.device"""  # noqa: S608 - constants
# The last run of low minutes must reach the end of the stretch. `n` is the number of a stretch.
_LOW_SINCE: Final = f"""
    with part as (
        select * from unnest($1::int[], $2::text[], $3::text[]) as x (n, device, instance_id)
    ), stretch as (
        select x.n, greatest(to_timestamp(x.since), ({WRITABLE_SINCE})) as since, to_timestamp(x.until) as until,
               x.minimum, (select count(*) from part p where p.n = x.n) as gpus
          from unnest($4::int[], $5::float8[], $6::float8[], $7::real[]) as x (n, since, until, minimum)
    ), low as (
        select x.n, m.minute
          from stretch x
          join part p on p.n = x.n
          join sample_minutes m on m.device = p.device and m.instance_id = p.instance_id
                               and m.minute >= x.since and m.minute < x.until and m.covered_s >= $8
         group by x.n, m.minute, x.gpus, x.minimum
        having count(*) = x.gpus and sum(m.max) / x.gpus < x.minimum
    ), run as (
        select n, minute, lag(minute) over (partition by n order by minute) is distinct from minute - interval '1 min'
                   as begins
          from low
    ), last as (
        select n, max(minute) as minute, max(minute) filter (where begins) as since from run group by n
    )
    select x.n, extract(epoch from case
               when l.minute = x.until - interval '1 min'
               then case when l.since > x.since then l.since end
               else x.until end)::float8 as low_since
      from stretch x left join last l using (n)
     where x.since <= x.until - interval '1 min'"""  # noqa: S608 - constants


class Stretch(NamedTuple):
    """Time in which something was low by an earlier verdict.

    Attributes:
        parts: the GPUs, whose mean counts, each with the instance whose own use is meant; empty: the whole GPU.
        since: where it begins; epoch seconds.
        until: where it ends; the begin of a minute.
        minimum: percent; below it is low.
    """

    parts: Sequence[tuple[str, str]]
    since: float
    until: float
    minimum: float


async def read_unrolled(connection: Any, devices: Collection[str]) -> dict[str, float]:
    """The begin of the first minute that may change still, by GPU; GPUs without such a minute are missing."""
    return {row["device"]: row["since"] for row in await connection.fetch(_UNROLLED, sorted(devices))}


async def read_low_since(connection: Any, stretches: Sequence[Stretch]) -> list[float | None]:
    """The end of the last minute in each stretch that is missing, not covered, or not low; None: there is none.

    The minute in which a stretch begins is not examined, nor minutes that are no longer kept.
    """
    if not stretches:
        return []
    parts = [(n, device, instance) for n, stretch in enumerate(stretches) for device, instance in stretch.parts]
    rows = await connection.fetch(
        _LOW_SINCE,
        *(list(column) for column in zip(*parts, strict=True)),
        list(range(len(stretches))),
        [-(-s.since // _MINUTE_S) * _MINUTE_S for s in stretches],
        [s.until for s in stretches],
        [s.minimum for s in stretches],
        _COVERED_S,
    )
    found = {row["n"]: row["low_since"] for row in rows}
    return [found.get(n) for n in range(len(stretches))]
