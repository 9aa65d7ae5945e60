"""Sessions of the database server: the bounds of each, and whether a pooler in between lets a client keep its session.

The lease, notifications, advisory locks and prepared statements need one server process for as long as a connection
lasts. A pooler that gives that process to another client after each transaction breaks them silently, and passes our
settings on to other clients. So behind a pooler nothing is set before a check has shown that it keeps sessions.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import asyncpg

COMMAND_TIMEOUT_S: Final = 15.0
ACQUIRE_TIMEOUT_S: Final = 10.0
# Only those that poolers pass on are set while connecting: they refuse others, or drop them unnoticed.
STARTUP_SETTINGS: Final = {"application_name": "gpuward"}
# A statement that waits longer than this for a lock should be retried instead.
_SETTINGS: Final = {
    "lock_timeout": "8000",
    "statement_timeout": "14000",
    "idle_in_transaction_session_timeout": "20000",
    "jit": "off",
}
# The bound on a transaction. It also ends the transaction of a controller that freezes between preparing a statement
# and running it, which the server does not count as idle. A setting of PostgreSQL 17 and later.
TRANSACTION_TIMEOUT: Final = "30s"
_KNOWS_TRANSACTION_TIMEOUT: Final = (17,)
HEARD_WITHIN_S: Final = 3.0
_CLOSE_S: Final = 1.0
# Of a statement that was prepared in another process.
_MIXED_UP: Final = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)


class PoolerError(ConnectionError):
    """A pooler before the database does not keep sessions; the message has what to set."""


class ServerSessions:
    """Sets up connections to one database; checks once how a pooler in front of it works."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._kept = False
        self._asking = asyncio.Lock()

    async def connect(self, *, again: bool = False) -> "asyncpg.Connection[Any]":
        """Opens a connection and sets it up. `again` checks the pooler again, since its settings may have changed.

        Raises:
            PoolerError: a pooler does not keep sessions.
        """
        self._kept = self._kept and not again
        connection = await asyncpg.connect(
            self._dsn,
            timeout=ACQUIRE_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings=STARTUP_SETTINGS,
        )
        try:
            await self.set_up(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def set_up(self, connection: Any) -> None:
        """Bounds statements and transactions of a new connection.

        Raises:
            PoolerError: a pooler does not keep sessions, or does not take settings.
        """
        # The server names its process while connecting; a pooler names a number of its own.
        if await _set(connection, f" where pg_backend_pid() = {connection.get_server_pid()}"):
            return
        async with self._asking:
            if not self._kept:
                await _expect_sessions(self._dsn)
                self._kept = True
        if not await _set(connection):
            raise PoolerError(_message(self._dsn, "does not take settings", "let SET pass"))


async def _set(connection: Any, condition: str = "") -> bool:
    """Sets all in one statement that needs no preparing, if the condition holds; returns whether it holds."""
    settings: Mapping[str, str] = _SETTINGS
    if connection.get_server_version() >= _KNOWS_TRANSACTION_TIMEOUT:
        settings = {**_SETTINGS, "transaction_timeout": TRANSACTION_TIMEOUT}
    rows = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    query = f"select set_config(name, value, false) from (values {rows}) as wanted (name, value)"  # noqa: S608 - constants
    tag: str = await connection.execute(query + condition)
    return tag == f"SELECT {len(settings)}"


async def _expect_sessions(dsn: str) -> None:
    """Raises PoolerError unless idle connections get notifications, and new ones have no settings of earlier ones.

    Only a connection that keeps its process gets notifications while it is idle, whichever processes the pooler
    chooses. The second check finds most poolers that lack a reset, since they give the process used last.
    """
    name = f"gpuward_{secrets.token_hex(8)}"
    async with _bare(dsn) as notifier:
        async with _bare(dsn) as listening:
            if not await _hears(listening, notifier, name):
                what = "gives sessions to other clients between transactions"
                raise PoolerError(_message(dsn, what, "set pool_mode = session for this database"))
            await listening.execute(f"set gpuward.kept_by = '{name}'")
        async with _bare(dsn) as later:
            if await later.execute(f"select where current_setting('gpuward.kept_by', true) = '{name}'") != "SELECT 0":
                what = "gives sessions on with what earlier clients have set"
                raise PoolerError(_message(dsn, what, "set server_reset_query = DISCARD ALL"))


async def _hears(listening: Any, notifier: Any, channel: str) -> bool:
    heard = asyncio.Event()
    try:
        await listening.add_listener(channel, lambda *_: heard.set())
        await notifier.execute(f"notify {channel}")
    except _MIXED_UP:
        return False
    try:
        async with asyncio.timeout(HEARD_WITHIN_S):
            await heard.wait()
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def _bare(dsn: str) -> AsyncIterator[Any]:
    """A connection without settings of ours."""
    connection = await asyncpg.connect(
        dsn,
        timeout=ACQUIRE_TIMEOUT_S,
        command_timeout=COMMAND_TIMEOUT_S,
        statement_cache_size=0,
        server_settings=STARTUP_SETTINGS,
    )
    try:
        yield connection
    finally:
        try:
            await connection.close(timeout=_CLOSE_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            connection.terminate()


def _message(dsn: str, what: str, fix: str) -> str:
    return (
        f"the pooler before the database at {describe_dsn(dsn)} {what}, and gpuward needs sessions of its own: "
        f"{fix} in the pooler, or name PostgreSQL itself in GPUWARD_DATABASE_URL"
    )


def describe_dsn(dsn: str) -> str:
    """The URL without its password, for logs and messages."""
    parts = urlsplit(dsn)
    where = parts.hostname or dict(parse_qsl(parts.query)).get("host", "local socket")
    return f"{where}{parts.path}"
