"""Watches the schema's revision. A controller that is older than it neither leads nor writes, and says so."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.core.migrate import why_outdated

log = structlog.get_logger(__name__)

LOOK_S: Final = 5.0
_LIMIT_S: Final = 10.0


class SchemaWatch:
    """Refuses writes while the database is of a newer version, as after another controller's upgrade."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._woken = asyncio.Event()
        self._why: str | None = None

    def wake(self) -> None:
        """The schema may have changed: a migration ends the leader's term."""
        self._woken.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            with suppress(*DATABASE_ERRORS):  # its absence is told elsewhere; the next look is soon
                async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
                    self._note(await why_outdated(connection))

    def _note(self, why: str | None) -> None:
        if why == self._why:
            return
        self._why = why
        self._database.refuse_writes(why)
        if why is not None:
            log.error("this controller is outdated, and writes nothing", reason=why)
        else:
            log.info("the schema is known again: this controller writes")
