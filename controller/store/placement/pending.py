"""Pending instances in admission order, and the specs and needs of their revisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.domain.admission import (
    Destination,
    Holder,
    Holders,
    Holding,
    Holdings,
    PendingRow,
    RefusedStart,
    new_instance,
)
from controller.domain.effects import StaleError
from controller.domain.events import NewEvent
from controller.domain.placement import Need, need_from_json
from controller.store.core.events import write_events
from controller.store.deployments.observe import SECRET_SET_SINCE
from controller.store.deployments.specs import spec_from_json
from schemas.manifest.deployment import DeploymentSpec

MOST_OF_DEPLOYMENT: Final = 2_000
# Of an instance `i`, its deployment `d` and its revision `r`, where the instance's phase and backoff allow it:
# whether it has a place in the queue.
PLACEABLE: Final = """
    d.deleted_at is null and r.need is not null
    and (i.revision = d.revision or exists (
         select 1 from rollouts o where o.deployment_uid = d.uid and o.holds and o.stable = i.revision))"""
_NEXT_DUE: Final = """
    select extract(epoch from min(not_before) - clock_timestamp())::float8
      from instances where phase = 'pending' and not_before > clock_timestamp()"""
# Only due ones: an instance in backoff comes again when its time is up. `last_worker`: of a gang, the worker whose
# process failed; the other processes were stopped because of it. `preempting`: victims on a lost worker do not count,
# as they may never end. `relocation_target`: a place that relocations free is reserved until the last relocated
# instance has ended. The replacement of a drained or restarted instance preempts nothing: that one still runs. A user's
# restart ends a backoff. If more are pending than one pass reads, each deployment is limited: else thousands that fit
# nowhere would keep all others from being considered.
_WAITING: Final = f"""
    with rooms as (
        select distinct on (key) key as instance_id, value as relocation_target
          from relocations r cross join jsonb_each(r.rooms)
         where r.state in ('waiting', 'moving')
            or (r.state = 'moved' and exists (select 1 from instances o where o.id = r.instance_id)))
    select i.in_all, i.id, i.deployment_uid, i.revision, i.phase, i.phase_since,
           case when i.reserved_since >= i.phase_since
                then extract(epoch from clock_timestamp() - i.reserved_since)::float8 end as reserved_s,
           greatest(i.epoch, i.seen_epoch) as epoch, i.failures, i.message, d.name,
           extract(epoch from i.created_at)::float8 as queued_at,
           (d.spec ->> 'priority')::int as priority,
           (d.spec ->> 'preempt')::boolean and not exists (
               select 1 from relocations m
                where m.copy_id = i.id and m.state = 'moving' and m.purpose <> 'plan') as preempt,
           exists (select 1 from instances v
                    where v.pushed_out_for = i.id
                      and not exists (select 1 from claims c join devices g on g.uuid = c.device
                                        join workers w on w.id = g.worker_id
                                       where c.instance_id = v.id and w.phase = 'lost')) as preempting,
           (select jsonb_build_array(m.workers, m.gpus) from relocations m
             where m.copy_id = i.id and m.state = 'moving' and m.purpose = 'plan') as destination,
           (select relocation_target from rooms where rooms.instance_id = i.id) as relocation_target, i.promised,
           case when (d.spec ->> 'preempt')::boolean then (
                select jsonb_build_object(
                           'code', c.code, 'message', c.message, 'worker', coalesce(w.name, ''),
                           'ago_s', extract(epoch from clock_timestamp() - c.answered_at)::float8,
                           'changed', coalesce(w.reported_at > c.answered_at, true))
                  from commands c left join workers w on w.id = c.worker_id and w.deleted_at is null
                 where c.instance_id = i.id and c.epoch = i.epoch and c.verb = 'start' and c.state = 'refused'
                 order by c.answered_at desc limit 1) end as refused,
           clock_timestamp() as read_at,
           (select p.worker_id from processes p where p.instance_id = i.id and p.epoch = i.epoch
             order by coalesce(p.reason, '') = 'stopped' or coalesce(p.exit_code, 1) = 0,
                      case when p.state = 'exited' then p.reported_at end nulls last, p.rank limit 1)
               as last_worker,
           (select extract(epoch from min(not_before) - clock_timestamp())::float8
              from instances where phase = 'pending' and not_before > clock_timestamp()) as next_due_s
      from (select id, deployment_uid, revision, phase, phase_since, reserved_since, epoch, failures, message,
                   created_at, seen_epoch, promised,
                   row_number() over (partition by deployment_uid order by created_at, id) as place,
                   count(*) over () as in_all
              from instances i
             where phase in ('pending', 'analyzing')
               and (not_before is null or not_before <= clock_timestamp() or restart_epoch = epoch
                    or {SECRET_SET_SINCE})) i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
     where (i.in_all <= $1 or i.place <= $2) and {PLACEABLE}
     order by not exists (select 1 from relocations m
                           where m.copy_id = i.id and m.state = 'moving' and m.purpose = 'plan'),
              (d.spec ->> 'priority')::int desc, i.created_at, i.id
     limit $1"""  # noqa: S608 - a constant, no input
# The next relocations, as if their replacements were pending already.
_TO_MOVE: Final = """
    select i.id, i.deployment_uid, i.revision, d.name, m.workers, m.gpus
      from relocations m
      join instances i on i.id = m.instance_id and i.epoch = m.epoch
      join deployments d on d.uid = i.deployment_uid and d.revision = i.revision and d.deleted_at is null
      join revisions r on r.deployment_uid = d.uid and r.generation = d.revision and r.need is not null
     where m.state = 'waiting' or (m.state = 'moving' and m.copy_id is null)
     order by m.id"""
# Successors of outdated instances that are stopping, as many as the deployment's next steps create.
_AWAITED: Final = """
    select i.id, i.deployment_uid, d.revision, d.name, (d.spec ->> 'priority')::int as priority
      from (select o.id, o.deployment_uid, o.created_at,
                   row_number() over (partition by o.deployment_uid order by o.created_at, o.id) as place
              from instances o where o.phase = 'stopping' and o.stop_reason = 'new_revision') i
      join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
      join revisions r on r.deployment_uid = d.uid and r.generation = d.revision and r.need is not null
     where i.place <= least(case jsonb_typeof(d.spec -> 'replicas') when 'object'
                                 then (d.spec -> 'replicas' ->> 'max')::int
                                 else (d.spec ->> 'replicas')::int end,
                            (select min(t.max_replicas) from intents t where t.deployment_uid = d.uid))
                      - (select count(*) from instances k
                          where k.deployment_uid = d.uid and k.phase not in ('stopping', 'replaced'))
     order by priority desc, i.created_at, i.id"""
_REVISIONS: Final = """
    select r.deployment_uid, r.generation, r.spec, r.need, r.model_commits
      from revisions r join unnest($1::uuid[], $2::bigint[]) as x (uid, generation)
        on r.deployment_uid = x.uid and r.generation = x.generation
     where r.need is not null"""
RevisionKey = tuple[str, int]
_STAYING: Final = ("scheduled", "starting", "running", "unhealthy", "backoff")
# Instances on an unreachable worker are excluded: no agent could stop them.
_HOLDERS: Final = """
    select i.id, i.epoch, extract(epoch from i.created_at)::float8 as queued_at,
           (d.spec ->> 'priority')::int as priority,
           i.phase = 'stopping' or i.pushed_out_for is not null or d.deleted_at is not null as leaving,
           d.spec ->> 'restart' <> 'always' as task,
           coalesce(d.spec ->> 'command', '[]') = '[]' or d.spec ->> 'command' like '%{port}%' as serves,
           coalesce((d.spec ->> 'movable')::boolean, true) as movable,
           coalesce((d.spec ->> 'minimum_runtime')::float8, 0) as minimum_runtime,
           coalesce(extract(epoch from clock_timestamp() - (select min(c.created_at) from claims c
             where c.instance_id = i.id and c.epoch = i.epoch)), 0)::float8 as age_s,
           exists (select 1 from relocations m where m.instance_id = i.id and m.epoch = i.epoch
                                                 and m.state in ('waiting', 'moving')) as relocating
      from instances i join deployments d on d.uid = i.deployment_uid
     where (i.phase = 'stopping'
            or i.phase = any($1) and (not $2 or i.pushed_out_for is not null or d.deleted_at is not null))"""
_MARK: Final = """
    update instances i set pushed_out_for = x.waits
      from jsonb_to_recordset($1) as x (id text, epoch int, waits text, waits_epoch int), instances w
     where i.id = x.id and i.epoch = x.epoch and i.phase = any($2) and i.pushed_out_for is null
       and w.id = x.waits and w.epoch = x.waits_epoch and w.phase in ('pending', 'analyzing')
 returning i.id, i.deployment_uid"""


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """A revision as stored. If another version wrote it, parsing may fail, and must then fail for it alone."""

    spec: Any
    need: Any
    commits: Mapping[str, str]  # of its models on the hub, by `org/name@revision`

    def parse(self) -> tuple[DeploymentSpec, Need]:
        """The spec and the need.

        Raises:
            ValueError: this version cannot read the spec.
        """
        return spec_from_json(self.spec), need_from_json(self.need)


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """Pending instances, whether there are more, and in how many seconds the next backoff ends."""

    instances: list[PendingRow]
    more: bool
    next_due_s: float | None


async def read_pending(
    connection: Any, limit: int, *, failures_per_worker: int, of_deployment: int = MOST_OF_DEPLOYMENT
) -> PendingSnapshot:
    """Reads up to `limit` instances; if more are pending, at most `of_deployment` of each deployment.

    Replacements of relocations come first, since their places are reserved for them; then by priority and age.
    """
    rows = await connection.fetch(_WAITING, limit, of_deployment)
    next_due_s: float | None = rows[0]["next_due_s"] if rows else await connection.fetchval(_NEXT_DUE)
    waiting = [
        PendingRow(
            id=row["id"],
            deployment_uid=str(row["deployment_uid"]),
            deployment=row["name"],
            revision=row["revision"],
            phase=row["phase"],
            epoch=row["epoch"],
            waited_s=(row["read_at"] - row["phase_since"]).total_seconds(),
            message=row["message"],
            avoid_worker=str(row["last_worker"])
            if row["last_worker"] and row["failures"] and row["failures"] % failures_per_worker == 0
            else None,
            priority=row["priority"],
            preempt=row["preempt"],
            preempting=row["preempting"],
            destination=_destination(row["destination"]),
            relocation_target=_destination(row["relocation_target"]),
            reserved_s=row["reserved_s"],
            queued_at=row["queued_at"],
            promised=destination_from_json(row["promised"]),
            failures=row["failures"],
            refused=RefusedStart(**row["refused"]) if row["refused"] else None,
        )
        for row in rows
    ]
    return PendingSnapshot(waiting, any(row["in_all"] > limit for row in rows), next_due_s)


def _destination(stored: Any) -> Destination | None:
    return Destination(*map(tuple, stored)) if stored else None


def destination_from_json(stored: Any) -> Destination | None:
    """A stored promised place; None if there is none."""
    return Destination(tuple(stored["workers"]), tuple(stored["gpus"])) if stored else None


async def read_planned_copies(connection: Any) -> list[PendingRow]:
    """The replacements of relocations that have not begun, each with its destination."""
    return [
        replace(
            new_instance(f"a replacement of {row['id']}", str(row["deployment_uid"]), row["name"], row["revision"]),
            destination=Destination(tuple(row["workers"]), tuple(row["gpus"])),
        )
        for row in await connection.fetch(_TO_MOVE)
    ]


async def read_awaited(connection: Any) -> list[PendingRow]:
    """The successors that rollouts create once outdated instances have ended, by priority. They are not pending yet."""
    return [
        replace(
            new_instance(f"the successor of {row['id']}", str(row["deployment_uid"]), row["name"], row["revision"]),
            priority=row["priority"],
            awaited=True,
        )
        for row in await connection.fetch(_AWAITED)
    ]


async def read_revisions(connection: Any, keys: Sequence[RevisionKey]) -> dict[RevisionKey, RevisionRow]:
    """Specs and needs of revisions, not parsed. Once its need is known, only commits come in addition: cache it."""
    rows = await connection.fetch(_REVISIONS, [k[0] for k in keys], [k[1] for k in keys])
    return {
        (str(row["deployment_uid"]), row["generation"]): RevisionRow(row["spec"], row["need"], row["model_commits"])
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pending instance, and the victims that stop for it."""

    waiting: PendingRow
    victims: tuple[Holder, ...]


