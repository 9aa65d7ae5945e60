"""Claimed, used, wasted and freed GPU seconds, summed from the spans of claims and from the minutes.

A claim counts by its share: 1 if it is exclusive, else its part of the GPU's memory. A shared claim uses the minutes of
the instance's own processes, an exclusive one those of the GPU. A minute counts with the seconds that samples cover,
and at most with the seconds that were claimed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from controller.domain.idle_stretches import WastedMinute
from controller.store.core.database import Reader

_DAY: Final = timedelta(days=1)
# Ended and live claims, cut to $1 .. $2.
SPANS: Final = """
    select device, worker_id, instance_id, epoch, deployment_uid, deployment, exclusive, running_since,
           case when exclusive then 1 else memory_mib::float8 / device_mib end as share,
           greatest(began_at, $1) as began, least(ended_at, $2) as ended
      from claim_spans where ended_at > $1 and began_at < $2
    union all
    select c.device, d.worker_id, c.instance_id, c.epoch, p.uid, p.name, c.exclusive,
           case when i.epoch = c.epoch then i.running_since end,
           case when c.exclusive then 1 else c.memory_mib::float8 / nullif(d.memory_mib, 0) end,
           greatest(c.created_at, $1), $2
      from claims c
      join devices d on d.uuid = c.device and d.kind = 'gpu'
      join instances i on i.id = c.instance_id
      join deployments p on p.uid = i.deployment_uid
     where c.created_at < $2"""
_CLAIMED: Final = f"""
    select s.deployment_uid, coalesce(g.model, '') as model, max(s.deployment) as deployment,
           bool_or(p.uid is null or p.deleted_at is not null) as deleted,
           sum(s.share * extract(epoch from s.ended - s.began)::float8) as claimed_s
      from ({SPANS}) s
      left join deployments p on p.uid = s.deployment_uid
      left join devices g on g.uuid = s.device
     group by 1, 2"""  # noqa: S608 - constants, no input
# The minutes `m` of samples of a claim `s` in the period, and their seconds in it.
_OF_CLAIM: Final = """
           sample_minutes m
     where m.device = s.device and m.instance_id = case when s.exclusive then '' else s.instance_id end
       and m.minute > $1::timestamptz - interval '1 min' and m.minute < $2"""
_SECONDS: Final = """least(m.covered_s, extract(epoch from
                  least(s.ended, m.minute + interval '1 min') - greatest(s.began, m.minute))::float8)"""
_MINIMUMS: Final = "left join unnest($3::uuid[], $4::int[]) as l (uid, minimum) on l.uid = s.deployment_uid"
_WASTED: Final = "m.max < coalesce(l.minimum, $5)"
_IS_WHOLE: Final = "(s.began = $1 and s.ended = $2)"  # it lasts for the whole time
# Of claims that do not last for the whole time: whole minutes, and the first and last one apart, since reckoning with
# each minute's times takes five times as long. Of the others: the first and last minute alone.
_COVERED: Final = f"""
    select s.deployment_uid, coalesce(max(g.model), '') as model, sum(s.share * k.known_s) as known_s,
           sum(s.share * k.used_s) as used_s, sum(s.share * k.wasted_s) as wasted_s
      from ({SPANS}) s
      {_MINIMUMS}
      left join devices g on g.uuid = s.device
     cross join lateral (
           select sum(m.seconds) as known_s, sum(m.seconds * m.mean / 100) as used_s,
                  coalesce(sum(m.seconds) filter (where {_WASTED}), 0) as wasted_s
             from (select m.covered_s::float8 as seconds, m.mean, m.max from {_OF_CLAIM}
                      and m.minute >= s.began and m.minute <= s.ended - interval '1 min' and not {_IS_WHOLE}
                   union all
                   select {_SECONDS}, m.mean, m.max from {_OF_CLAIM}
                      and m.minute > s.began - interval '1 min' and m.minute < s.began
                   union all
                   select {_SECONDS}, m.mean, m.max from {_OF_CLAIM}
                      and m.minute >= s.began and m.minute > s.ended - interval '1 min' and m.minute < s.ended) m
       ) as k
     where k.known_s is not null
       and not ({_IS_WHOLE} and date_trunc('minute', $1) = $1 and date_trunc('minute', $2) = $2)
     group by s.deployment_uid, s.device"""  # noqa: S608 - constants, no input
_WHOLE_DEVICES: Final = f"select distinct device from ({SPANS}) s where {_IS_WHOLE}"  # noqa: S608 - constants
# Their whole minutes: summed in the order in which they lie, which takes a quarter of the time of reading claim by
# claim. $6: all minimums, ascending, so that `bucket` is the number of those that a minute is not below.
_WHOLE: Final = f"""
    select s.deployment_uid, coalesce(max(g.model), '') as model, sum(s.share * m.known_s) as known_s,
           sum(s.share * m.used_s) as used_s,
           coalesce(sum(s.share * m.known_s)
                    filter (where m.bucket < array_position($6, coalesce(l.minimum, $5)::float8)), 0) as wasted_s
      from ({SPANS}) s
      {_MINIMUMS}
      left join devices g on g.uuid = s.device
      join (select device, instance_id, width_bucket(max::float8, $6::float8[]) as bucket,
                   sum(covered_s::float8) as known_s, sum(covered_s::float8 * mean / 100) as used_s
              from sample_minutes
             where device = any($7) and minute >= $1 and minute <= $2::timestamptz - interval '1 min'
             group by 1, 2, 3) m
        on m.device = s.device and m.instance_id = case when s.exclusive then '' else s.instance_id end
     where {_IS_WHOLE}
     group by s.deployment_uid, s.device"""  # noqa: S608 - constants, no input
# A plan for any number of GPUs would read claim by claim.
PLAN_BY_NUMBER: Final = "set local plan_cache_mode = force_custom_plan"
_WASTED_MINUTES: Final = f"""
    select k.minute, count(distinct s.device) as gpus, sum(s.share * k.seconds) as gpu_s
      from ({SPANS}) s
      {_MINIMUMS}
     cross join lateral (
           select m.minute, {_SECONDS} as seconds from {_OF_CLAIM}
              and m.minute > s.began - interval '1 min' and m.minute < s.ended and {_WASTED}) as k
     where s.deployment_uid = $6 and k.seconds > 0
     group by k.minute order by k.minute"""  # noqa: S608 - as above
_FREED: Final = """
    select policy, deployment_uid, max(deployment) as deployment, count(*) as actions,
           sum(gpus * extract(epoch from least(coalesce(ended_at, $2), $2) - greatest(at, $1))::float8) as freed_s
      from policy_actions
     where action in ('stop', 'scale_down') and not dry_run and at < $2 and coalesce(ended_at, $2) > $1
     group by policy, deployment_uid"""


@dataclass(slots=True)
class GpuSeconds:
    """GPU seconds of one deployment on GPUs of one model."""

    claimed_s: float = 0.0
    known_s: float = 0.0
    used_s: float = 0.0
    wasted_s: float = 0.0

    @property
    def unknown_s(self) -> float:
        """Claimed, but not covered by samples."""
        return max(0.0, self.claimed_s - self.known_s)

    def add(self, other: "GpuSeconds") -> None:
        """Adds another one's."""
        self.claimed_s += other.claimed_s
        self.known_s += other.known_s
        self.used_s += other.used_s
        self.wasted_s += other.wasted_s


