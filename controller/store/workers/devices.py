"""Devices as agents report them: the hub's columns. The triggers on claims maintain the counters beside them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from controller.domain.devices import MEMORY_SHRUNK, UNSTEADY, DeviceRow, KnownDevice
from controller.store.core.database import Connection
from controller.store.core.rows import row_mapper

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
# Time alone ends these verdicts. An unsteady GPU keeps its claims, and while it has any its size.
_OVER: Final = """(
    (claims = 0 and health_reason = $1 or starts_with(health_reason, $2))
    and (unsteady_until is null or unsteady_until <= clock_timestamp() or dismissals <> dismissed))"""
_DUE: Final = f"(present and (claims = 0 and reported_mib <> memory_mib or {_OVER}))"
# Workers before devices, as everywhere. What another transaction holds is for the next round.
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


class Settled(NamedTuple):
    """A device that changed without a report. `was`: why this GPU was unhealthy and is not any more, if that is so."""

    worker_id: str
    worker: str
    uuid: str
    was: str | None


async def lock_due_workers(connection: Connection, limit: int) -> list[str]:
    """Locks the workers with devices that `settle_devices` would change, so many at most; returns their ids."""
    return [row["id"] for row in await connection.fetch(_LOCK_DUE_WORKERS, MEMORY_SHRUNK, f"{UNSTEADY}:", limit)]


async def settle_devices(connection: Connection, workers: Collection[str]) -> list[Settled]:
    """Sets what time alone changes of these workers' devices, which are locked.

    The reported size of devices whose memory changed under claims, once those claims are released; the health of GPUs
    that were lost again and again, once they have stayed long enough or an operator says that they are well.
    """
    rows = await connection.fetch(_SETTLE, MEMORY_SHRUNK, f"{UNSTEADY}:", list(workers))
    return [Settled(**row) for row in rows]


async def lock_devices(connection: Connection, worker_id: str, uuids: Iterable[str]) -> list[KnownDevice]:
    """Locks and reads the worker's devices, and those of other workers that have one of the `uuids`."""
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
    """Writes changed rows as the worker's own; `known` are the devices that `lock_devices` returned."""
    known_uuids = {device.row.uuid for device in known}
    for statement, some in (
        (_UPDATE, [row for row in rows if row.uuid in known_uuids]),
        (_INSERT, [row for row in rows if row.uuid not in known_uuids]),
    ):
        if some:
            await connection.execute(statement, worker_id, *_columns(some))


def _columns(rows: Sequence[DeviceRow]) -> tuple[list[Any], ...]:
    """The values of `_ROWS`, whose columns are in the order of the fields."""
    return tuple([getattr(row, field.name) for row in rows] for field in fields(DeviceRow))
