"""The values of all secrets in memory, so that no answer shows them. They are read again as they change."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.live.change_fanout import ChangeFanout
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import MOST_KNOWN, read_values
from controller.store.core.database import Database

log = structlog.get_logger(__name__)

POLL_S: Final = 30.0  # a change is notified; this is for a lost hint
RETRY_S: Final = 1.0
_READ_LIMIT_S: Final = 5.0


class KnownSecrets:
    """The values of the secrets that a key of this controller opens."""

    def __init__(self, database: Database, changes: ChangeFanout, keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._changes = changes
        self._keys = keys
        self._values: dict[str, str] = {}
        self._redaction = NOTHING_REDACTED
        self._fails = False
        self._reading = asyncio.Lock()

    def redaction(self) -> Redaction:
        return self._redaction

    async def refresh(self) -> bool:
        """Reads the values again; False: that failed, and the earlier values stay."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S), self._reading:
                async with self._database.connection() as connection:
                    values = await read_values(connection, self._keys)
                if values != self._values:
                    self._redaction = await asyncio.to_thread(Redaction, values)
                    self._values = values
                    self._changes.publish("deployment", None)
        except DATABASE_ERRORS as error:
            if not self._fails:
                log.warning("secrets not read, redacting those in memory", error=str(error) or type(error).__name__)
            self._fails = True
            return False
        if len(values) >= MOST_KNOWN:
            log.warning("too many secrets: values of the others are shown where manifests hold them", most=MOST_KNOWN)
        self._fails = False
        return True

    async def run(self) -> None:
        wake = asyncio.Event()
        with self._changes.woken_by("secret", wake.set):
            while True:
                wait_s = RETRY_S if self._fails else POLL_S
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await wake.wait()
                wake.clear()
                await self.refresh()
