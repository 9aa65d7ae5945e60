"""Orphans: processes that run, of which a ledger that lost commits knows nothing (the table `found_processes`).

Agents report them. The leader reads them under lock and takes back into the ledger those that it adopts; it has
checked its term in the same transaction.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import to_builtins

from controller.domain.adoption import Adopted, AdoptionPlan, DeviceRoom, HeldClaim, NotAdopted, OrphanProcess
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot
from controller.domain.start_receipts import receipt_of
from controller.store.core.database import Connection
from controller.store.core.events import notify_all, write_events
from controller.store.core.guards import UNSETTLED, lock_rows
from controller.store.deployments.observe import observe
from schemas.wire import ProcessReport

_ProcessKey = tuple[str, int, int]
NAMED: Final = 200  # events of one kind in one transaction; the last event counts the rest
# Reported on the present connection: its hello names again what runs, or leaves it out.
_ORPHANS: Final = """
    select f.receipt, f.report, w.name, w.phase = 'ready' and w.gpus_known as ready
      from found_processes f join workers w on w.id = f.worker_id and w.session = f.session and w.deleted_at is null
     order by f.instance_id, f.epoch, f.rank"""
_LOCK_WORKERS: Final = "select 1 from workers where id = any($1::uuid[]) order by id for no key update"
_OF_DELETED: Final = """
    delete from found_processes f using workers w where w.id = f.worker_id and w.deleted_at is not null"""
_STATE: Final = f"""
    select {UNSETTLED} as unsettled, exists (select 1 from found_processes) as orphans
      from lease where id = 1"""  # noqa: S608 - a constant
_SETTLE: Final = "update lease set settled_at = greatest(clock_timestamp(), cut_at) where id = 1"
_OWNERS: Final = "select id, deployment_uid::text as uid from instances where id = any($1)"
_OTHERS: Final = """
    select distinct i.deployment_uid::text as uid from claims c join instances i on i.id = c.instance_id
     where c.device = any($1)"""
_INSTANCES: Final = "select id from instances where deployment_uid = any($1::uuid[])"
_DEVICES: Final = """
    select d.uuid, d.worker_id::text as worker_id, d.kind = 'gpu' as gpu,
           d.health = 'ok' and d.present and not d.mig_mode as usable, d.memory_mib, d.reserved_mib, d.cpu_milli,
           c.instance_id, c.memory_mib as held_mib, c.cpu_milli as held_cpu_milli, c.exclusive
      from devices d left join claims c on c.device = d.uuid
     where d.uuid = any($1) order by d.uuid, c.instance_id"""
# Workers whose agents have reported since the loss.
_REPORTED: Final = """
    select w.id::text as id from workers w cross join lease l
     where l.id = 1 and w.deleted_at is null and w.reported_at > l.cut_at
       and exists (select 1 from worker_liveness v
                    where v.worker_id = w.id and v.session = w.session and v.connected)"""
_RELEASE: Final = "delete from claims where instance_id = any($1)"
_REMOVE: Final = "delete from instances where id = any($1)"
_INSERT: Final = """
    insert into instances (id, deployment_uid, revision, phase, epoch, seen_epoch, restarts, created_at, engine, layout,
                           running_since, message)
    select x.id, x.uid, x.revision, x.phase, x.epoch, x.epoch, x.restarts, x.created_at, x.engine, x.layout,
           case when x.phase = 'running' then clock_timestamp() end, ''
      from jsonb_to_recordset($1) as x (id text, uid uuid, revision bigint, phase text, epoch int, restarts int,
                                        created_at timestamptz, engine text, layout jsonb)"""
_CLAIM: Final = """
    insert into claims (device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position)
    select device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position
      from jsonb_to_recordset($1) as x (device text, instance_id text, epoch int, rank int, memory_mib bigint,
                                        cpu_milli bigint, exclusive boolean, position int)"""
_PROCESSES: Final = """
    insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, message, pid, ready, seq,
                           session, image_digest, reported_at)
    select f.instance_id, f.epoch, f.rank, f.worker_id, f.report ->> 'state', f.report ->> 'reason',
           (f.report ->> 'exit_code')::int, f.report ->> 'message', (f.report ->> 'pid')::int,
           (f.report ->> 'ready')::boolean, (f.report ->> 'seq')::bigint, f.session, f.report ->> 'image_digest',
           clock_timestamp()
      from found_processes f
      join unnest($1::text[], $2::int[], $3::int[]) as x(id, epoch, rank)
        on (f.instance_id, f.epoch, f.rank) = (x.id, x.epoch, x.rank)"""
_DECIDED: Final = """
    delete from found_processes f using unnest($1::text[], $2::int[], $3::int[]) as x(id, epoch, rank)
     where (f.instance_id, f.epoch, f.rank) = (x.id, x.epoch, x.rank)"""
# Steps that were decided on the deployment as it was are stale.
_TOUCH: Final = "update deployments set version = version + 1 where uid = any($1::uuid[])"
# Not processes with claims, which the ledger knows.
_KEEP: Final = """
    insert into found_processes (instance_id, epoch, rank, worker_id, session, receipt, report)
    select x.* from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::bigint[], $6::jsonb[], $7::jsonb[])
                    as x(instance_id, epoch, rank, worker_id, session, receipt, report)
     where not exists (select 1 from claims c where (c.instance_id, c.epoch, c.rank) = (x.instance_id, x.epoch, x.rank))
     order by 1, 2, 3
        on conflict (instance_id, epoch, rank) do update
       set session = excluded.session, receipt = excluded.receipt, report = excluded.report
     where found_processes.worker_id = excluded.worker_id
    returning instance_id, epoch, rank"""
_KEYS_OF_WORKER: Final = "select instance_id, epoch, rank from found_processes where worker_id = $1"
_FORGET_OTHERS: Final = """
    delete from found_processes f
     where f.worker_id = $1 and (f.instance_id, f.epoch, f.rank) not in (
           select * from unnest($2::text[], $3::integer[], $4::integer[]))"""
_UPDATE: Final = """
    update found_processes f set report = r.report
      from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::jsonb[])
           as r(instance_id, epoch, rank, worker_id, report)
     where (f.instance_id, f.epoch, f.rank, f.worker_id) = (r.instance_id, r.epoch, r.rank, r.worker_id)
       and (f.report ->> 'seq')::bigint < (r.report ->> 'seq')::bigint"""
_END: Final = """
    delete from found_processes f
     using unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[]) as r(instance_id, epoch, rank, worker_id)
     where (f.instance_id, f.epoch, f.rank, f.worker_id) = (r.instance_id, r.epoch, r.rank, r.worker_id)"""


@dataclass(frozen=True, slots=True)
class OrphanState:
    """The locked state on which adoption is decided."""

    orphans: tuple[OrphanProcess, ...]
    deployments: Mapping[str, DeploymentSnapshot]  # by uid
    devices: Mapping[str, DeviceRoom]  # by UUID
    owners: Mapping[str, str]  # uids of deployments by instance
    reported: frozenset[str]  # ids of workers whose agents have reported since the loss


async def keep_orphans(
    connection: Connection,
    worker_id: str,
    session: int,
    reports: Iterable[ProcessReport],
    receipts: Mapping[_ProcessKey, Mapping[str, Any]],
) -> None:
    """Keeps those live processes of a hello that have a receipt and are not in the ledger; deletes its other orphans.

    Args:
        connection: the hello's transaction.
        worker_id: the sender.
        session: the hello's session.
        reports: all processes that it names.
        receipts: what the ledger recorded at their starts.
    """
    orphans = [r for r in reports if r.state != "exited" and (r.instance, r.epoch, r.rank) in receipts]
    keys = [(r.instance, r.epoch, r.rank) for r in orphans]
    columns = [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]
    await connection.execute(_FORGET_OTHERS, worker_id, *columns)
    if orphans:
        await connection.fetch(
            _KEEP,
            *columns,
            [worker_id] * len(keys),
            [session] * len(keys),
            [dict(receipts[key]) for key in keys],
            [to_builtins(r) for r in orphans],
        )


async def undecided_receipts(
    connection: Connection, worker_id: str, receipts: Mapping[_ProcessKey, dict[str, Any]]
) -> dict[_ProcessKey, dict[str, Any]]:
    """The receipts of this worker's orphans, which an earlier hello reported and the leader has not decided on."""
    rows = await connection.fetch(_KEYS_OF_WORKER, worker_id)
    return {key: receipts[key] for row in rows if (key := tuple(row)) in receipts}


