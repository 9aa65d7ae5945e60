"""Reads the objects that need an operator: few queries over those in trouble, no query over the rest."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from controller.domain.attention import (
    AttentionSnapshot,
    CertificateState,
    ExpiringKey,
    IdleInstance,
    SickGpu,
    TroubledDeployment,
    TroubledInstance,
    TroubledWorker,
)
from controller.store.access.key_expiry import EXPIRING
from controller.store.access.sealing import read_sealing
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import count_plain, unreadable_secrets
from controller.store.core.database import Reader, row_mapper
from controller.store.core.database_space import DatabaseSpace
from controller.store.views.leader import read_holder, read_leader
from controller.store.views.paging import read_time
from controller.store.views.workers import STATE_COLUMNS, worker_conditions
from schemas.worker_conditions import CONTAINERS, GPUS_HEALTHY, is_trouble

_MOST: Final = 20_000  # instances
_SAMPLE: Final = 20
_NOT_LISTED: Final = frozenset({CONTAINERS, GPUS_HEALTHY})  # most hosts need no containers; GPUs have their own items
_EXPECTED: Final = "drain_waits"  # an operator's own drain, until its time is over
_WORKERS: Final = f"""
    select {STATE_COLUMNS}, coalesce(h.instances, 0) as instances, h.sample
      from workers w
      left join worker_liveness l on l.worker_id = w.id
      left join lateral (
          select count(*) as instances, (array_agg(c.instance_id order by c.instance_id))[:{_SAMPLE}] as sample
            from (select distinct c.instance_id from claims c join devices d on d.uuid = c.device
                   where d.worker_id = w.id) c) h on true
     where w.deleted_at is null
       and (w.phase <> 'ready' or w.conditions <> '[]' or w.samples_dropped_at > now() - interval '10 min'
            or w.drain_until < clock_timestamp())
     order by w.name"""  # noqa: S608 - constants, no input
# Fetching before the process starts has a limit of its own.
_OVERDUE: Final = """
    (i.phase = 'starting' and i.reason not in ('fetching', 'pulling')
     and clock_timestamp() - coalesce(i.start_phase_since, i.phase_since)
         > make_interval(secs => coalesce((r.spec ->> 'start_timeout')::float8, 600)))"""
# `failing_since`: the first of the failures in a row, or of the failed reads of the model since the spec was applied.
# Failed reads belong to a revision, so they are queried for one of its instances: its deployment may have many events.
_INSTANCES: Final = f"""
    with troubled as materialized (
        select i.id, i.phase, i.phase_since, i.reason, i.message, i.failures, i.created_at, d.uid, d.name as deployment,
               r.generation, r.applied_at, case when r.need is null then r.need_error end as need_error,
               {_OVERDUE} as overdue,
               case when i.phase = 'pending' and o.reason = 'rollout_blocked' then o.message end as held
          from instances i
          join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
          join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
          left join rollouts o on o.deployment_uid = i.deployment_uid and o.revision = i.revision
         where i.phase in ('pending', 'analyzing', 'backoff', 'failed')
            or i.failures >= 2 and i.phase in ('scheduled', 'starting', 'running', 'unhealthy')
            or {_OVERDUE}
         order by i.created_at, i.id
         limit {_MOST}),
    first_vain as (
        select t.*,
               case when t.need_error is not null and row_number() over (partition by t.uid, t.generation) = 1
                    then (select min(e.at) from events e
                           where e.at >= t.applied_at and e.objects @> array['deployment:' || t.uid]
                             and e.reason = 'metadata_unknown') end as vain
          from troubled t)
    select t.id, t.deployment, t.phase, t.phase_since as since, t.reason, t.message, t.failures,
           t.overdue, t.need_error ->> 'message' as need_error, t.held,
           coalesce(max(t.vain) over (partition by t.uid, t.generation),
                    (select max(e.at) from events e
                      where t.failures > 0 and e.objects @> array['instance:' || t.id] and e.reason = 'backoff'
                        and e.evidence ->> 'failures' = '1'), t.phase_since) as failing_since
      from first_vain t
     order by t.created_at, t.id"""  # noqa: S608 - constants, no input
_DEPLOYMENTS: Final = """
    select d.name, d.reason, d.message,
           (select max(e.at) from events e
             where e.objects @> array['deployment:' || d.uid] and e.reason = d.reason) as since
      from deployments d
     where d.deleted_at is null and d.reason in ('reconcile_failing', 'rollout_failed', 'rollout_aborted')
     order by d.name"""
_IDLE: Final = """
    select v.instance_id as id, d.name as deployment, v.policy, v.action, v.dry_run, v.message, v.since
      from policy_verdicts v
      join instances i on i.id = v.instance_id and i.epoch = v.epoch
                      and i.phase not in ('stopping', 'replaced', 'succeeded', 'failed')
      join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
     where v.verdict = 'idle'
     order by v.since, v.instance_id"""
_GPUS: Final = """
    select d.uuid, w.name as worker, d.index, d.health_reason as reason,
           (select count(distinct c.instance_id) from claims c where c.device = d.uuid) as instances,
           (select max(e.at) from events e
             where e.objects @> array['gpu:' || d.uuid] and e.reason in ('gpu_unhealthy', 'gpu_missing')) as since
      from devices d
      join workers w on w.id = d.worker_id and w.deleted_at is null
     where d.kind = 'gpu' and d.health = 'unhealthy' and (d.present or not starts_with(d.uuid, 'GPU-unreadable-'))
     order by w.name, d.index, d.uuid"""
_VIOLATED: Final = "select id from events where reason = 'invariant_violated' order by id desc limit 1"

_deployment = row_mapper(TroubledDeployment)
_KEYS: Final = f"""
    select id::text as id, name, expires_at from api_keys
     where {EXPIRING} order by expires_at, id limit 1000"""  # noqa: S608 - constants, no input

_key = row_mapper(ExpiringKey)
_idle = row_mapper(IdleInstance)
_gpu = row_mapper(SickGpu)


async def newest_violation(connection: Reader) -> int | None:
    """The id of the newest event of a broken invariant; None without one."""
    rows = await connection.fetch(_VIOLATED)
    return rows[0]["id"] if rows else None


async def read_attention(
    connection: Reader,
    *,
    leading: bool,
    violations: Sequence[str],
    secret_keys: SecretKeys = NO_KEYS,
    certificates: Sequence[CertificateState] = (),
    space: DatabaseSpace | None = None,
) -> AttentionSnapshot:
    """Reads in one REPEATABLE READ transaction. `leading`: this controller is the leader."""
    leader = leading or await read_holder(connection) is not None
    return AttentionSnapshot(
        at=await read_time(connection),
        leader=leader,
        leaderless_since=None if leader else (await read_leader(connection, leading=False)).renewed_at,
        violations=violations,
        workers=[_worker(row) for row in await connection.fetch(_WORKERS)],
        instances=[_instance(row) for row in await connection.fetch(_INSTANCES)],
        deployments=[_deployment(row) for row in await connection.fetch(_DEPLOYMENTS)],
        idle=[_idle(row) for row in await connection.fetch(_IDLE)],
        gpus=[_gpu(row) for row in await connection.fetch(_GPUS)],
        unreadable_secrets=len(await unreadable_secrets(connection, secret_keys)),
        plain_secrets=await count_plain(connection),
        sealing=await read_sealing(connection, secret_keys),
        keys=[_key(row) for row in await connection.fetch(_KEYS)],
        certificates=certificates,
        database_full_since=None if space is None else space.since,
        database_low="" if space is None else space.low,
    )


def _worker(row: Any) -> TroubledWorker:
    quarantined = row["quarantined"] and row["phase"] == "unreachable" and row["connected"]
    silent = row["phase"] in ("unreachable", "lost") and not quarantined
    return TroubledWorker(
        name=row["name"],
        ready=row["phase"] == "ready",
        state="quarantined" if quarantined else row["phase"],
        reason=row["quarantine_reason"] if quarantined else row["reason"],
        since=(row["last_seen"] if silent else None) or row["phase_since"],
        conditions=[
            (condition.reason, condition.message, condition.since)
            for condition in worker_conditions(row)
            if is_trouble(condition) and condition.type not in _NOT_LISTED and condition.reason != _EXPECTED
        ],
        instances=row["instances"],
        sample=row["sample"] or (),
    )


def _instance(row: Any) -> TroubledInstance:
    failing_since: datetime = row["failing_since"]
    return TroubledInstance(
        id=row["id"],
        deployment=row["deployment"],
        phase=row["phase"],
        since=row["since"],
        reason=row["reason"],
        message="; ".join(text for text in (row["message"], row["held"]) if text),
        failures=row["failures"],
        failing_since=failing_since,
        need_error=row["need_error"] or "",
        overdue=row["overdue"],
    )
