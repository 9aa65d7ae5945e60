"""The runtime's view of the database driver: how to connect, and the errors that mean a failure."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

# Opens a dedicated connection, outside of any pool: a lease or a listener must not wait behind ordinary work.
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
# own errors when a connection is cut in mid-use. Other errors (an unknown column, a violated check) are bugs.
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

# Classes of SQLSTATE (and two codes) of which the server, its state or our rights are the cause, whatever the statement
# was: connection, transaction state (a standby is read-only), authorization, missing database, rollback, resources,
# object state, operator, system and internal errors; missing rights, and a missing schema.
_TROUBLE_STATES = ("08", "25", "28", "3D", "40", "53", "55", "57", "58", "F0", "XX", "42501", "42P01")


def is_database_trouble(error: BaseException) -> bool:
    """Whether the database or the way to it failed. Other errors of the driver are bugs in a statement of ours."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_TROUBLE_STATES)
    if isinstance(error, asyncpg.InterfaceError):
        return not isinstance(error, ValueError)  # an argument of a wrong type or size
    return isinstance(error, (OSError, TimeoutError, asyncpg.InternalClientError))


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, asyncpg.DiskFullError)


def is_unstorable_text(error: BaseException) -> bool:
    """Returns whether a request's text has characters that PostgreSQL cannot store: NUL, or lone surrogates."""
    if isinstance(error, asyncpg.InterfaceError):
        return isinstance(error.__cause__, UnicodeEncodeError)
    kinds = (UnicodeEncodeError, asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
    return isinstance(error, kinds)
