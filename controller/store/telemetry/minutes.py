"""One-minute rollups of the samples, in the order of the samples' transactions, so that no late sample is missed.

A minute's figures are of all samples that cover a part of it. The mean is weighted by covered time. The maximum is of
all these samples, since a peak may lie on either side of the minute's edge.

Coverage is that of `decide/policies/windows.py`: a sample covers the seconds that were read, and none before the
previous sample of its GPU. A sample of an older agent, which does not report what it read, covers its own period.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

READ: Final = "coalesce({0}.read_s, {0}.period_s) * interval '1 s'"  # the most that a sample covers


def covered_since(sample: str, partition: str) -> str:
    """SQL of the start of a sample's covered time. `sample`: alias of `samples`. `partition`: columns of a series."""
    before = f"lag({sample}.at) over (partition by {partition} order by {sample}.at)"
    return f"greatest({before}, {sample}.at - {READ.format(sample)})"


# `partitions.py` creates and drops the partitions.
OLDEST_PARTITION: Final = """
    select min((regexp_match(pg_get_expr(c.relpartbound, c.oid), $$FROM \\('([^']+)'\\)$$))[1]::timestamptz)
      from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '{0}'::regclass"""
WRITABLE_SINCE: Final = OLDEST_PARTITION.format("sample_minutes")
PORTION: Final = 60_000  # samples of one roll-up, approximately: a transaction of samples is never split
_PROGRESS: Final = "select horizon::text, clock_timestamp() as now from rollup_progress where id = 1 for update"
_HORIZON: Final = "select pg_snapshot_xmin(pg_current_snapshot())::text"
_NTH: Final = "select tx::text from samples where tx >= $1::text::xid8 order by tx offset $2 limit 1"
# The bounds of the read: samples that cover a fresh sample's minutes, and the one before each.
_BOUNDS: Final = f"""
    select date_bin('1 min', min(f.at - {READ.format("f")}), 'epoch') as first, max(f.at) as last,
           max({READ.format("f")}) as reach
      from samples f where f.tx >= $1::text::xid8 and f.tx < $2::text::xid8 and f.at >= $3"""  # noqa: S608 - constants
_ROLL: Final = f"""
    with fresh as materialized (
        select f.device, f.at, {READ.format("f")} as reach from samples f
         where f.tx >= $1::text::xid8 and f.tx < $2::text::xid8 and f.at >= $3
    ), dirty as materialized (
        select distinct f.device, minute
          from fresh f, generate_series(date_bin('1 min', f.at - f.reach, 'epoch'), f.at, interval '1 min') as minute
         where minute >= date_bin('1 min', $3, 'epoch')
    ), shared as materialized (
        select c.device, c.instance_id, c.epoch, i.deployment_uid from claims c join instances i on i.id = c.instance_id
         where not c.exclusive and c.device in (select device from dirty)
        union all
        select g.device, g.instance_id, g.epoch, g.deployment_uid from claim_spans g
         where not g.exclusive and g.ended_at > $4 and g.device in (select device from dirty)
    ), covered as (
        select s.device, s.at, s.mean, s.max, s.used_mib,
               case when s.device in (select device from shared) then s.processes end as processes,
               {covered_since("s", "s.device")} as since
          from samples s
         where s.at between $4 and $5 and s.device in (select device from dirty)
    ), parts as (
        select d.minute, s.device, s.mean, s.max, s.used_mib, s.processes,
               extract(epoch from least(s.at, d.minute + interval '1 min') - greatest(s.since, d.minute))::float8
                   as covered_s
          from dirty d
          join covered s on s.device = d.device and s.at > d.minute and s.since < d.minute + interval '1 min'
    ), own as (
        select p.minute, p.device, h.instance_id, h.deployment_uid, (x ->> 3)::real as mean, (x ->> 4)::real as max,
               p.covered_s
          from parts p
          join shared h on h.device = p.device, jsonb_array_elements(p.processes) x
         where x ->> 0 = h.instance_id and (x ->> 1)::int = h.epoch and x ->> 3 is not null and x ->> 4 is not null
    ), figures as (
        select minute, device, '' as instance_id, null::uuid as deployment_uid, mean, max, covered_s, used_mib
          from parts
        union all
        select minute, device, instance_id, deployment_uid, mean, max, covered_s, null from own
    )
    insert into sample_minutes as m
        (minute, device, instance_id, deployment_uid, mean, max, samples, covered_s, used_mib)
    select minute, device, instance_id, (array_agg(deployment_uid))[1],
           sum(mean * greatest(covered_s, 0.001)) / sum(greatest(covered_s, 0.001)), max(max), count(*),
           least(60, sum(covered_s)), max(used_mib)
      from figures group by minute, device, instance_id
    on conflict (device, instance_id, minute) do update
       set deployment_uid = excluded.deployment_uid, mean = excluded.mean, max = excluded.max,
           samples = excluded.samples, covered_s = excluded.covered_s, used_mib = excluded.used_mib
     where (m.mean, m.max, m.samples, m.covered_s, m.used_mib)
           is distinct from (excluded.mean, excluded.max, excluded.samples, excluded.covered_s, excluded.used_mib)"""  # noqa: S608 - as above
