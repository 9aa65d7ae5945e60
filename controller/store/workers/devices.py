"""Devices as agents report them: the hub's columns. Triggers on claims maintain the counters next to them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NamedTuple

from controller.domain.devices import MEMORY_SHRUNK, UNSTEADY, DeviceRow, KnownDevice
from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Database, row_mapper
from controller.store.core.events import notify, write_events
from controller.store.core.refusals import NotFoundError
from controller.store.views.gpus import gpu_by_uuid
from schemas.api.gpus import GpuView

# In uuid order, as the claims' guard locks them.
_KNOWN: Final = """
    select d.*, clock_timestamp() as read_at, w.phase = 'ready' and w.deleted_at is null and d.present as owner_holds_it
      from devices d join workers w on w.id = d.worker_id
     where d.worker_id = $1 or d.uuid = any($2)
     order by d.uuid for no key update of d"""
_ROWS: Final = """
    unnest($2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
           $10::text[], $11::text[], $12::boolean[], $13::boolean[], $14::text[], $15::bigint[],
           $16::text[], $17::integer[], $18::boolean[], $19::timestamptz[], $20::integer[])
      as r(uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli, health, health_reason,
           mig_mode, present, vendor, reserved_mib, parent, losses, lost, unsteady_until,
           dismissals)"""
_UPDATE: Final = f"""
    update devices d
       set worker_id = $1, index = r.index, model = r.model, compute_capability = r.compute_capability,
           memory_mib = r.memory_mib, reported_mib = r.reported_mib, cpu_milli = r.cpu_milli, health = r.health,
           health_reason = r.health_reason, mig_mode = r.mig_mode, present = r.present, vendor = r.vendor,
           reserved_mib = r.reserved_mib, parent = r.parent, losses = r.losses, lost = r.lost,
           unsteady_until = r.unsteady_until, dismissals = r.dismissals
      from {_ROWS} where d.uuid = r.uuid"""  # noqa: S608 - put together from constants
# Of two workers that report the same new GPU at once, the first gets it; the other is refused at its next report.
# A new slice of a cordoned GPU is cordoned too.
_INSERT: Final = f"""
    insert into devices (worker_id, uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli,
                         health, health_reason, mig_mode, present, vendor, reserved_mib, parent, losses, lost,
                         unsteady_until, dismissals, cordoned)
    select $1, r.*, coalesce((select p.cordoned from devices p where p.uuid = r.parent), false)
      from {_ROWS} order by r.uuid
        on conflict (uuid) do nothing"""  # noqa: S608 - put together from constants
# Time alone ends these verdicts. An unsteady GPU keeps its claims, and its size while it has claims.
_OVER: Final = """(
    (claims = 0 and health_reason = $1 or starts_with(health_reason, $2))
    and (unsteady_until is null or unsteady_until <= clock_timestamp() or dismissals <> dismissed))"""
_DUE: Final = f"(present and (claims = 0 and reported_mib <> memory_mib or {_OVER}))"
# Workers before devices, as everywhere. Rows that another transaction holds wait for the next round.
_LOCK_DUE_WORKERS: Final = f"""
    select id::text as id from workers where id in (select worker_id from devices where {_DUE})
     order by id limit $3 for no key update skip locked"""  # noqa: S608 - put together from constants
_SETTLE: Final = f"""
    update devices d
       set memory_mib = case when d.claims = 0 then d.reported_mib else d.memory_mib end,
           health = case when o.over then 'ok' else d.health end,
           health_reason = case when o.over then '' else d.health_reason end
      from (select uuid, health_reason as was, {_OVER} as over from devices
             where worker_id = any($3::uuid[]) and {_DUE}
             order by uuid for no key update) o
     where d.uuid = o.uuid
    returning d.worker_id::text as worker_id, (select w.name from workers w where w.id = d.worker_id) as worker, d.uuid,
              case when o.over and d.kind = 'gpu' then o.was end as was"""  # noqa: S608 - put together from constants
_device_row = row_mapper(DeviceRow)
_SICK: Final = """
    select uuid, health_reason from devices
     where worker_id = $1 and kind = 'gpu' and health = 'unhealthy'
       and (present or not starts_with(uuid, 'GPU-unreadable-'))
     order by index, uuid"""
_HOLDERS: Final = """
    select distinct c.device, c.instance_id, i.deployment_uid::text as deployment
      from claims c join instances i on i.id = c.instance_id join devices d on d.uuid = c.device
     where d.kind = 'gpu' and d.worker_id = $1 and ($2::text[] is null or d.uuid = any($2))
     order by c.device, c.instance_id"""
_WRITE_DETAILS: Final = """
    insert into device_details (device, details, read_at)
    select d.uuid, r.details::jsonb, clock_timestamp()
      from unnest($1::uuid[], $2::text[], $3::text[]) as r(worker_id, device, details)
      join devices d on d.uuid = r.device and d.worker_id = r.worker_id
     order by d.uuid
        on conflict (device) do update set details = excluded.details, read_at = excluded.read_at"""
GpuVerb = Literal["cordon", "uncordon"]
# A GPU in MIG mode represents its slices. Locked in the order of the claims' triggers.
_LOCK_GPU: Final = """
    select d.uuid, d.worker_id, d.cordoned, d.health_reason, w.name as worker,
           d.unsteady_until > clock_timestamp() and d.dismissals = d.dismissed as held_back
      from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and (w.deleted_at is null or d.claims > 0)
       and (d.uuid = $1 or d.parent = $1 and d.worker_id = (select p.worker_id from devices p where p.uuid = $1))
     order by d.uuid for no key update of d"""
_XID: Final = "xid_"


class Settled(NamedTuple):
    """A device that changed without a report."""

    worker_id: str
    worker: str
    uuid: str
    was: str | None  # the reason of a GPU that was unhealthy until now


async def lock_due_workers(connection: Connection, limit: int) -> list[str]:
    """Locks at most `limit` workers with devices that `settle_devices` would change; returns their ids."""
    return [row["id"] for row in await connection.fetch(_LOCK_DUE_WORKERS, MEMORY_SHRUNK, f"{UNSTEADY}:", limit)]


async def settle_devices(connection: Connection, workers: Collection[str]) -> list[Settled]:
    """Applies changes by time alone to the devices of these locked workers.

    Devices whose memory changed under claims get the reported size once those claims are released. GPUs that were lost
    repeatedly become healthy once they have stayed long enough or an operator dismisses the losses.
    """
    rows = await connection.fetch(_SETTLE, MEMORY_SHRUNK, f"{UNSTEADY}:", list(workers))
    return [Settled(**row) for row in rows]


async def lock_devices(connection: Connection, worker_id: str, uuids: Iterable[str]) -> list[KnownDevice]:
    """Locks and reads the worker's devices, and other workers' devices with one of the `uuids`."""
    return [
        KnownDevice(
            row=_device_row(row),
            worker_id=str(row["worker_id"]),
            owner_holds_it=row["owner_holds_it"],
            claims=row["claims"],
            exclusive_claims=row["exclusive_claims"],
            claimed_cpu_milli=row["claimed_cpu_milli"],
            dismissed=row["dismissed"],
            read_at=row["read_at"],
        )
        for row in await connection.fetch(_KNOWN, worker_id, list(uuids))
    ]


async def write_devices(
    connection: Connection, worker_id: str, rows: Sequence[DeviceRow], known: Iterable[KnownDevice]
) -> None:
    """Writes changed rows as the worker's own; `known`: the result of `lock_devices`."""
    known_uuids = {device.row.uuid for device in known}
    for statement, some in (
        (_UPDATE, [row for row in rows if row.uuid in known_uuids]),
        (_INSERT, [row for row in rows if row.uuid not in known_uuids]),
    ):
        if some:
            await connection.execute(statement, worker_id, *_columns(some))


