"""Seals the key of receipts and the secrets of agents' proxies, once all that must open them can."""

from typing import Final

import structlog

from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import check_term
from controller.runtime.outcome import StaleError
from controller.store.access.sealing import seal_keys
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database

log = structlog.get_logger(__name__)

# A controller of a version before, which reads plain values alone, has noticed by then that it is outdated.
FIRST_AFTER_S: Final = 15.0
EVERY_S: Final = 5.0
_RETRYABLE: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, StaleError)


class Sealing:
    """Lives as long as one term.

    Args:
        database: holds them.
        term: that it leads.
        clock: time.
        keys: of secrets.
    """

    def __init__(self, database: Database, term: int, clock: Clock, keys: SecretKeys) -> None:
        self._database = database
        self._term = term
        self._clock = clock
        self._keys = keys

    async def run(self) -> None:
        """Runs until cancelled; after a database error the next round does the work."""
        await self._clock.sleep(FIRST_AFTER_S)
        while True:
            try:
                await self.round()
            except _RETRYABLE as error:
                log.warning("keys not sealed, retried in the next round", error=str(error) or type(error).__name__)
            await self._clock.sleep(EVERY_S)

    async def round(self) -> None:
        """Seals what is plain or under an earlier key, as far as it may be."""
        await seal_keys(self._database, self._keys, lambda connection: check_term(connection, self._term))
