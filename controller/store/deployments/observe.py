"""One consistent read of deployments with their instances, claims, processes and commands."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from msgspec import convert

from controller.domain.access.secret_scopes import SECRET_REFUSALS
from controller.domain.devices import GONE
from controller.domain.instances import (
    ClaimedWorker,
    CommandState,
    DeploymentSnapshot,
    EndedStart,
    InstanceClaim,
    InstanceState,
    Intent,
    ReportedProcess,
    Revision,
    StoredRelocation,
)
from controller.domain.phases import LIVE, InstancePhase
from controller.domain.placement import Layout, need_error_from_json, need_from_json
from controller.domain.rollouts import RequestOutcomes, RolloutRecord, RolloutSnapshot
from controller.store.core.database import Reader, Row, group_rows, row_mapper
from controller.store.deployments.specs import keep_specs_of, spec_from_json

_SECRET_CODES: Final = ", ".join(f"'{code}'" for code in SECRET_REFUSALS)
# Whether the start of instance `i` was refused for lack of a secret that was set since, or while it was refused. The
# first condition spares most instances the read of their commands.
SECRET_SET_SINCE: Final = f"""
    ((i.reason in ({_SECRET_CODES}) or i.phase in ('scheduled', 'starting')) and exists (
         select 1 from commands o
          cross join lateral jsonb_each_text(case jsonb_typeof(o.payload -> 'env_secrets') when 'object'
                                                  then o.payload -> 'env_secrets' else '{{}}' end) v
           join secrets s on s.name = v.value
          where o.instance_id = i.id and o.epoch = i.epoch and o.verb = 'start' and o.state = 'refused'
            and o.code in ({_SECRET_CODES}) and s.changed_at > o.sent_at))"""  # noqa: S608 - constants, no input
_DEPLOYMENTS: Final = """
    select d.*, clock_timestamp() as read_at,
           (select coalesce(jsonb_agg(jsonb_build_object(
                       'source', source, 'min_replicas', min_replicas, 'max_replicas', max_replicas, 'reason', reason,
                       'instances', instances)
                       order by source), '[]')
              from intents where deployment_uid = d.uid) as intents,
           (select jsonb_agg(to_jsonb(r) order by r.id) from relocations r
             where r.deployment_uid = d.uid and r.state = 'moving') as relocations,
           (select to_jsonb(o) from rollouts o where o.deployment_uid = d.uid) as rollout,
           (select replicas from placed_before p where p.deployment_uid = d.uid) as placed_before
      from deployments d where uid = any($1::uuid[])"""
_REVISIONS: Final = """
    select r.* from revisions r join deployments d on d.uid = r.deployment_uid
     where r.deployment_uid = any($1::uuid[])
       and (r.generation = d.revision
            or exists (select 1 from rollouts o where o.deployment_uid = d.uid and o.stable = r.generation)
            or exists (select 1 from instances i where i.deployment_uid = d.uid and i.revision = r.generation))"""
_INSTANCES: Final = f"""
    select i.*, {SECRET_SET_SINCE} as mended from instances i
     where i.deployment_uid = any($1::uuid[]) order by i.created_at, i.id"""  # noqa: S608 - a constant, no input
_CLAIMS: Final = """
    select c.instance_id, c.device, c.epoch, c.rank, c.memory_mib, c.cpu_milli, c.exclusive, c.position,
           d.worker_id::text as worker_id, d.kind, d.memory_mib as device_mib, d.claimed_mib as device_claimed_mib,
           d.health = 'ok' and d.present as healthy,
           case when d.kind = 'gpu' and split_part(d.health_reason, ':', 1) = any($2) then d.health_reason
                else '' end as gone,
           (select w.engines from workers w where w.id = d.worker_id) as worker_engines
      from claims c join devices d on d.uuid = c.device
     where c.instance_id = any($1) order by c.position, c.device"""
_PROCESSES: Final = """
    select p.instance_id, p.epoch, p.rank, p.worker_id::text as worker_id, p.state, p.reason, p.exit_code, p.message,
           case when p.state = 'exited' then p.reported_at end as ended_at
      from processes p join instances i on i.id = p.instance_id
     where p.instance_id = any($1) and (p.state <> 'exited' or p.epoch >= i.epoch)"""
# More runs than delays grow over. A restarted instance keeps a row of each start, so the number read is bounded.
_RUNS: Final = """
    select n.id as instance_id, r.*
      from unnest($1::text[]) as n(id)
     cross join lateral (
           select min(c.created_at) as started, max(p.reported_at) as ended,
                  coalesce(bool_or(p.reason = 'agent_stopped'), false) as orderly
             from processes p
             join commands c on (c.instance_id, c.epoch, c.rank, c.verb) = (p.instance_id, p.epoch, p.rank, 'start')
            where p.instance_id = n.id and p.state = 'exited'
            group by p.epoch order by p.epoch desc limit 32) r"""
_COMMANDS: Final = """
    select c.id, c.instance_id, c.epoch, c.rank, c.verb, c.worker_id::text as worker_id, c.state,
           c.sent_at is not null as sent, c.code, c.message
      from commands c join instances i on i.id = c.instance_id
     where c.instance_id = any($1) and c.epoch = i.epoch"""
# Of deployments with several running replicas, of which the least busy is removed first.
_REQUESTS: Final = """
    with in_flight as (
        select r.key as id, sum(r.value::int)::int as requests
          from gateway_demand d
          join gateways g on g.id = d.gateway_id and g.seen_at > clock_timestamp() - interval '10 s'
         cross join lateral jsonb_each_text(d.replicas) r
         where d.deployment_uid = any($1::uuid[]) group by 1)
    select i.id, coalesce(t.requests, 0) as requests, coalesce(l.requests, 0) as seen
      from instances i
      left join in_flight t on t.id = i.id
      left join engine_loads l on l.instance_id = i.id and l.epoch = i.epoch
                              and l.requests_at > clock_timestamp() - interval '45 s'
     where i.deployment_uid = any($1::uuid[]) and (t.requests > 0 or l.requests > 0)"""
_SILENT_S: Final = 10.0  # a gateway that has not reported for this long is silent
_OUTCOMES: Final = """
    select o.deployment_uid, sum(o.requests)::bigint as requests, sum(o.errors)::bigint as errors
      from gateway_outcomes o
      join rollouts r on r.deployment_uid = o.deployment_uid and r.revision = o.revision and r.attempt = o.attempt
     where o.deployment_uid = any($1::uuid[]) group by 1"""
_SILENT: Final = """
    select name from gateways where seen_at < clock_timestamp() - make_interval(secs => $1) order by name limit 20"""
_INPUTS: Final = """
    select d.uid, d.revision, d.deleted_at, r.input_hash, r.created_at
      from deployments d join revisions r on r.deployment_uid = d.uid and r.generation = d.revision
     where d.uid = any($1::uuid[])"""
_HOSTS: Final = """
    select id::text as id, name, phase, reason, draining, deleted_at is not null as deleted,
           confirmed_dead is not null as confirmed_dead, fence_until, drain_until, drain_restarts_tasks
      from workers
     where id = any($1::uuid[])"""

_RUNNING: Final = InstancePhase.RUNNING.value
_FOLLOWS: Final = (LIVE - {InstancePhase.BACKOFF}) | {InstancePhase.UNREACHABLE}
_claim = row_mapper(InstanceClaim)
_process = row_mapper(ReportedProcess)
_command = row_mapper(CommandState)
_run = row_mapper(EndedStart)
_host = row_mapper(ClaimedWorker)


@dataclass(frozen=True, slots=True)
class CurrentInput:
    """The newest revision's input of its analysis."""

    revision: int
    input_hash: str
    revised_at: datetime
    deleted_at: datetime | None  # when the deployment was deleted


