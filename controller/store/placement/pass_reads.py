"""What a placement pass reads: workers, devices and claims; pending instances in admission order; their revisions.

Workers and devices are read once, then only what changed. Each of their rows carries the transaction that last wrote
it. A read returns the rows written by transactions that the snapshot before could not see as finished, so it misses
none, whatever the order of commits.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.domain.admission import (
    Destination,
    HeldClaim,
    Holder,
    Holders,
    Holding,
    Holdings,
    PendingRow,
    RefusedStart,
    new_instance,
)
from controller.domain.placement import (
    ContainerRuntime,
    DeviceState,
    Need,
    PlacementWorker,
    PlannedClaim,
    need_from_json,
)
from controller.store.core.database import Row, row_mapper
from controller.store.deployments.observe import SECRET_SET_SINCE
from controller.store.deployments.specs import spec_from_json
from schemas.manifest.deployment import DeploymentSpec

FROM_THE_START: Final = "0"
planned_claim = row_mapper(PlannedClaim)
# Each changed row carries the horizon. If none changed, the old horizon still holds.
_WORKERS: Final = """
    select id, name, phase, cordoned, draining, deleted_at, os, arch, driver, simulated, labels, engines, runtimes,
           gpus_known, proxy_address, conditions @> '[{"type": "DiskPressure"}]' as disk_full,
           pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from workers where changed >= $1::text::xid8"""
_DEVICES: Final = """
    select d.*, w.deleted_at is not null as orphaned, pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from devices d join workers w on w.id = d.worker_id
     where d.changed >= $1::text::xid8"""
_CLAIMS: Final = """
    select c.instance_id, i.deployment_uid, c.device, d.worker_id, d.kind, c.rank, c.memory_mib, c.cpu_milli,
           c.exclusive, c.position, c.rendezvous_port
      from claims c join instances i on i.id = c.instance_id join devices d on d.uuid = c.device
     where c.device = any($1)"""
MOST_OF_DEPLOYMENT: Final = 2_000
# Whether instance `i` of deployment `d` and revision `r` is queued, if its phase and backoff allow it.
PLACEABLE: Final = """
    d.deleted_at is null and r.need is not null
    and (i.revision = d.revision or exists (
         select 1 from rollouts o where o.deployment_uid = d.uid and o.holds and o.stable = i.revision))"""
_NEXT_DUE: Final = """
    select extract(epoch from min(not_before) - clock_timestamp())::float8
      from instances where phase = 'pending' and not_before > clock_timestamp()"""
# Not instances in backoff, which a user's restart ends. `last_worker`: in a gang, the worker whose process failed; the
# other processes were stopped because of it. `preempting`: victims on a lost worker do not count, as they may never
# end. `relocation_target`: a place that relocations free is reserved until the last relocated instance has ended. The
# replacement of a drained or restarted instance preempts nothing, since the replaced instance still runs. If more are
# pending than a pass reads, each deployment is limited: else thousands that fit nowhere would starve all others.
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
           ({_NEXT_DUE}) as next_due_s
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
STAYING: Final = ("scheduled", "starting", "running", "unhealthy", "backoff")
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


@dataclass(frozen=True, slots=True)
class InventoryChanges:
    """The rows written since a horizon."""

    workers: Iterable[PlacementWorker]
    deleted_workers: Collection[str]  # ids
    devices: Iterable[DeviceState]
    orphaned_devices: Collection[str]  # UUIDs of deleted workers' devices
    device_uuids: Collection[str]  # those of all devices that changed
    claims: Iterable[tuple[str, HeldClaim]]  # all claims on those devices, each with its instance
    horizon: str  # for the next read


async def read_changes(connection: Any, horizon: str) -> InventoryChanges:
    """Reads the rows written since `horizon`. The connection must be in one REPEATABLE READ transaction."""
    workers = await connection.fetch(_WORKERS, horizon)
    devices = await connection.fetch(_DEVICES, horizon)
    uuids = [row["uuid"] for row in devices]
    claims = await connection.fetch(_CLAIMS, uuids) if uuids else []
    return InventoryChanges(
        workers=(_worker(row) for row in workers if row["deleted_at"] is None),
        deleted_workers=[str(row["id"]) for row in workers if row["deleted_at"] is not None],
        devices=(_device(row) for row in devices if not row["orphaned"]),
        orphaned_devices=[row["uuid"] for row in devices if row["orphaned"]],
        device_uuids=uuids,
        claims=_held(claims),
        horizon=next((row["horizon"] for row in (*workers, *devices)), horizon),
    )


def _held(rows: Iterable[Row]) -> Iterator[tuple[str, HeldClaim]]:
    for row in rows:
        yield (
            row["instance_id"],
            HeldClaim(
                deployment_uid=str(row["deployment_uid"]),
                worker_id=str(row["worker_id"]),
                gpu=row["kind"] == "gpu",
                claim=planned_claim(row),
                rendezvous_port=row["rendezvous_port"],
            ),
        )


def _worker(row: Row) -> PlacementWorker:
    return PlacementWorker(
        id=str(row["id"]),
        name=row["name"],
        ready=row["phase"] == "ready" and row["gpus_known"],
        schedulable=not row["cordoned"] and not row["draining"],
        disk_full=row["disk_full"],
        os=row["os"],
        arch=row["arch"],
        driver=row["driver"],
        simulated=row["simulated"],
        labels=row["labels"],
        engines=None if row["engines"] is None else frozenset(row["engines"]),
        containers=_containers(row["runtimes"]),
        host=row["proxy_address"].rpartition(":")[0].strip("[]"),
    )


def _containers(runtimes: Iterable[dict[str, Any]]) -> ContainerRuntime | None:
    docker = next((runtime for runtime in runtimes if runtime["name"] == "docker"), None)
    return None if docker is None else ContainerRuntime(docker["usable"], docker["gpus"], docker["reason"])


def _device(row: Row) -> DeviceState:
    capability = row["compute_capability"]
    return DeviceState(
        uuid=row["uuid"],
        worker_id=str(row["worker_id"]),
        kind=row["kind"],
        index=row["index"],
        model=row["model"],
        compute_capability=_capability(capability) if capability else None,
        memory_mib=row["memory_mib"],
        cpu_milli=row["cpu_milli"],
        claimed_mib=row["claimed_mib"],
        claimed_cpu_milli=row["claimed_cpu_milli"],
        claims=row["claims"],
        exclusive_claims=row["exclusive_claims"],
        healthy=row["health"] == "ok" and row["present"],
        mig_mode=row["mig_mode"],
        vendor=row["vendor"] if row["kind"] == "gpu" else "",
        reserved_mib=row["reserved_mib"],
        foreign_mib=row["foreign_mib"],
        parent=row["parent"],
        cordoned=row["cordoned"],
    )


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """A revision as stored. Parsing may fail if another version wrote it, which must not affect other revisions."""

    spec: Any
    need: Any
    commits: Mapping[str, str]  # the commits of its models on the hub, by `org/name@revision`

    def parse(self) -> tuple[DeploymentSpec, Need]:
        """Raises ValueError if this version cannot read the spec."""
        return spec_from_json(self.spec), need_from_json(self.need)


@dataclass(frozen=True, slots=True)
class PendingSnapshot:
    """Pending instances in admission order."""

    instances: list[PendingRow]
    more: bool  # there are more than were read
    next_due_s: float | None  # until the next backoff ends


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
    return Destination(tuple(stored["workers"]), tuple(stored["gpus"])) if stored else None


async def read_planned_copies(connection: Any) -> list[PendingRow]:
    """The replacements of relocations that have not started, each with its destination."""
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


async def read_holders(connection: Any, holdings: Holdings, *, only_leaving: bool = False) -> Holders:
    """The instances that hold claims and can stop or are stopping.

    In the REPEATABLE READ transaction in which their claims (`holdings`) were read. `only_leaving` omits those that
    stay, which matter only to preemption and reservations.
    """
    staying, leaving, relocating = list[Holder](), list[Holder](), list[Holder]()
    for row in await connection.fetch(_HOLDERS, list(STAYING), only_leaving):
        holding = holdings.get(row["id"])
        if holding is not None:
            holder = _holder(row, holding)
            (leaving if row["leaving"] else staying).append(holder)
            if row["relocating"] and not row["leaving"]:
                relocating.append(holder)
    return Holders(tuple(staying), tuple(leaving), tuple(relocating))


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
