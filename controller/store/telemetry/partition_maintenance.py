"""Keeps the partitions for samples: created before they are needed, dropped when none of their rows is kept any more.

Every controller runs it, since every controller may take samples; a lock in the database serializes them.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from controller.store.core.database import DRIVER_ERRORS, Database
from controller.store.telemetry.partitions import (
    SampleRetention,
    drop_partition,
    find_old_partitions,
    make_partitions,
)

log = structlog.get_logger(__name__)

ROUND_S: Final = 3600.0
RETRY_S: Final = 5.0
ROUND_LIMIT_S: Final = 60.0


class PartitionMaintenance:
    """One round each hour, and one at each `wake`.

    Attributes:
        ready: set once the first round has created partitions; before that no sample can be written.
    """

    def __init__(self, database: Database, retention: SampleRetention) -> None:
        self.ready = asyncio.Event()
        self._database = database
        self._retention = retention
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Runs a round now: a partition is missing."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs until cancelled; retries a round soon if the database failed."""
        while True:
            self._wanted.clear()
            try:
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await self.round()
            except DRIVER_ERRORS as error:
                log.warning("partition maintenance failed", error=str(error) or type(error).__name__, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._wanted.wait()

    async def round(self) -> None:
        """Creates missing partitions, then drops old ones."""
        async with self._database.transaction() as connection:
            await make_partitions(connection, self._retention)
        self.ready.set()
        async with self._database.connection() as connection:
            old = await find_old_partitions(connection, self._retention)
        for name in old:
            async with self._database.transaction() as connection:
                await drop_partition(connection, name)
            log.info("partition dropped", partition=name)