async def list_uids(connection: Reader) -> list[str]:
    """The uids of all deployments, including deleted ones that are not finished."""
    rows = await connection.fetch("select uid from deployments order by created_at")
    keep_specs_of(len(rows))
    return [str(row["uid"]) for row in rows]


async def observe(connection: Reader, uids: Sequence[str]) -> dict[str, DeploymentSnapshot]:
    """Reads deployments by uid; finished deployments are missing.

    The connection must be in one REPEATABLE READ transaction, so that all rows are of the same state.
    """
    deployments = await connection.fetch(_DEPLOYMENTS, list(uids))
    existing = [row["uid"] for row in deployments]
    if not existing:
        return {}
    revisions = group_rows(await connection.fetch(_REVISIONS, existing), "deployment_uid")
    rollouts = await _read_rollouts(connection, {r["uid"]: r["rollout"] for r in deployments if r["rollout"]})
    instances = await connection.fetch(_INSTANCES, existing)
    ids = [row["id"] for row in instances]
    claims = group_rows(await connection.fetch(_CLAIMS, ids, GONE), "instance_id") if ids else {}
    processes = group_rows(await connection.fetch(_PROCESSES, ids), "instance_id") if ids else {}
    commands = group_rows(await connection.fetch(_COMMANDS, ids), "instance_id") if ids else {}
    ended = [i["id"] for i in instances if any(_has_ended(i, p) for p in processes.get(i["id"], ()))]
    runs = group_rows(await connection.fetch(_RUNS, ended), "instance_id") if ended else {}
    several = [
        uid for uid, n in Counter(r["deployment_uid"] for r in instances if r["phase"] == _RUNNING).items() if n > 1
    ]
    busy = {r["id"]: r for r in await connection.fetch(_REQUESTS, several)} if several else {}
    worker_ids = {row["worker_id"] for rows in claims.values() for row in rows}
    hosts = {h.id: h for h in map(_host, await connection.fetch(_HOSTS, list(worker_ids)))} if worker_ids else {}
    by_deployment: dict[Any, list[InstanceState]] = defaultdict(list)
    for row in instances:
        by_deployment[row["deployment_uid"]].append(
            replace(
                _instance(row, claims.get(row["id"], ()), processes.get(row["id"], ()), commands.get(row["id"], ())),
                runs=tuple(map(_run, runs.get(row["id"], ()))),
                requests=busy[row["id"]]["requests"] if row["id"] in busy else 0,
                seen_requests=busy[row["id"]]["seen"] if row["id"] in busy else 0,
            )
        )
    return {
        str(row["uid"]): replace(
            _deployment(row, revisions.get(row["uid"], ()), by_deployment[row["uid"]], hosts),
            rollout=rollouts.get(row["uid"]),
        )
        for row in deployments
    }


