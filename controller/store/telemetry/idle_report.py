"""Claimed, used, wasted and freed GPU seconds, summed from the spans of claims and from the minutes.

A claim counts by its share: 1 if it is exclusive, else its part of the GPU's memory. A shared claim uses the minutes of
the instance's own processes, an exclusive one those of the GPU. A minute counts with the seconds that samples cover,
and at most with the seconds that were claimed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any, Final

from controller.domain.telemetry.history import MinuteSums, PastClaim, Track, WastedMinute
from controller.store.core.database import Reader
from controller.store.telemetry.minute_hours import Key, MinutesRead, read_columns

_MINUTE: Final = timedelta(minutes=1)
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
     group by 1, 2
     order by 1, 2"""  # noqa: S608 - constants, no input
# The minutes `m` of samples of a claim `s` in the period, and their seconds in it.
_OF_CLAIM: Final = """
           sample_minutes m
     where m.device = s.device and m.instance_id = case when s.exclusive then '' else s.instance_id end
       and m.minute > $1::timestamptz - interval '1 min' and m.minute < $2"""
_SECONDS: Final = """least(m.covered_s, extract(epoch from
                  least(s.ended, m.minute + interval '1 min') - greatest(s.began, m.minute))::float8)"""
_MINIMUMS: Final = "left join unnest($3::uuid[], $4::int[]) as l (uid, minimum) on l.uid = s.deployment_uid"
_WASTED: Final = "m.max < coalesce(l.minimum, $5)"
# The claims of some time, cut to it, in microseconds since 1970.
_CLAIMS: Final = f"""
    select s.deployment_uid, coalesce(g.model, '') as model, s.device,
           case when s.exclusive then '' else s.instance_id end as owner, s.share,
           (extract(epoch from s.began) * 1000000)::int8 as began_us,
           (extract(epoch from s.ended) * 1000000)::int8 as ended_us
      from ({SPANS}) s
      left join devices g on g.uuid = s.device
     order by s.device, s.instance_id, s.began"""  # noqa: S608 - constants, no input
_GPUS_AT_ONCE: Final = 256  # of a day: 370,000 minutes, or 6 MiB
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
_AT_ONCE: Final = 256
_EPOCH: Final = "extract(epoch from {0})::float8"
_INSTANCES: Final = f"""
    select distinct instance_id, deployment_uid from ({SPANS}) s
     where running_since is not null and instance_id > $3 order by instance_id limit {_AT_ONCE}"""  # noqa: S608 - constants
_CLAIMS_OF: Final = f"""
    select s.instance_id, s.device, coalesce(w.name, '') as worker,
           coalesce(g.model, '') as model, s.epoch, s.exclusive, s.share,
           {_EPOCH.format("s.began")} as began, {_EPOCH.format("s.ended")} as ended,
           {_EPOCH.format("s.running_since")} as running
      from ({SPANS}) s
      left join workers w on w.id = s.worker_id
      left join devices g on g.uuid = s.device
     where s.instance_id = any($3)"""  # noqa: S608 - as above


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
    at: datetime = row["at"]
    return at


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
    """Cuts the time at midnights (UTC), like the partitions of minutes."""
    while since < until:
        midnight = (since.astimezone(UTC) + _DAY).replace(hour=0, minute=0, second=0, microsecond=0)
        yield since, min(until, midnight)
        since = midnight


async def add_usage(
    connection: Reader, sums: Sums, begin: datetime, end: datetime, minimums: Mapping[str, int], default: int
) -> None:
    """Adds used and wasted GPU seconds of one of the `days` to `sums`. In a transaction of its own.

    `minimums`: percent below which a minute is wasted, by deployment's uid. `default`: the minimum of others.
    """
    claims = await connection.fetch(_CLAIMS, begin, end)
    by_gpu = (list(of_gpu) for _, of_gpu in groupby(claims, key=lambda claim: claim["device"]))
    while some := [claim for of_gpu in islice(by_gpu, _GPUS_AT_ONCE) for claim in of_gpu]:
        keys = {(claim["device"], claim["owner"]) for claim in some}
        minutes = await read_columns(connection, keys, begin - _MINUTE, end)
        # Some hundred thousand minutes: too long for the event loop.
        await asyncio.to_thread(_add_claims, sums, some, minutes, minimums, default)