def _columns(rows: Sequence[DeviceRow]) -> tuple[list[Any], ...]:
    # `_ROWS` has its columns in the order of the fields.
    return tuple([getattr(row, field.name) for row in rows] for field in fields(DeviceRow))


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """The holders of GPUs."""

    instances: dict[str, list[str]]  # by the GPU's UUID
    deployments: frozenset[str]

    def all(self) -> list[str]:
        return sorted({instance for held in self.instances.values() for instance in held})


async def sick_gpus(connection: Connection, worker_id: str) -> list[tuple[str, str]]:
    """The worker's unhealthy GPUs with their reasons."""
    return [(row["uuid"], row["health_reason"]) for row in await connection.fetch(_SICK, worker_id)]


async def gpu_holders(connection: Connection, worker_id: str, uuids: Iterable[str] | None = None) -> GpuHolders:
    """The holders of these GPUs of a worker. `uuids` None: all its GPUs."""
    rows = await connection.fetch(_HOLDERS, worker_id, None if uuids is None else list(uuids))
    held: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        held[row["device"]].append(row["instance_id"])
    return GpuHolders(dict(held), frozenset(row["deployment"] for row in rows))


@dataclass(frozen=True, slots=True)
class DetailsRow:
    """One GPU's details as JSON, and the worker that reported them."""

    worker_id: str
    device: str
    details: str


