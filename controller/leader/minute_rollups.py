"""The leader's history: rolls samples up into one-minute figures, packs past hours, and deletes old claim spans."""

from typing import Final

import structlog

from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import check_term
from controller.runtime.outcome import StaleError
from controller.store.core.database import Database
from controller.store.telemetry.minute_hours import pack_hours
from controller.store.telemetry.minutes import forget_spans, roll_up

log = structlog.get_logger(__name__)

_PACKING_S: Final = 5.0  # of a round, approximately: after an upgrade there are weeks to pack
_RETRYABLE: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, StaleError)


class History:
    """Rolls up every `every_s` seconds; keeps spans of claims for `keep_days` days."""

    def __init__(self, database: Database, term: int, clock: Clock, *, every_s: float, keep_days: int) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._every_s = every_s
        self._keep_days = keep_days

    async def run(self) -> None:
        """Runs until cancelled; after a database error the next round does the work."""
        while True:
            try:
                await self.round()
            except _RETRYABLE as error:
                log.warning("history round failed, retried in the next", error=str(error) or type(error).__name__)
            await self._clock.sleep(self._every_s)

    async def round(self) -> None:
        """Rolls up all samples committed by now, a batch per transaction; then packs for a while."""
        all_done = False
        while not all_done:
            async with self._database.transaction() as connection:
                await check_term(connection, self._term)
                all_done = await roll_up(connection)
        await self._pack()
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            await forget_spans(connection, keep_days=self._keep_days)

    async def _pack(self) -> None:
        began = self._clock.monotonic()
        all_packed = False
        while not all_packed and self._clock.monotonic() - began < _PACKING_S:
            async with self._database.transaction() as connection:
                await check_term(connection, self._term)
                all_packed = await pack_hours(connection)