async def current_inputs(connection: Reader, uids: Sequence[str]) -> dict[str, CurrentInput]:
    """By uid; fast enough to run at each change. Finished deployments are missing."""
    return {
        str(row["uid"]): CurrentInput(row["revision"], row["input_hash"], row["created_at"], row["deleted_at"])
        for row in await connection.fetch(_INPUTS, uids)
    }


async def _read_rollouts(connection: Reader, stored: Mapping[Any, Mapping[str, Any]]) -> dict[Any, RolloutSnapshot]:
    """From rows as JSON, by deployment; with gateways' counts while a rollout is in progress."""
    under_way = [uid for uid, row in stored.items() if row["state"] in ("canary", "progressing")]
    counted: Mapping[Any, Row] = {}
    silent: tuple[str, ...] = ()
    if under_way:
        counted = {row["deployment_uid"]: row for row in await connection.fetch(_OUTCOMES, under_way)}
        silent = tuple(row["name"] for row in await connection.fetch(_SILENT, _SILENT_S))
    return {uid: _rollout(row, counted.get(uid), silent) for uid, row in stored.items()}


def _rollout(row: Mapping[str, Any], counted: Row | None, silent: tuple[str, ...]) -> RolloutSnapshot:
    requests, errors = (counted["requests"], counted["errors"]) if counted is not None else (0, 0)
    record = None if row["revision"] is None else convert(row, RolloutRecord)
    return RolloutSnapshot(record, row["paused"], row["asked"], RequestOutcomes(requests, errors, silent))