_ADVANCE: Final = "update rollup_progress set horizon = $1::text::xid8, at = coalesce($2, at) where id = 1"
_FORGET_SPANS: Final = """
    delete from claim_spans where id in (
        select id from claim_spans where ended_at < now() - make_interval(days => $1) order by ended_at limit $2)"""
_SPANS_PORTION: Final = 5_000
_MINUTE: Final = timedelta(minutes=1)
_MINUTE_S: Final = 60
_COVERED_S: Final = 58.0  # of a minute: for verdicts, up to two seconds without a sample are no gap
# Minutes that may still change: the roll-up has not processed these samples.
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


async def roll_up(connection: Any, *, portion: int = PORTION) -> bool:
    """Computes the minutes of the next portion of samples, and again those with late samples.

    In a READ COMMITTED transaction of the leader, which has checked its term. `portion`: most samples, except that a
    transaction of samples is never split.

    Returns:
        Whether the minutes contain every sample that was committed when the roll-up began.
    """
    progress = await connection.fetchrow(_PROGRESS)
    # Else a partition could be dropped in the meantime.
    await connection.execute("lock table sample_minutes in row exclusive mode")
    keep_since = await connection.fetchval(WRITABLE_SINCE)
    if keep_since is None:
        return True  # without partitions there are no samples
    horizon = int(await connection.fetchval(_HORIZON))
    # A restored database numbers its transactions from a lower value.
    begin = min(int(progress["horizon"]), horizon)
    nth = await connection.fetchval(_NTH, str(begin), portion)
    end = horizon if nth is None else min(horizon, max(int(nth), begin + 1))
    span = (str(begin), str(end), keep_since)
    bounds = await connection.fetchrow(_BOUNDS, *span)
    if bounds["first"] is not None:
        first, last = bounds["first"] - bounds["reach"], bounds["last"] + _MINUTE + bounds["reach"]
        await connection.execute(_ROLL, *span, first, last)
    await connection.execute(_ADVANCE, str(end), progress["now"] if end == horizon else None)
    return end == horizon


async def forget_spans(connection: Any, *, keep_days: int) -> None:
    """Deletes one portion of the spans of claims that ended more than `keep_days` days ago."""
    await connection.execute(_FORGET_SPANS, keep_days, _SPANS_PORTION)


class Stretch(NamedTuple):
    """Time in which an instance was low by an earlier verdict."""

    parts: Sequence[
        tuple[str, str]
    ]  # GPUs, of which the mean counts, each with the instance; empty: all use of the GPU
    since: float  # epoch seconds
    until: float  # the start of a minute
    minimum: float  # percent, below which use is low


async def read_unrolled(connection: Any, devices: Collection[str]) -> dict[str, float]:
    """The start of the first minute that may still change, by GPU; GPUs without such a minute are missing."""
    return {row["device"]: row["since"] for row in await connection.fetch(_UNROLLED, sorted(devices))}


async def read_low_since(connection: Any, stretches: Sequence[Stretch]) -> list[float | None]:
    """The end of the last minute in each stretch that is missing, not covered, or not low; None without such a minute.

    Skips the minute in which a stretch begins, and minutes that are no longer kept.
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
    low_since = {row["n"]: row["low_since"] for row in rows}
    return [low_since.get(n) for n in range(len(stretches))]
