"""What the runtime takes from the database driver: how a connection is got, and which errors mean that it failed."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

# Opens a dedicated connection, never one of a pool: a pool would make a lease or a listener wait behind ordinary work.
# Any, because the driver brings no types.
Connect: TypeAlias = Callable[[], Awaitable[Any]]

DATABASE_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Those that pass by themselves: the way there, a restart or a fail-over, too much at once, a deadlock, somebody else's
# lock; and what the driver says of itself when a connection was cut under its hands. The rest of its errors (a wrong
# column, a violated check) are our own mistakes.
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
