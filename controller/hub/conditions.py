"""Conditions and events of a worker's host and GPUs: disk, containers, unreadable or unhealthy GPUs."""

import asyncio
from collections.abc import Iterable
from typing import Final

from controller.decide.disk_pressure import disk_is_full
from controller.domain.devices import MISSING, UNREADABLE, DeviceChanges, never_read, reason_code
from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.deployments import processes
from controller.store.workers.conditions import clear_condition, clear_conditions, set_condition
from controller.store.workers.devices import GpuHolders, gpu_holders, sick_gpus
from schemas.placement_reasons import Reason
from schemas.printing import first_of
from schemas.process_figures import ProcessFigures
from schemas.wire import RUNTIME_DOCKER, Inventory
from schemas.worker_conditions import CONTAINERS, DISK_PRESSURE, GPUS_HEALTHY

READABLE: Final = "GpusReadable"
OWN: Final = "GpusOwn"
_LISTED: Final = 8
_UNHELD: Final = GpuHolders({}, frozenset())
_WRITE_LIMIT_S: Final = 20.0
_MIB: Final = 2**20


async def record_gpus(
    connection: Connection,
    worker_id: str,
    name: str,
    plan: DeviceChanges,
    error: str,
    known_elsewhere: frozenset[str] = frozenset(),
) -> None:
    """Writes events and conditions after a report of GPUs, and wakes the deployments that hold changed GPUs.

    Args:
        connection: in the transaction that wrote the devices.
        worker_id: of the worker.
        name: of the worker.
        plan: the changes by the report.
        error: the reason why GPUs are unreadable, a code and a text; empty if they are readable, or from old agents.
        known_elsewhere: GPUs already reported as belonging to another worker.
    """
    changed = [row.uuid for row in plan.rows if row.kind == "gpu"]
    holders = await gpu_holders(connection, worker_id, changed) if changed else _UNHELD
    events = list(inventory_events(worker_id, name, plan, holders, known_elsewhere=known_elsewhere))
    if plan.gpus_known:
        events += await _record_readable(connection, worker_id, name, plan)
    else:
        events += await _record_unreadable(connection, worker_id, name, error)
    await write_events(connection, events)
    await notify(connection, "process", holders.deployments)


async def _record_unreadable(connection: Connection, worker_id: str, name: str, error: str) -> list[NewEvent]:
    """Other conditions stay unchanged. The event is written once for each reason."""
    code, _, text = error.partition(":")
    message = text.strip() or "the agent cannot read its GPUs"
    if not await set_condition(connection, worker_id, READABLE, code or UNREADABLE, message):
        return []
    text = f"the GPUs of {name} cannot be read, so nothing is placed or stopped there: {message}"
    return [await _of_all(connection, worker_id, "gpus_unreadable", text, code or UNREADABLE)]


async def _record_readable(connection: Connection, worker_id: str, name: str, plan: DeviceChanges) -> list[NewEvent]:
    healthy = bool(plan.rows) and not await record_unhealthy(connection, worker_id)
    if plan.refused:
        message = "in use by another worker: " + first_of([device.row.uuid for device in plan.refused], _LISTED)
        await set_condition(connection, worker_id, OWN, "gpu_held_elsewhere", message)
    over = [READABLE, *([] if plan.refused else [OWN]), *([GPUS_HEALTHY] if healthy else [])]
    if READABLE not in await clear_conditions(connection, worker_id, over):
        return []
    return [await _of_all(connection, worker_id, "gpus_readable", f"the GPUs of {name} can be read again", "")]


async def record_unhealthy(connection: Connection, worker_id: str) -> bool:
    """Names the worker's unhealthy GPUs in its condition; returns whether it has any."""
    sick = await sick_gpus(connection, worker_id)
    if sick:
        message = first_of([f"{uuid} ({why or 'no reason given'})" for uuid, why in sick], _LISTED)
        await set_condition(connection, worker_id, GPUS_HEALTHY, reason_code(sick[0][1]) or "gpu_unhealthy", message)
    return bool(sick)


async def _of_all(connection: Connection, worker_id: str, reason: str, message: str, code: str) -> NewEvent:
    """Returns an event of the worker and of every instance that holds one of its GPUs."""
    instances = (await gpu_holders(connection, worker_id)).all()
    return NewEvent(reason, message, (f"worker:{worker_id}", *(f"instance:{i}" for i in instances)), {"reason": code})


def inventory_events(
    worker_id: str,
    name: str,
    plan: DeviceChanges,
    holders: GpuHolders = _UNHELD,
    known_elsewhere: frozenset[str] = frozenset(),
) -> Iterable[NewEvent]:
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
    """The event of a GPU that is healthy again. `was`: the reason why it was unhealthy."""
    message = f"{uuid} on {worker} is well again; it was unhealthy: {was or 'no reason given'}"
    return NewEvent("gpu_recovered", message, objects, {"was": reason_code(was)})


async def record_disk(database: Database, session: Session, figures: ProcessFigures | None) -> None:
    """Sets or clears the condition if the disk has become full or has space again; otherwise it writes nothing.

    Raises:
        asyncpg.PostgresError: the database refuses.
    """
    if figures is None or figures.disk_free_bytes is None or figures.disk_bytes is None:
        return
    full = disk_is_full(figures.disk_free_bytes, figures.disk_bytes, known=session.disk_full)
    if full is None or full == session.disk_full:
        return
    worker = session.worker_id
    free = f"{figures.disk_free_bytes // _MIB:,} of {figures.disk_bytes // _MIB:,} MiB are free"
    message = f"{free} where the agent's data folder is: nothing new is placed there"
    async with asyncio.timeout(_WRITE_LIMIT_S), database.transaction() as connection:
        if not await processes.lock_sessions(connection, [(worker, session.number)]):
            return
        if full:
            new = await set_condition(connection, worker, DISK_PRESSURE, Reason.DISK_PRESSURE, message, status="true")
            event = f"the disk of {session.name} is full: {message}"
        else:
            new = await clear_condition(connection, worker, DISK_PRESSURE)
            event = f"the disk of {session.name} has space again: {free}"
        if new:
            reason = Reason.DISK_PRESSURE if full else "disk_freed"
            await write_events(connection, [NewEvent(reason, event, (f"worker:{worker}",))])
            await notify(connection, "worker", [worker])
    session.disk_full = full


async def record_runtimes(connection: Connection, worker_id: str, inventory: Inventory) -> None:
    problem = container_problem(inventory)
    if problem:
        await set_condition(connection, worker_id, CONTAINERS, Reason.RUNTIME_UNSUPPORTED, problem)
    else:
        await clear_condition(connection, worker_id, CONTAINERS)


def container_problem(inventory: Inventory) -> str:
    """The reason why the worker cannot run every container; empty if it can, or its agent reports none."""
    docker = next((runtime for runtime in inventory.host.runtimes if runtime.name == RUNTIME_DOCKER), None)
    if docker is None:
        return ""
    if not docker.usable:
        return docker.reason or "its Docker engine cannot be used"
    if inventory.gpus and not docker.gpus:
        return docker.reason or "containers get no GPUs"
    return ""
