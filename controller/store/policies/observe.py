"""One consistent read of deployments for the evaluation of their utilization policies."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from controller.domain.instances import Intent
from controller.domain.policies import GpuClaim, PolicySnapshot, StoredVerdict, WatchedInstance
from controller.domain.telemetry.utilization import ClockLeaps
from controller.store.core.database import Row, group_rows, row_mapper
from controller.store.deployments.specs import spec_from_json
from controller.store.policies.effective import effective_policies

# All deployments, and finished ones with open actions or verdicts.
_UIDS: Final = """
    select uid from deployments
    union select deployment_uid from policy_actions where ended_at is null
    union select deployment_uid from policy_verdicts"""
_UNENDED: Final = """
    select distinct deployment_uid from policy_actions where ended_at is null and deployment_uid = any($1::uuid[])"""
# Only deployments with running instances, since nothing else can be stopped.
_CONCERNED: Final = """
    select d.uid, d.name from deployments d
     where d.deleted_at is null
       and (d.name = any($1) or d.spec ->> 'utilization_policy' = any($2)
            or ($3 and coalesce(jsonb_typeof(d.spec -> 'utilization_policy'), 'null') = 'null'))
       and exists (select 1 from instances i where i.deployment_uid = d.uid and i.phase = 'running')
     order by d.name"""
_DEPLOYMENTS: Final = """
    select d.uid, d.name, d.generation, d.version, d.deleted_at is not null as deleted,
           d.spec, extract(epoch from clock_timestamp())::float8 as now,
           exists (select 1 from policy_actions a where a.deployment_uid = d.uid and a.ended_at is null)
             as open_actions,
           coalesce(extract(epoch from w.expires_at - clock_timestamp())::float8, 0) as awake_for_s
      from deployments d left join wakes w on w.deployment_uid = d.uid and w.source = 'user'
     where d.uid = any($1::uuid[])"""
_INTENTS: Final = """
    select deployment_uid, source, min_replicas, max_replicas, reason, instances from intents
     where deployment_uid = any($1::uuid[]) order by source"""
_INSTANCES: Final = """
    select i.id, i.deployment_uid, i.epoch, i.phase, i.running_since,
           v.epoch as judged_epoch, v.policy, v.policy_uid, v.policy_generation, v.action, v.dry_run, v.verdict,
           v.reason, v.message, v.low_since, v.due_at, v.acted,
           exists (select 1 from instances s where s.deployment_uid = i.deployment_uid and s.replaces = i.id)
             as substituted
      from instances i left join policy_verdicts v on v.instance_id = i.id
     where i.deployment_uid = any($1::uuid[]) order by i.id"""
_CLAIMS: Final = """
    select c.instance_id, c.device, c.exclusive, c.memory_mib, d.memory_mib as device_mib,
           d.worker_id::text as worker_id, w.name as worker
      from claims c
      join instances i on i.id = c.instance_id and i.epoch = c.epoch
      join devices d on d.uuid = c.device and d.kind = 'gpu'
      join workers w on w.id = d.worker_id
     where i.deployment_uid = any($1::uuid[]) order by c.rank, c.position, c.device"""
_claim = row_mapper(GpuClaim)
MOST_LEAPS: Final = 200  # are kept, the newest
_LEAPS: Final = "select extract(epoch from seen_at)::float8 as at, back, leapt_s from clock_leaps order by id"
_ADD_LEAPS: Final = """
    insert into clock_leaps (seen_at, back, leapt_s)
    select to_timestamp(at), back, leapt_s
      from unnest($1::float8[], $2::boolean[], $3::float8[]) as x (at, back, leapt_s)"""
_TRIM_LEAPS: Final = "delete from clock_leaps where id <= (select max(id) from clock_leaps) - $1"


async def list_watched(connection: Any) -> list[str]:
    """The uids of all deployments to which a policy may apply, or whose actions or verdicts are left over."""
    return [str(row["uid"]) for row in await connection.fetch(_UIDS)]


async def list_unended(connection: Any, uids: Sequence[str]) -> list[str]:
    """Returns the deployments that have open actions."""
    rows = await connection.fetch(_UNENDED, list(uids)) if uids else []
    return [str(row["deployment_uid"]) for row in rows]


async def list_concerned(
    connection: Any, names: Collection[str], policies: Collection[str], *, default: bool
) -> dict[str, str]:
    """Deployments with running instances, of these names or policies: names by uid, in order of names.

    `default`: also deployments that refer to no policy.
    """
    rows = await connection.fetch(_CONCERNED, sorted(names), sorted(policies), default)
    return {str(row["uid"]): row["name"] for row in rows}


async def read_clock(connection: Any) -> float:
    """The database's clock, in epoch seconds."""
    return float(await connection.fetchval("select extract(epoch from clock_timestamp())::float8"))