async def update_orphans(connection: Connection, reports: Sequence[tuple[str, ProcessReport]]) -> None:
    """Stores newer reports (worker id, report) of orphans; deletes those that have ended."""
    alive = [(worker, r) for worker, r in reports if r.state != "exited"]
    ended = [(worker, r) for worker, r in reports if r.state == "exited"]
    if alive:
        await connection.execute(_UPDATE, *_columns(alive), [to_builtins(r) for _, r in alive])
    if ended:
        await connection.execute(_END, *_columns(ended))


def _columns(reports: Collection[tuple[str, ProcessReport]]) -> tuple[list[Any], ...]:
    return (
        [r.instance for _, r in reports],
        [r.epoch for _, r in reports],
        [r.rank for _, r in reports],
        [worker for worker, _ in reports],
    )


async def is_unsettled(connection: Any) -> tuple[bool, bool]:
    """Whether agents have yet to report what runs, and whether there are orphans to decide on."""
    row = await connection.fetchrow(_STATE)
    return row["unsettled"], row["orphans"]


async def settle(connection: Connection) -> None:
    """Records that agents have reported what runs since the ledger lost commits, and wakes what waits for that."""
    await connection.execute(_SETTLE)
    await notify_all(connection, {"command": ["*"], "deployment": ["*"]})


