"""Recovery of devices by time alone: memory that shrank under claims, GPUs that were lost again and again."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from controller.domain.events import NewEvent
from controller.hub.gpu_events import recovered, tell_sick
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.workers.conditions import clear_condition
from controller.store.workers.devices import Settled, gpu_holders, lock_due_workers, settle_devices
from schemas.worker_conditions import GPUS_HEALTHY

log = structlog.get_logger(__name__)

EVERY_S: Final = 10.0
_LIMIT_S: Final = 8.0
_BATCH: Final = 50  # workers in one transaction, so that it stays short
_BATCHES: Final = 200  # in one round


class DeviceRecovery:
    """Each controller does it, for all workers."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def run(self) -> None:
        """Recovers devices every ten seconds until cancelled."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                for _ in range(_BATCHES):
                    async with asyncio.timeout(_LIMIT_S):
                        if not await recover(self._database):
                            break
            except DATABASE_ERRORS as error:
                log.warning("devices not recovered", error=str(error) or type(error).__name__)


async def recover(database: Database) -> bool:
    """Writes what is due of some workers in one transaction; returns whether more may be due."""
    async with database.transaction() as connection:
        workers = await lock_due_workers(connection, _BATCH)
        if not workers:
            return False
        settled = await settle_devices(connection, workers)
        await _record(connection, [one for one in settled if one.was is not None])
        await notify(connection, "worker", {one.worker_id for one in settled})
    return len(workers) == _BATCH


async def _record(connection: Connection, well: Sequence[Settled]) -> None:
    """What becomes known of GPUs that are well again."""
    events, deployments = list[NewEvent](), set[str]()
    for one in well:
        holders = await gpu_holders(connection, one.worker_id, [one.uuid])
        deployments |= holders.deployments
        objects = (f"gpu:{one.uuid}", f"worker:{one.worker_id}", *(f"instance:{i}" for i in holders.all()))
        events.append(recovered(one.uuid, one.worker, one.was or "", objects))
    for worker in sorted({one.worker_id for one in well}):
        if not await tell_sick(connection, worker):
            await clear_condition(connection, worker, GPUS_HEALTHY)
    await write_events(connection, events)
    await notify(connection, "process", deployments)