def _has_ended(instance: Row, process: Row) -> bool:
    """Whether the process ended in the instance's present epoch, and the instance has yet to follow it."""
    return instance["phase"] in _FOLLOWS and process["state"] == "exited" and process["epoch"] == instance["epoch"]


def _deployment(
    row: Row,
    revisions: Sequence[Row],
    instances: Sequence[InstanceState],
    hosts: Mapping[str, ClaimedWorker],
) -> DeploymentSnapshot:
    used = {c.worker_id for i in instances for c in i.claims}
    return DeploymentSnapshot(
        uid=str(row["uid"]),
        name=row["name"],
        generation=row["generation"],
        revision=row["revision"],
        version=row["version"],
        spec=spec_from_json(row["spec"]),
        created_at=row["created_at"],
        deleted_at=row["deleted_at"],
        phase=row["phase"],
        reason=row["reason"],
        message=row["message"],
        ready=row["ready"],
        observed_generation=row["observed_generation"],
        conditions=tuple(row["conditions"]),
        now=row["read_at"],
        revisions={r["generation"]: _revision(r) for r in revisions},
        intents=tuple(
            Intent(i["source"], i["max_replicas"], i["reason"], tuple(i["instances"]), i["min_replicas"])
            for i in row["intents"]
        ),
        instances=tuple(instances),
        hosts={id_: host for id_, host in hosts.items() if id_ in used},
        relocations=tuple(_relocation(r) for r in row["relocations"] or ()),
        placed_before=row["placed_before"],
    )


def _relocation(row: Row) -> StoredRelocation:
    to = ", ".join(row["workers"])
    return StoredRelocation(row["id"], row["instance_id"], row["epoch"], to, row["copy_id"] or "", row["purpose"])


def _revision(row: Row) -> Revision:
    return Revision(
        generation=row["generation"],
        spec=spec_from_json(row["spec"]),
        input_hash=row["input_hash"],
        created_at=row["created_at"],
        need=need_from_json(row["need"]) if row["need"] is not None else None,
        need_error=need_error_from_json(row["need_error"]) if row["need_error"] is not None else None,
        commits=row["model_commits"],
    )


def _instance(row: Row, claims: Sequence[Row], processes: Sequence[Row], commands: Sequence[Row]) -> InstanceState:
    return InstanceState(
        id=row["id"],
        revision=row["revision"],
        phase=InstancePhase(row["phase"]),
        phase_since=row["phase_since"],
        reason=row["reason"],
        message=row["message"],
        epoch=row["epoch"],
        restarts=row["restarts"],
        failures=row["failures"],
        not_before=row["not_before"],
        stop_reason=row["stop_reason"],
        replaces=row["replaces"],
        created_at=row["created_at"],
        engine=row["engine"] or "",
        layout=_layout(row["layout"]),
        start_phases=row["start_phases"],
        start_phase_since=row["start_phase_since"],
        preempted_for=row["pushed_out_for"],
        mended=row["mended"],
        restarts_now=row["restart_epoch"] == row["epoch"],
        claims=tuple(_claim(c) for c in claims),
        processes=tuple(_process(p) for p in processes),
        commands=tuple(_command(c) for c in commands),
    )


def _layout(chosen: Mapping[str, int] | None) -> Layout | None:
    """The chosen layout; its memory is in the claims."""
    return None if chosen is None else Layout(memory_mib=0, exclusive=False, **chosen)
