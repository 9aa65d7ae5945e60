"""What becomes known of a worker's GPUs: events for the worker, its GPUs and the instances on them, and conditions."""

from collections.abc import Iterable
from typing import Final

from controller.domain.devices import MISSING, UNREADABLE, DeviceChanges, never_read, reason_code
from controller.domain.events import NewEvent
from controller.store.core.database import Connection
from controller.store.core.events import notify, write_events
from controller.store.workers.conditions import clear_conditions, set_condition
from controller.store.workers.devices import GpuHolders, gpu_holders, sick_gpus
from schemas.worker_conditions import GPUS_HEALTHY

READABLE: Final = "GpusReadable"
OWN: Final = "GpusOwn"
_LISTED: Final = 8
_UNHELD: Final = GpuHolders({}, frozenset())


async def record_gpus(
    connection: Connection,
    worker_id: str,
    name: str,
    plan: DeviceChanges,
    error: str,
    known_elsewhere: frozenset[str] = frozenset(),
) -> None:
    """Writes events and conditions after a report, and wakes the deployments that hold changed GPUs.

    Args:
        connection: in the transaction that wrote the devices.
        worker_id: the worker.
        name: its name.
        plan: what the report changed.
        error: why the GPUs cannot be read, a code and a text; empty if they can, or from an agent that does not say.
        known_elsewhere: GPUs already reported as belonging to another worker.
    """
    changed = [row.uuid for row in plan.rows if row.kind == "gpu"]
    holders = await gpu_holders(connection, worker_id, changed) if changed else _UNHELD
    events = list(inventory_events(worker_id, name, plan, holders, known_elsewhere=known_elsewhere))
    if plan.gpus_known:
        events += await _known(connection, worker_id, name, plan)
    else:
        events += await _unknown(connection, worker_id, name, error)
    await write_events(connection, events)
    await notify(connection, "process", holders.deployments)


async def _unknown(connection: Connection, worker_id: str, name: str, error: str) -> list[NewEvent]:
    """Nothing can be read: other conditions stay as they are. The event comes once for each reason."""
    code, _, text = error.partition(":")
    message = text.strip() or "the agent cannot read its GPUs"
    if not await set_condition(connection, worker_id, READABLE, code or UNREADABLE, message):
        return []
    told = f"the GPUs of {name} cannot be read, so nothing is placed or stopped there: {message}"
    return [await _of_all(connection, worker_id, "gpus_unreadable", told, code or UNREADABLE)]


async def _known(connection: Connection, worker_id: str, name: str, plan: DeviceChanges) -> list[NewEvent]:
    """What is wrong with single GPUs, and the event of readings that go on."""
    well = bool(plan.rows) and not await tell_sick(connection, worker_id)
    if plan.refused:
        message = "in use by another worker: " + _listed(device.row.uuid for device in plan.refused)
        await set_condition(connection, worker_id, OWN, "gpu_held_elsewhere", message)
    over = [READABLE, *([] if plan.refused else [OWN]), *([GPUS_HEALTHY] if well else [])]
    if READABLE not in await clear_conditions(connection, worker_id, over):
        return []
    return [await _of_all(connection, worker_id, "gpus_readable", f"the GPUs of {name} can be read again", "")]


async def tell_sick(connection: Connection, worker_id: str) -> bool:
    """Names the worker's unhealthy GPUs in its condition; returns whether there are any."""
    sick = await sick_gpus(connection, worker_id)
    if sick:
        message = _listed(f"{uuid} ({why or 'no reason given'})" for uuid, why in sick)
        await set_condition(connection, worker_id, GPUS_HEALTHY, reason_code(sick[0][1]) or "gpu_unhealthy", message)
    return bool(sick)


async def _of_all(connection: Connection, worker_id: str, reason: str, message: str, code: str) -> NewEvent:
    """An event of the worker and of every instance that holds one of its GPUs."""
    instances = (await gpu_holders(connection, worker_id)).all()
    return NewEvent(reason, message, (f"worker:{worker_id}", *(f"instance:{i}" for i in instances)), {"reason": code})


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(found[:_LISTED]) + more


def inventory_events(
    worker_id: str,
    name: str,
    plan: DeviceChanges,
    holders: GpuHolders = _UNHELD,
    known_elsewhere: frozenset[str] = frozenset(),
) -> Iterable[NewEvent]:
    """The events of an inventory. `known_elsewhere`: GPUs already reported as belonging to another worker."""

    def objects(uuid: str) -> tuple[str, ...]:
        held = tuple(f"instance:{instance}" for instance in holders.instances.get(uuid, ()))
        return (f"gpu:{uuid}", f"worker:{worker_id}", *held)

    for uuid in plan.missing:
        if not never_read(uuid):
            yield NewEvent("gpu_missing", f"{uuid} is no longer reported by {name}", objects(uuid))
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
            yield NewEvent("gpu_unhealthy", message, objects(row.uuid), evidence)
    for uuid, was in plan.recovered:
        yield recovered(uuid, name, was, objects(uuid))


def recovered(uuid: str, worker: str, was: str, objects: tuple[str, ...]) -> NewEvent:
    """The event of a GPU that was unhealthy, for the reason `was`, and is well."""
    message = f"{uuid} on {worker} is well again; it was unhealthy: {was or 'no reason given'}"
    return NewEvent("gpu_recovered", message, objects, {"was": reason_code(was)})