@dataclass(slots=True)
class DeploymentUsage:
    """GPU seconds of one deployment, by the GPUs' model (empty: unknown), and those that policies freed."""

    deployment: str = ""
    deleted: bool = True
    by_model: dict[str, GpuSeconds] = field(default_factory=lambda: defaultdict(GpuSeconds))
    freed_s: float = 0.0

    @property
    def total(self) -> GpuSeconds:
        """Of all models."""
        total = GpuSeconds()
        for spent in self.by_model.values():
            total.add(spent)
        return total


@dataclass(slots=True)
class FreedByPolicy:
    """GPU seconds that one policy freed."""

    actions: int = 0
    freed_s: float = 0.0


@dataclass(slots=True)
class Sums:
    """By deployment's uid, and by policy's name (empty: inline)."""

    spent: dict[str, DeploymentUsage] = field(default_factory=lambda: defaultdict(DeploymentUsage))
    freed: dict[str, FreedByPolicy] = field(default_factory=lambda: defaultdict(FreedByPolicy))


async def rolled_up_to(connection: Reader) -> datetime:
    """The time up to which the minutes contain all samples."""
    (row,) = await connection.fetch("select at from rollup_progress")
    moment: datetime = row["at"]
    return moment


async def read_claimed(connection: Reader, since: datetime, until: datetime) -> Sums:
    """Claimed and freed GPU seconds; `add_usage` adds used and wasted ones."""
    sums = Sums()
    for row in await connection.fetch(_CLAIMED, since, until):
        spent = sums.spent[str(row["deployment_uid"])]
        spent.deployment, spent.deleted = row["deployment"], row["deleted"]
        spent.by_model[row["model"]].claimed_s = row["claimed_s"] or 0.0
    for row in await connection.fetch(_FREED, since, until):
        spent = sums.spent[str(row["deployment_uid"])]
        spent.deployment = spent.deployment or row["deployment"]
        spent.freed_s += row["freed_s"]
        freed = sums.freed[row["policy"]]
        freed.actions += row["actions"]
        freed.freed_s += row["freed_s"]
    return sums


