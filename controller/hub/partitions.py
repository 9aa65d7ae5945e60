"""Keeps partitions for samples: there before anything is written, gone when nothing of them is kept.

Every controller does it, since every one may take samples; a lock in the database has them take turns.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.telemetry.partitions import Keep, drop_partition, find_old_partitions, make_partitions

log = structlog.get_logger(__name__)

ROUND_S: Final = 3600.0
RETRY_S: Final = 5.0
ROUND_LIMIT_S: Final = 60.0


class PartitionUpkeep:
    """One round each hour, and whenever room is missing.

    Attributes:
        ready: set once there was room; before that nothing can be written.
    """

    def __init__(self, database: Database, keep: Keep) -> None:
        self.ready = asyncio.Event()
        self._database = database
        self._keep = keep
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Room is missing."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs until cancelled; a round that the database failed is soon repeated."""
        while True:
            self._wanted.clear()
            try:
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await self.round()
            except DATABASE_ERRORS as error:
                log.warning("partitions not kept up", error=str(error) or type(error).__name__, retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(ROUND_S):
                    await self._wanted.wait()

    async def round(self) -> None:
        """Makes what is missing, then drops what is old."""
        async with self._database.transaction() as connection:
            await make_partitions(connection, self._keep)
        self.ready.set()
        async with self._database.connection() as connection:
            old = await find_old_partitions(connection, self._keep)
        for name in old:
            async with self._database.transaction() as connection:
                await drop_partition(connection, name)
            log.info("partition dropped", partition=name)