def _add_claims(
    sums: Sums,
    claims: Sequence[Mapping[str, Any]],
    minutes: Mapping[Key, MinutesRead],
    minimums: Mapping[str, int],
    default: int,
) -> None:
    kept = {key: MinuteSums(read.columns()) for key, read in minutes.items()}
    for claim in claims:
        of_gpu = kept.get((claim["device"], claim["owner"]))
        if of_gpu is not None:
            uid, share = str(claim["deployment_uid"]), claim["share"] or 0.0
            of_claim = of_gpu.of_claim(claim["began_us"], claim["ended_us"], minimums.get(uid, default))
            if of_claim.known:
                spent = sums.spent[uid].by_model[claim["model"]]
                spent.known_s += share * of_claim.known
                spent.used_s += share * of_claim.used
                spent.wasted_s += share * of_claim.wasted


async def had_claims_as(connection: Reader, uid: str, name: str, since: datetime) -> bool:
    """Whether a deployment of this uid and name exists, or had claims since then."""
    query = """select 1 from deployments where uid = $1 and name = $2
               union all
               select 1 from claim_spans where deployment_uid = $1 and deployment = $2 and ended_at > $3 limit 1"""
    return bool(await connection.fetch(query, uid, name, since))


async def read_wasted_minutes(
    connection: Reader, uid: str, begin: datetime, end: datetime, minimum: int
) -> list[WastedMinute]:
    """The minutes of one of the `days` that `add_usage` counts as wasted for one deployment, in order.

    `minimum`: percent below which a minute is wasted.
    """
    rows = await connection.fetch(_WASTED_MINUTES, begin, end, [uid], [minimum], minimum, uid)
    return [WastedMinute(row["minute"], row["gpus"], row["gpu_s"]) for row in rows]


@dataclass(frozen=True, slots=True)
class InstancePast:
    """One instance and its claims."""

    deployment_uid: str
    instance_id: str
    claims: list[PastClaim]


async def read_pasts(
    connection: Reader, since: datetime, until: datetime, after: str = ""
) -> tuple[list[InstancePast], str | None]:
    """A page of instances that ran and held a GPU between `since` and `until`, and the next call's `after` (None: end).

    Claims are cut to that time. The connection is in one REPEATABLE READ transaction; each call may have its own,
    since the past does not change.
    """
    rows = await connection.fetch(_INSTANCES, since, until, after)
    claims: dict[str, list[PastClaim]] = defaultdict(list)
    for row in await connection.fetch(_CLAIMS_OF, since, until, [row["instance_id"] for row in rows]):
        claims[row["instance_id"]].append(
            PastClaim(
                track=Track(row["device"], own=not row["exclusive"]),
                worker=row["worker"],
                model=row["model"],
                epoch=row["epoch"],
                share=row["share"] or 0.0,
                started=row["began"],
                ended=row["ended"],
                running_since=row["running"],
            )
        )
    pasts = [InstancePast(str(row["deployment_uid"]), row["instance_id"], claims[row["instance_id"]]) for row in rows]
    return pasts, rows[-1]["instance_id"] if len(rows) == _AT_ONCE else None


async def read_minutes(
    connection: Reader, tracks: Collection[tuple[str, Track]], begin: datetime, end: datetime
) -> dict[tuple[str, Track], MinutesRead]:
    """The minutes of tracks, given by instance; tracks without minutes are missing. In a transaction of its own.

    `begin` (inclusive) and `end` (exclusive) are starts of minutes.
    """
    keys = {track: (track[1].device, track[0] if track[1].own else "") for track in tracks}
    minutes = await read_columns(connection, set(keys.values()), begin, end)
    return {track: minutes[key] for track, key in keys.items() if key in minutes}
