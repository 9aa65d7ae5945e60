"""A connection for backup and restore: one statement may take as long as it needs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S

UNBOUNDED: Final = """
    select set_config(name, '0', false) from pg_settings
     where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout',
                    'idle_in_transaction_session_timeout')"""


class UnsuitableSchemaError(Exception):
    """The database cannot be backed up, or restored to; the message says why and what to do."""


@asynccontextmanager
async def dedicated(dsn: str) -> AsyncIterator[Any]:
    """A connection of its own without limits of time; closed at the end."""
    connection = await asyncpg.connect(dsn, timeout=ACQUIRE_TIMEOUT_S, statement_cache_size=0)
    try:
        await connection.execute(UNBOUNDED)
        yield connection
    finally:
        connection.terminate()
