"""Recovery of devices after a time: memory that shrank under claims, GPUs that flapped (were lost repeatedly).

`controller.decide.gpu_flapping` has the rule for how long a GPU that flapped stays out of use.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from controller.domain.events import NewEvent
from controller.hub.conditions import record_unhealthy, recovered
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.workers.conditions import clear_condition
from controller.store.workers.devices import Settled, gpu_holders, lock_due_workers, settle_devices
from schemas.worker_conditions import GPUS_HEALTHY

EVERY_S: Final = 10.0
_LIMIT_S: Final = 8.0
_BATCH: Final = 50  # workers in one transaction, so that it stays short
_BATCHES: Final = 200  # in one round


async def recover_all(database: Database) -> None:
    """Recovers the due devices of all workers. Each controller does so; rows are locked."""
    for _ in range(_BATCHES):
        async with asyncio.timeout(_LIMIT_S):
            if not await recover(database):
                break


async def recover(database: Database) -> bool:
    """Recovers the due devices of some workers in one transaction; returns whether more may be due."""
    async with database.transaction() as connection:
        workers = await lock_due_workers(connection, _BATCH)
        if not workers:
            return False
        settled = await settle_devices(connection, workers)
        await _record(connection, [device for device in settled if device.was is not None])
        await notify(connection, "worker", {device.worker_id for device in settled})
    return len(workers) == _BATCH


async def _record(connection: Connection, healthy: Sequence[Settled]) -> None:
    events, deployments = list[NewEvent](), set[str]()
    for gpu in healthy:
        holders = await gpu_holders(connection, gpu.worker_id, [gpu.uuid])
        deployments |= holders.deployments
        objects = (f"gpu:{gpu.uuid}", f"worker:{gpu.worker_id}", *(f"instance:{i}" for i in holders.all()))
        events.append(recovered(gpu.uuid, gpu.worker, gpu.was or "", objects))
    for worker in sorted({gpu.worker_id for gpu in healthy}):
        if not await record_unhealthy(connection, worker):
            await clear_condition(connection, worker, GPUS_HEALTHY)
    await write_events(connection, events)
    await notify(connection, "process", deployments)
