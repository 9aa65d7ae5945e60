"""Devices as agents report them: the hub's columns. The triggers on claims maintain the counters beside them."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Final

from controller.domain.devices import MEMORY_SHRUNK, DeviceRow, KnownDevice
from controller.store.core.database import Connection
from controller.store.core.rows import row_mapper

# In uuid order, as the claims' guard locks them.
_KNOWN: Final = """
    select d.*, w.phase = 'ready' and w.deleted_at is null and d.present as owner_holds_it
      from devices d join workers w on w.id = d.worker_id
     where d.worker_id = $1 or d.uuid = any($2)
     order by d.uuid for no key update of d"""
_ROWS: Final = """
    unnest($2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
           $10::text[], $11::text[], $12::boolean[], $13::boolean[], $14::text[], $15::bigint[],
           $16::text[])
      as r(uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli, health, health_reason,
           mig_mode, present, vendor, reserved_mib, parent)"""
_UPDATE: Final = f"""
    update devices d
       set worker_id = $1, index = r.index, model = r.model, compute_capability = r.compute_capability,
           memory_mib = r.memory_mib, reported_mib = r.reported_mib, cpu_milli = r.cpu_milli, health = r.health,
           health_reason = r.health_reason, mig_mode = r.mig_mode, present = r.present, vendor = r.vendor,
           reserved_mib = r.reserved_mib, parent = r.parent
      from {_ROWS} where d.uuid = r.uuid"""  # noqa: S608 - put together from constants
# Of two workers that report the same new GPU at once, the first gets it; the other is refused at its next report.
# A new slice of a cordoned GPU is cordoned too.
_INSERT: Final = f"""
    insert into devices (worker_id, uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli,
                         health, health_reason, mig_mode, present, vendor, reserved_mib, parent, cordoned)
    select $1, r.*, coalesce((select p.cordoned from devices p where p.uuid = r.parent), false)
      from {_ROWS} order by r.uuid
        on conflict (uuid) do nothing"""  # noqa: S608 - put together from constants
_SETTLE: Final = """
    update devices
       set memory_mib = reported_mib,
           health = case when health_reason = $1 then 'ok' else health end,
           health_reason = case when health_reason = $1 then '' else health_reason end
     where uuid in (select uuid from devices
                     where claims = 0 and present and (reported_mib <> memory_mib or health_reason = $1)
                     order by uuid for no key update)
    returning worker_id"""

_device_row = row_mapper(DeviceRow)


async def settle_devices(connection: Connection) -> set[str]:
    """Sets the reported size of devices whose memory changed under claims, once those claims are released.

    Returns:
        The workers of those devices.
    """
    return {str(row["worker_id"]) for row in await connection.fetch(_SETTLE, MEMORY_SHRUNK)}


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