async def lock_orphans(connection: Connection) -> OrphanState:
    """Reads all orphans, and locks and reads the rows that they concern."""
    await connection.execute(_OF_DELETED)
    orphans = await _read_orphans(connection)
    devices = sorted({claim.device for p in orphans for claim in p.receipt.claims})
    uids = {p.receipt.deployment_uid for p in orphans}
    uids |= {row["uid"] for row in await connection.fetch(_OTHERS, devices)}
    await lock_rows(connection, deployments=uids)
    instances = {row["id"] for row in await connection.fetch(_INSTANCES, sorted(uids))}
    await lock_rows(connection, instances=instances)
    # From here on no hello and no report of these workers is written: their orphans do not change.
    await connection.execute(_LOCK_WORKERS, sorted({p.receipt.worker_id for p in orphans}))
    before, orphans = {p.receipt for p in orphans}, await _read_orphans(connection)
    orphans = tuple(p for p in orphans if p.receipt in before)  # others are for the next step
    named = sorted({p.receipt.instance for p in orphans})
    deployments = await observe(connection, sorted(uids))
    held = {c.device for snapshot in deployments.values() for i in snapshot.instances for c in i.claims}
    await lock_rows(connection, devices=held.union(devices))
    return OrphanState(
        orphans,
        deployments,
        _rooms(await connection.fetch(_DEVICES, devices)),
        {row["id"]: row["uid"] for row in await connection.fetch(_OWNERS, named)},
        frozenset(row["id"] for row in await connection.fetch(_REPORTED)),
    )


async def _read_orphans(connection: Connection) -> tuple[OrphanProcess, ...]:
    rows = await connection.fetch(_ORPHANS)
    return tuple(OrphanProcess(receipt_of(r["receipt"]), r["name"], r["ready"], r["report"]) for r in rows)


def _rooms(rows: Sequence[Any]) -> dict[str, DeviceRoom]:
    claims: defaultdict[str, list[HeldClaim]] = defaultdict(list)
    for r in rows:
        if r["instance_id"] is not None:
            claims[r["uuid"]].append(HeldClaim(r["instance_id"], r["held_mib"], r["held_cpu_milli"], r["exclusive"]))
    return {
        r["uuid"]: DeviceRoom(
            r["worker_id"], r["gpu"], r["usable"], r["memory_mib"], r["reserved_mib"], r["cpu_milli"],
            tuple(claims[r["uuid"]]),
        )
        for r in rows
    }  # fmt: skip