async def observe_policies(connection: Any, uids: Sequence[str]) -> dict[str, PolicySnapshot]:
    """Reads deployments in one REPEATABLE READ transaction; finished ones are missing."""
    deployments = await connection.fetch(_DEPLOYMENTS, list(uids))
    existing = [row["uid"] for row in deployments]
    if not existing:
        return {}
    effective = await effective_policies(connection, [str(uid) for uid in existing])
    intents = group_rows(await connection.fetch(_INTENTS, existing), "deployment_uid")
    instances = group_rows(await connection.fetch(_INSTANCES, existing), "deployment_uid")
    claims = group_rows(await connection.fetch(_CLAIMS, existing), "instance_id")
    return {
        str(row["uid"]): PolicySnapshot(
            uid=str(row["uid"]),
            name=row["name"],
            generation=row["generation"],
            version=row["version"],
            deleted=row["deleted"],
            spec=spec_from_json(row["spec"]),
            policy=effective.get(str(row["uid"])),
            intents=tuple(_intent(i) for i in intents[row["uid"]]),
            instances=tuple(_instance(i, claims[i["id"]]) for i in instances[row["uid"]]),
            open_actions=row["open_actions"],
            now=row["now"],
            awake_for_s=max(row["awake_for_s"], 0.0),
        )
        for row in deployments
    }


def _intent(row: Row) -> Intent:
    return Intent(row["source"], row["max_replicas"], row["reason"], tuple(row["instances"]), row["min_replicas"])


def _instance(row: Row, claims: Sequence[Row]) -> WatchedInstance:
    return WatchedInstance(
        id=row["id"],
        epoch=row["epoch"],
        phase=row["phase"],
        running_since=_seconds(row["running_since"]),
        claims=tuple(_claim(c) for c in claims),
        stored=_verdict(row) if row["verdict"] is not None else None,
        substituted=row["substituted"],
    )


def _verdict(row: Row) -> StoredVerdict:
    return StoredVerdict(
        epoch=row["judged_epoch"],
        policy=row["policy"],
        policy_uid=str(row["policy_uid"]) if row["policy_uid"] is not None else None,
        policy_generation=row["policy_generation"],
        action=row["action"],
        dry_run=row["dry_run"],
        verdict=row["verdict"],
        reason=row["reason"],
        message=row["message"],
        low_since=_seconds(row["low_since"]),
        due_at=_seconds(row["due_at"]),
        acted=row["acted"],
    )


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


class Leap(NamedTuple):
    """One leap of the database's clock."""

    at: float  # the clock's time just after it
    back: bool
    leapt_s: float  # seconds that did not pass, or that occur twice


async def read_leaps(connection: Any) -> ClockLeaps:
    leaps = [Leap(row["at"], row["back"], row["leapt_s"]) for row in await connection.fetch(_LEAPS)]
    return ClockLeaps(
        forward=tuple((leap.at, leap.leapt_s) for leap in leaps if not leap.back),
        back=tuple((leap.at, leap.at + leap.leapt_s) for leap in leaps if leap.back),
    )


async def add_leaps(connection: Any, leaps: Sequence[Leap]) -> None:
    await connection.execute(
        _ADD_LEAPS, [leap.at for leap in leaps], [leap.back for leap in leaps], [leap.leapt_s for leap in leaps]
    )
    await connection.execute(_TRIM_LEAPS, MOST_LEAPS)
