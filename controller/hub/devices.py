"""Changes of a worker's devices after its hello: written at once, fenced by the session, recorded as events."""

import asyncio
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from controller.decide.inventory_report import compare_gpus, compare_inventory
from controller.domain.devices import DeviceChanges, host_uuid
from controller.hub.conditions import record_gpus, record_runtimes
from controller.hub.session import Session
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify
from controller.store.deployments import processes
from controller.store.workers import sessions
from controller.store.workers.devices import lock_devices, write_devices
from schemas.wire import Inventory, ReportedGpu
from schemas.worker_labels import TRUSTED_LABELS

WRITE_LIMIT_S: Final = 20.0
_READINGS: Final = frozenset({"used_mib", "utilization", "details"})
# An attrgetter, since it runs for each GPU of each heartbeat: comparing copies took an eighth of the controller's time.
_properties_of: Final = attrgetter(*(field for field in ReportedGpu.__struct_fields__ if field not in _READINGS))


def properties_differ(known: tuple[ReportedGpu, ...] | None, reported: tuple[ReportedGpu, ...] | None) -> bool:
    """Whether the reported GPUs differ from the last written ones, apart from readings."""
    return _properties(known) != _properties(reported)


def _properties(gpus: tuple[ReportedGpu, ...] | None) -> frozenset[tuple[object, ...]] | None:
    return None if gpus is None else frozenset(map(_properties_of, gpus))


async def write_device_change(
    database: Database,
    session: Session,
    report: Inventory | tuple[ReportedGpu, ...] | None,
    error: str = "",
    *,
    trusted: Sequence[str] = TRUSTED_LABELS,
) -> bool:
    """Writes a changed inventory, or changed GPUs (None: they are unreadable because of `error`).

    Returns:
        False if the session is no longer the newest; then nothing is written.
    """
    worker = session.worker_id
    async with asyncio.timeout(WRITE_LIMIT_S), database.transaction() as connection:
        if not await processes.lock_sessions(connection, [(worker, session.number)]):
            return False
        if isinstance(report, Inventory):
            plan = await write_inventory(connection, worker, report)
            await sessions.write_host(connection, worker, report, gpus_known=plan.gpus_known, trusted=trusted)
            await record_runtimes(connection, worker, report)
        else:
            plan = await write_gpus(connection, worker, report, error)
            await sessions.write_gpus_known(connection, worker, gpus_known=plan.gpus_known)
        await record_gpus(connection, worker, session.name, plan, error, session.held_elsewhere)
        await notify(connection, "worker", [worker])
    session.gpus = report.gpus if isinstance(report, Inventory) else report
    session.gpus_error = error
    session.held_elsewhere = frozenset(device.row.uuid for device in plan.refused)
    return True


async def write_inventory(connection: Connection, worker_id: str, inventory: Inventory) -> DeviceChanges:
    """Brings a worker's device rows in line with its inventory."""
    known = await lock_devices(connection, worker_id, (host_uuid(worker_id), *(g.uuid for g in inventory.gpus or ())))
    plan = compare_inventory(worker_id, inventory, known)
    await write_devices(connection, worker_id, plan.rows, known)
    return plan


async def write_gpus(
    connection: Connection, worker_id: str, gpus: Sequence[ReportedGpu] | None, error: str = ""
) -> DeviceChanges:
    """Brings a worker's GPU rows in line with a heartbeat (None: unreadable because of `error`)."""
    known = await lock_devices(connection, worker_id, [g.uuid for g in gpus or ()])
    plan = compare_gpus(worker_id, gpus, {device.row.uuid: device for device in known}, error)
    await write_devices(connection, worker_id, plan.rows, known)
    return plan