async def read_holders(connection: Any, holdings: Holdings, *, only_leaving: bool = False) -> Holders:
    """The instances that hold claims and can stop or are stopping.

    In the REPEATABLE READ transaction in which their claims (`holdings`) were read. `only_leaving`: without those that
    stay, since preemption and long waits alone concern them.
    """
    found: dict[bool, list[Holder]] = {True: [], False: []}
    relocating: list[Holder] = []
    for row in await connection.fetch(_HOLDERS, list(_STAYING), only_leaving):
        holding = holdings.get(row["id"])
        if holding is not None:
            one = _holder(row, holding)
            found[row["leaving"]].append(one)
            if row["relocating"] and not row["leaving"]:
                relocating.append(one)
    return Holders(tuple(found[False]), tuple(found[True]), tuple(relocating))


def _holder(row: Any, holding: Holding) -> Holder:
    return Holder(
        instance=row["id"],
        priority=row["priority"],
        queued_at=row["queued_at"],
        workers=holding.workers,
        claims=holding.claims,
        epoch=row["epoch"],
        task=bool(row["task"]),
        movable=row["movable"],
        lost_s=row["age_s"] if row["task"] else 0.0,
        protected=row["age_s"] < row["minimum_runtime"],
        serves=row["serves"],
    )


async def preempt_victims(connection: Any, preemptions: Sequence[Preemption]) -> set[str]:
    """Marks the victims; their deployments' next step stops them. The caller has locked all instances.

    Returns:
        The deployments of the victims.

    Raises:
        StaleError: a victim, or the pending instance, has changed since it was read.
    """
    marks = [
        {"id": o.instance, "epoch": o.epoch, "waits": preemption.waiting.id, "waits_epoch": preemption.waiting.epoch}
        for preemption in preemptions
        for o in preemption.victims
    ]
    rows = await connection.fetch(_MARK, marks, list(_STAYING))
    if len(rows) != len(marks):
        raise StaleError("victims of a preemption")
    deployment_of = {row["id"]: str(row["deployment_uid"]) for row in rows}
    await write_events(connection, [_event(preemption, deployment_of) for preemption in preemptions])
    return set(deployment_of.values())


def _event(preemption: Preemption, deployment_of: dict[str, str]) -> NewEvent:
    waiting, names = preemption.waiting, [o.instance for o in preemption.victims]
    return NewEvent(
        reason="preempting",
        message=f"{waiting.id} of priority {waiting.priority} preempts {', '.join(names)}",
        objects=(
            f"deployment:{waiting.deployment_uid}",
            f"instance:{waiting.id}",
            *(f"deployment:{deployment_of[name]}" for name in names),
            *(f"instance:{name}" for name in names),
        ),
        evidence={
            "priority": waiting.priority,
            "waited_s": round(waiting.waited_s, 3),
            "leave": [{"instance": o.instance, "priority": o.priority, "gpus": o.gpus} for o in preemption.victims],
        },
    )
