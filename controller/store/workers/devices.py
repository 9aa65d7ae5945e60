"""Devices as agents report them: the hub's columns. The claims' counters beside them belong to the database's guard."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from asyncpg.pool import PoolConnectionProxy

from controller.decide.inventory_report import (
    MEMORY_SHRUNK,
    DevicePlan,
    DeviceRow,
    KnownDevice,
    host_uuid,
    plan_gpus,
    plan_inventory,
)
from schemas.wire import DeviceFacts, Inventory

Connection: TypeAlias = "PoolConnectionProxy[Any]"

# In uuid order, as the claims' guard locks them.
_KNOWN: Final = """
    select d.*, w.phase = 'ready' and w.deleted_at is null and d.present as owner_holds_it
      from devices d join workers w on w.id = d.worker_id
     where d.worker_id = $1 or d.uuid = any($2)
     order by d.uuid for no key update of d"""
_ROWS: Final = """
    unnest($2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
           $10::text[], $11::text[], $12::boolean[], $13::boolean[], $14::text[], $15::bigint[])
      as r(uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli, health, health_reason,
           mig_mode, present, vendor, reserved_mib)"""
_UPDATE: Final = f"""
    update devices d
       set worker_id = $1, index = r.index, model = r.model, compute_capability = r.compute_capability,
           memory_mib = r.memory_mib, reported_mib = r.reported_mib, cpu_milli = r.cpu_milli, health = r.health,
           health_reason = r.health_reason, mig_mode = r.mig_mode, present = r.present, vendor = r.vendor,
           reserved_mib = r.reserved_mib
      from {_ROWS} where d.uuid = r.uuid"""  # noqa: S608 - put together from constants
# Two workers that report the same new GPU at once: the first keeps it, the other is refused at its next report.
_INSERT: Final = f"""
    insert into devices (worker_id, uuid, kind, index, model, compute_capability, memory_mib, reported_mib, cpu_milli,
                         health, health_reason, mig_mode, present, vendor, reserved_mib)
    select $1, r.* from {_ROWS} order by r.uuid
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


async def write_inventory(connection: Connection, worker_id: str, inventory: Inventory) -> DevicePlan:
    """Brings a worker's device rows in line with its inventory; returns what was done."""
    known = await _known(connection, worker_id, (host_uuid(worker_id), *(g.uuid for g in inventory.gpus or ())))
    plan = plan_inventory(worker_id, inventory, known)
    await _write(connection, worker_id, plan.rows, {device.row.uuid for device in known})
    return plan


async def write_gpus(connection: Connection, worker_id: str, gpus: Sequence[DeviceFacts] | None) -> DevicePlan:
    """Brings a worker's GPU rows in line with a heartbeat (None: unreadable); returns what was done."""
    known = await _known(connection, worker_id, [g.uuid for g in gpus or ()])
    plan = plan_gpus(worker_id, gpus, {device.row.uuid: device for device in known})
    await _write(connection, worker_id, plan.rows, {device.row.uuid for device in known})
    return plan


async def settle_devices(connection: Connection) -> set[str]:
    """Gives devices whose memory changed under claims their reported size, once those claims are gone.

    Returns:
        The workers concerned.
    """
    return {str(row["worker_id"]) for row in await connection.fetch(_SETTLE, MEMORY_SHRUNK)}


async def _known(connection: Connection, worker_id: str, uuids: Iterable[str]) -> list[KnownDevice]:
    return [
        KnownDevice(
            row=DeviceRow(
                uuid=row["uuid"],
                kind=row["kind"],
                index=row["index"],
                model=row["model"],
                compute_capability=row["compute_capability"],
                memory_mib=row["memory_mib"],
                reported_mib=row["reported_mib"],
                cpu_milli=row["cpu_milli"],
                health=row["health"],
                health_reason=row["health_reason"],
                mig_mode=row["mig_mode"],
                present=row["present"],
                vendor=row["vendor"],
                reserved_mib=row["reserved_mib"],
            ),
            worker_id=str(row["worker_id"]),
            owner_holds_it=row["owner_holds_it"],
            claims=row["claims"],
            exclusive_claims=row["exclusive_claims"],
            claimed_cpu_milli=row["claimed_cpu_milli"],
        )
        for row in await connection.fetch(_KNOWN, worker_id, list(uuids))
    ]


async def _write(connection: Connection, worker_id: str, rows: Sequence[DeviceRow], known: set[str]) -> None:
    for statement, some in (
        (_UPDATE, [row for row in rows if row.uuid in known]),
        (_INSERT, [row for row in rows if row.uuid not in known]),
    ):
        if some:
            await connection.execute(statement, worker_id, *_columns(some))


def _columns(rows: Sequence[DeviceRow]) -> tuple[list[Any], ...]:
    return (
        [r.uuid for r in rows],
        [r.kind for r in rows],
        [r.index for r in rows],
        [r.model for r in rows],
        [r.compute_capability for r in rows],
        [r.memory_mib for r in rows],
        [r.reported_mib for r in rows],
        [r.cpu_milli for r in rows],
        [r.health for r in rows],
        [r.health_reason for r in rows],
        [r.mig_mode for r in rows],
        [r.present for r in rows],
        [r.vendor for r in rows],
        [r.reserved_mib for r in rows],
    )