async def write_details(connection: Connection, rows: Sequence[DetailsRow]) -> None:
    """Writes details; each GPU at most once for a worker. Details of another worker's GPU are left out."""
    if rows:
        columns = [r.worker_id for r in rows], [r.device for r in rows], [r.details for r in rows]
        await connection.execute(_WRITE_DETAILS, *columns)


async def set_gpu_cordon(database: Database, uuid: str, verb: GpuVerb) -> GpuView:
    """Cordons a GPU and its slices (nothing new is placed there, running instances stay), or uncordons them.

    Uncordoning also dismisses a grave Xid, which the agent then forgets, and losses: an unsteady GPU is healthy within
    seconds.

    Raises:
        NotFoundError: no worker has this GPU.
    """
    cordoned = verb == "cordon"
    async with database.transaction() as connection:
        rows = await connection.fetch(_LOCK_GPU, uuid)
        if uuid not in {row["uuid"] for row in rows}:
            raise NotFoundError(f"no GPU has the UUID {uuid!r}; `gpuward get gpus` lists them")
        changed = [row for row in rows if row["cordoned"] != cordoned or (not cordoned and _is_doubted(row))]
        if changed:
            await connection.execute(
                "update devices set cordoned = $2, dismissed = dismissed + $3 where uuid = any($1)",
                [row["uuid"] for row in changed],
                cordoned,
                0 if cordoned else 1,
            )
            await _record(connection, changed, f"gpu_{verb}ed")
        return await gpu_by_uuid(connection, uuid)


async def read_dismissed(connection: Connection, workers: Collection[str]) -> dict[str, dict[str, int]]:
    """Returns by worker and GPU how often an operator has dismissed the driver's reports."""
    rows = await connection.fetch(
        "select worker_id::text as worker, uuid, dismissed from devices"
        " where worker_id = any($1::uuid[]) and kind = 'gpu' and dismissed > 0 order by uuid",
        list(workers),
    )
    dismissed: dict[str, dict[str, int]] = {}
    for row in rows:
        dismissed.setdefault(row["worker"], {})[row["uuid"]] = row["dismissed"]
    return dismissed


def _is_doubted(row: Any) -> bool:
    """Whether there is an Xid, or losses, that an operator may dismiss."""
    return bool(row["health_reason"].startswith(_XID) or row["held_back"])


async def _record(connection: Connection, rows: Collection[Any], reason: str) -> None:
    """Writes an event for each GPU; notifies of the worker and of the deployments that hold claims there."""
    (worker_id,) = {str(row["worker_id"]) for row in rows}
    holders = await gpu_holders(connection, worker_id, [row["uuid"] for row in rows])
    events = []
    for row in rows:
        held = tuple(f"instance:{instance}" for instance in holders.instances.get(row["uuid"], ()))
        message = f"{row['uuid']} on {row['worker']} was {reason.removeprefix('gpu_')} by an operator"
        evidence = {"dismissed": row["health_reason"]} if reason == "gpu_uncordoned" and _is_doubted(row) else {}
        events.append(NewEvent(reason, message, (f"gpu:{row['uuid']}", f"worker:{worker_id}", *held), evidence))
    await write_events(connection, events)
    await notify(connection, "worker", [worker_id])
    await notify(connection, "deployment", holders.deployments)
