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

# Classes of SQLSTATE (and two whole codes) that say that the server, its state or our rights are at fault, whatever
# the statement was: connection, transaction state (a standby is read-only), authorization, missing database, rollback,
# resources, object state, operator, system and internal errors; missing rights, and a schema that is not there.
_TROUBLE_STATES = ("08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX", "42501", "42P01")


def is_database_trouble(error: BaseException) -> bool:
    """Whether the database or the way to it failed. Other errors of the driver are bugs in a statement of ours."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_TROUBLE_STATES)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # an argument of a wrong type or size
    return isinstance(error, (OSError, TimeoutError, asyncpg.InternalClientError))


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk of the database is full. The store has seen to it that such errors are of this type."""
    return isinstance(error, asyncpg.DiskFullError)


def is_unstorable_text(error: BaseException) -> bool:
    """Whether a request's text holds what no text of the database can: NUL, or halves of characters."""
    if isinstance(error, asyncpg.InterfaceError):
        return isinstance(error.__cause__, UnicodeEncodeError)
    kinds = (UnicodeEncodeError, asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
    return isinstance(error, kinds)
