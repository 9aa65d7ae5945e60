"""The first start's key, and the file that tells clients on this host where the controller is."""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from controller.client_env import stored_key, write_client_env
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.key_reads import find_keys, hash_secret
from controller.store.access.keys import create_first_key
from controller.store.core.database import Database
from http1.daemon.log_limit import LogLimit

log = structlog.get_logger(__name__)

_WAIT_LOGGED_S: Final = 10.0
_RETRY_S: Final = 0.5


async def publish_client_env(database: Database, folder: Path, url: str, ca: Path | None = None) -> bool:
    """Writes client.env, with the first administrator's key at the first start. Waits for the database; returns True.

    Raises:
        ClientEnvError: the file cannot be written.
    """
    waiting = LogLimit(_WAIT_LOGGED_S)
    while True:
        try:
            first = await create_first_key(database, keep=lambda key: write_client_env(folder, url, key, ca))
            if first is None:
                write_client_env(folder, url, None, ca)
                await _warn_of_revoked_key(database, folder)
        except DATABASE_ERRORS as error:
            if waiting.admit("database") is not None:
                why = str(error) or type(error).__name__
                log.warning("waiting for the database, client.env is not written yet", error=why)
            await asyncio.sleep(_RETRY_S)
        else:
            return True


async def _warn_of_revoked_key(database: Database, folder: Path) -> None:
    key = stored_key(folder)
    async with database.connection() as connection:
        valid = key is not None and await find_keys(connection, [hash_secret(key)])
    if not valid:
        log.warning("the key in client.env is not valid; for a new one run: gpuward key reset")
