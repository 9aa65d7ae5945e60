"""Changes of a worker's devices after its hello: written at once, fenced by the session, recorded as events."""

import asyncio
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from controller.decide.inventory_report import compare_gpus, compare_inventory
from controller.domain.devices import MISSING, DeviceChanges, host_uuid
from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.store.core.database import Connection, Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.deployments import processes
from controller.store.workers import sessions
from controller.store.workers.devices import lock_devices, write_devices
from schemas.wire import DeviceFacts, Inventory

WRITE_LIMIT_S: Final = 20.0
_READINGS: Final = frozenset({"used_mib", "utilization"})
# Runs for each GPU of each heartbeat. To compare copies without the readings took an eighth of the controller's time.
_standing_of: Final = attrgetter(*(field for field in DeviceFacts.model_fields if field not in _READINGS))


def facts_differ(known: tuple[DeviceFacts, ...] | None, reported: tuple[DeviceFacts, ...] | None) -> bool:
    """Whether the reported GPUs differ from those last written, apart from readings."""
    return _standing(known) != _standing(reported)


def _standing(gpus: tuple[DeviceFacts, ...] | None) -> frozenset[tuple[object, ...]] | None:
    return None if gpus is None else frozenset(map(_standing_of, gpus))


async def write_device_change(
    database: Database, session: Session, report: Inventory | tuple[DeviceFacts, ...] | None
) -> bool:
    """Writes a changed inventory, or changed GPUs (None: they can no longer be read).

    Returns:
        False if the session is no longer the newest; then nothing is written.
    """
    worker = session.worker_id
    async with asyncio.timeout(WRITE_LIMIT_S), database.transaction() as connection:
        if not await processes.lock_sessions(connection, [(worker, session.number)]):
            return False
        if isinstance(report, Inventory):
            plan = await write_inventory(connection, worker, report)
            await sessions.write_host(connection, worker, report, gpus_known=plan.gpus_known)
        else:
            plan = await write_gpus(connection, worker, report)
            await sessions.write_gpus_known(connection, worker, gpus_known=plan.gpus_known)
        events = inventory_events(worker, session.name, plan, known_elsewhere=session.held_elsewhere)
        await write_events(connection, events)
        await notify(connection, "worker", [worker])
    session.gpus = report.gpus if isinstance(report, Inventory) else report
    session.held_elsewhere = frozenset(device.row.uuid for device in plan.refused)
    return True


async def write_inventory(connection: Connection, worker_id: str, inventory: Inventory) -> DeviceChanges:
    """Brings a worker's device rows in line with its inventory; returns what changed."""
    known = await lock_devices(connection, worker_id, (host_uuid(worker_id), *(g.uuid for g in inventory.gpus or ())))
    plan = compare_inventory(worker_id, inventory, known)
    await write_devices(connection, worker_id, plan.rows, known)
    return plan


async def write_gpus(connection: Connection, worker_id: str, gpus: Sequence[DeviceFacts] | None) -> DeviceChanges:
    """Brings a worker's GPU rows in line with a heartbeat (None: unreadable); returns what changed."""
    known = await lock_devices(connection, worker_id, [g.uuid for g in gpus or ()])
    plan = compare_gpus(worker_id, gpus, {device.row.uuid: device for device in known})
    await write_devices(connection, worker_id, plan.rows, known)
    return plan


def inventory_events(
    worker_id: str, name: str, plan: DeviceChanges, known_elsewhere: frozenset[str] = frozenset()
) -> Iterable[NewEvent]:
    """The events of an inventory. `known_elsewhere`: GPUs already reported as belonging to another worker."""
    for uuid in plan.missing:
        yield NewEvent("gpu_missing", f"{uuid} is no longer reported by {name}", (f"gpu:{uuid}", f"worker:{worker_id}"))
    for device in plan.refused:
        uuid = device.row.uuid
        if uuid in known_elsewhere:
            continue
        yield NewEvent(
            "gpu_held_elsewhere",
            f"{name} reports {uuid}, which belongs to another worker; it is not used here until that worker is deleted "
            "or no longer has it",
            (f"gpu:{uuid}", f"worker:{worker_id}", f"worker:{device.worker_id}"),
        )
    for row in plan.rows:
        if row.kind == "gpu" and row.health == "unhealthy" and row.health_reason != MISSING:
            message = f"{row.uuid} on {name} is unhealthy: {row.health_reason or 'no reason given'}"
            evidence = {"memory_mib": row.memory_mib, "reported_mib": row.reported_mib}
            yield NewEvent("gpu_unhealthy", message, (f"gpu:{row.uuid}", f"worker:{worker_id}"), evidence)