def days(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The time cut at midnights (UTC), like the partitions of minutes."""
    while since < until:
        midnight = (since.astimezone(UTC) + _DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        yield since, min(until, midnight)
        since = midnight


async def add_usage(
    connection: Reader, sums: Sums, begin: datetime, end: datetime, minimums: Mapping[str, int], default: int
) -> None:
    """Adds used and wasted GPU seconds from `begin` to `end`, which should be one of the `days`.

    Args:
        connection: in a transaction of its own.
        sums: to add to.
        begin: inclusive.
        end: exclusive.
        minimums: percent below which a minute is wasted, by deployment's uid.
        default: the same, for all other deployments.
    """
    await connection.fetch(PLAN_BY_NUMBER)
    given = (begin, end, list(minimums), list(minimums.values()), default)
    found = await connection.fetch(_COVERED, *given)
    devices = [row["device"] for row in await connection.fetch(_WHOLE_DEVICES, begin, end)]
    if devices:
        ascending = sorted({float(minimum) for minimum in (*minimums.values(), default)})
        found += await connection.fetch(_WHOLE, *given, ascending, devices)
    for row in found:
        spent = sums.spent[str(row["deployment_uid"])].by_model[row["model"]]
        spent.known_s += row["known_s"]
        spent.used_s += row["used_s"]
        spent.wasted_s += row["wasted_s"]


async def had_claims_as(connection: Reader, uid: str, name: str, since: datetime) -> bool:
    """Whether a deployment of this uid and name exists, or had claims since then."""
    query = """select 1 from deployments where uid = $1 and name = $2
               union all
               select 1 from claim_spans where deployment_uid = $1 and deployment = $2 and ended_at > $3 limit 1"""
    return bool(await connection.fetch(query, uid, name, since))


async def read_wasted_minutes(
    connection: Reader, uid: str, begin: datetime, end: datetime, minimum: int
) -> list[WastedMinute]:
    """The minutes that `add_usage` counts as wasted for one deployment, in order.

    Args:
        connection: to read from.
        uid: of the deployment.
        begin: inclusive.
        end: exclusive; the two should be one of the `days`.
        minimum: percent below which a minute is wasted.
    """
    rows = await connection.fetch(_WASTED_MINUTES, begin, end, [uid], [minimum], minimum, uid)
    return [WastedMinute(row["minute"], row["gpus"], row["gpu_s"]) for row in rows]