async def carry_out_adoption(connection: Connection, plan: AdoptionPlan, state: OrphanState) -> None:
    """Writes the decisions: instances, claims, processes, events. A refused orphan becomes a stray."""
    gone = {id_ for start in plan.adopted for id_ in start.removed}
    gone |= {start.before.id for start in plan.adopted if start.before is not None}
    await connection.execute(_RELEASE, sorted(gone))
    await connection.execute(_REMOVE, sorted(gone))
    await connection.execute(_INSERT, [_instance(start) for start in plan.adopted])
    await connection.execute(_CLAIM, [claim for start in plan.adopted for claim in _claims(start)])
    await connection.execute(_PROCESSES, *_keys(plan.adopted))
    decided: list[Adopted | NotAdopted] = [*plan.adopted, *plan.refused]
    await connection.execute(_DECIDED, *_keys(decided))
    owners = {i.id: snapshot.uid for snapshot in state.deployments.values() for i in snapshot.instances}
    changed = {start.receipt.deployment_uid for start in plan.adopted} | {owners[id_] for id_ in gone}
    await connection.execute(_TOUCH, sorted(changed))
    await write_events(connection, _events(plan, state.deployments))
    workers = {p.receipt.worker_id for start in decided for p in start.ranks}
    await notify_all(connection, {"decided": workers, "process": changed, "status": changed, "worker": workers})


def _keys(starts: Iterable[Adopted | NotAdopted]) -> tuple[list[str], list[int], list[int]]:
    processes = [process for start in starts for process in start.ranks]
    keys = [process.receipt.key for process in processes]
    return [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]


def _instance(start: Adopted) -> dict[str, Any]:
    receipt, layout, before = start.receipt, start.receipt.layout, start.before
    chosen = None
    if layout is not None:
        chosen = {"gpus": layout.gpus, "workers": layout.workers, "tp": layout.tp, "pp": layout.pp, "dp": layout.dp}
    return {
        "id": receipt.instance,
        "uid": receipt.deployment_uid,
        "revision": receipt.revision,
        "phase": start.phase.value,
        "epoch": receipt.epoch,
        "restarts": 0 if before is None else before.restarts,
        "created_at": receipt.created_at.isoformat(),
        "engine": receipt.engine or None,
        "layout": chosen,
    }


def _claims(start: Adopted) -> list[dict[str, Any]]:
    return [
        {
            "device": claim.device,
            "instance_id": start.receipt.instance,
            "epoch": start.receipt.epoch,
            "rank": claim.rank,
            "memory_mib": claim.memory_mib,
            "cpu_milli": claim.cpu_milli,
            "exclusive": claim.exclusive,
            "position": claim.position,
        }
        for process in start.ranks
        for claim in process.receipt.claims
    ]


def _events(plan: AdoptionPlan, deployments: Mapping[str, DeploymentSnapshot]) -> list[NewEvent]:
    events = [_adopted(start) for start in plan.adopted[:NAMED]]
    events += [_refused(start, deployments) for start in plan.refused[:NAMED]]
    for reason, rest in (("adopted", len(plan.adopted) - NAMED), ("not_adopted", len(plan.refused) - NAMED)):
        if rest > 0:
            events.append(NewEvent(reason, f"{rest} more instances", ("controller:adoption",), {"instances": rest}))
    return events


def _objects(start: Adopted | NotAdopted) -> tuple[str, ...]:
    receipt = start.ranks[0].receipt
    workers = (f"worker:{process.receipt.worker_id}" for process in start.ranks)
    return (f"deployment:{receipt.deployment_uid}", f"instance:{receipt.instance}", *workers)


def _adopted(start: Adopted) -> NewEvent:
    receipt, where = start.receipt, ", ".join(process.worker for process in start.ranks)
    message = f"{receipt.instance} runs on {where} and is taken back into the database, which had lost it"
    if start.removed:
        message += f"; {', '.join(start.removed)} did not run and gave way to it"
    return NewEvent("adopted", message, _objects(start), {"epoch": receipt.epoch, "removed": list(start.removed)})


def _refused(start: NotAdopted, deployments: Mapping[str, DeploymentSnapshot]) -> NewEvent:
    receipt, where = start.ranks[0].receipt, ", ".join(process.worker for process in start.ranks)
    message = f"{receipt.instance} runs on {where}, the database had lost it, and it is stopped: {start.why}"
    objects = _objects(start)
    if receipt.deployment_uid not in deployments:
        objects = objects[1:]
    return NewEvent("not_adopted", message, objects, {"epoch": receipt.epoch, "why": start.why})
