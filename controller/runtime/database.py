"""What the runtime needs of the database driver: how to connect, and which errors mean a failure."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

# Opens a dedicated connection, never one of a pool: a lease or a listener must not wait behind ordinary work.
# Any, because the driver has no types.
Connect: TypeAlias = Callable[[], Awaitable[Any]]

DATABASE_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Errors that may pass by themselves: network, restart or fail-over, overload, deadlock, lock timeouts, and the driver's
# own errors when a connection is cut in mid-use. The others (an unknown column, a violated check) are bugs.
TRANSIENT_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
)
