"""Conditions of a worker's host: its containers or their GPUs do not work, its disk is full."""

import asyncio
from typing import Final

from controller.decide.disk_pressure import disk_is_full
from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.deployments import processes
from controller.store.workers.conditions import clear_condition, set_condition
from schemas.placement_reasons import Reason
from schemas.process_figures import ProcessFigures
from schemas.wire import RUNTIME_DOCKER, Inventory
from schemas.worker_conditions import CONTAINERS, DISK_PRESSURE

_WRITE_LIMIT_S: Final = 20.0
_MIB: Final = 2**20


async def record_disk(database: Database, session: Session, figures: ProcessFigures | None) -> None:
    """Sets or clears the condition where the disk has become full or has space again; else it costs no write.

    Raises:
        asyncpg.PostgresError: the database refuses.
    """
    if figures is None or figures.disk_free_bytes is None or figures.disk_bytes is None:
        return  # unknown: what was known stays
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
    """Sets or clears the condition, in the transaction that writes the host's facts."""
    problem = container_problem(inventory)
    if problem:
        await set_condition(connection, worker_id, CONTAINERS, Reason.RUNTIME_UNSUPPORTED, problem)
    else:
        await clear_condition(connection, worker_id, CONTAINERS)


def container_problem(inventory: Inventory) -> str:
    """Why the worker cannot run every container; empty: it can, or its agent does not speak of containers."""
    docker = next((one for one in inventory.host.runtimes if one.name == RUNTIME_DOCKER), None)
    if docker is None:
        return ""
    if not docker.usable:
        return docker.reason or "its Docker engine cannot be used"
    if inventory.gpus and not docker.gpus:
        return docker.reason or "containers get no GPUs"
    return ""
