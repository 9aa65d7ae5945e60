"""Database connections: an asyncpg pool for set-based work, SQLAlchemy sessions for single rows."""

import asyncio
import copy
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import fields
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy
from pydantic import ValidationError

from controller.store.core.database_space import DatabaseSpace, is_disk_full
from controller.store.core.server_sessions import (
    ACQUIRE_TIMEOUT_S,
    COMMAND_TIMEOUT_S,
    STARTUP_SETTINGS,
    ServerSessions,
)
from schemas.api.view import View, from_plain

if TYPE_CHECKING:  # slow to import, and gateways need none
    from sqlalchemy.ext.asyncio import AsyncSession

    from controller.store.core.orm import Orm

POOL_SIZE: Final = 16
DRIVER_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
Connection: TypeAlias = "PoolConnectionProxy[Any]"
T = TypeVar("T")
V = TypeVar("V", bound=View)
Row = Mapping[str, Any]


class Reader(Protocol):
    """A connection, for functions that only read."""

    async def fetch(self, query: str, *args: Any) -> "list[asyncpg.Record]": ...


class WritesRefusedError(ConnectionError):
    """This process must not write to the database; the message has the reason."""


# The server, or this process, refuses to write and may still read: a standby, an account without rights, a full disk.
_TAKES_NO_WRITES: Final = (
    WritesRefusedError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.DiskFullError,
)


class DatabaseUrlError(ValueError):
    """The database URL is invalid; the message has what to write."""


def normalise_dsn(url: str) -> str:
    """Checks an external server's URL and returns it in asyncpg's form.

    Raises:
        DatabaseUrlError: not a PostgreSQL URL.
    """
    wrong = "GPUWARD_DATABASE_URL: not a PostgreSQL URL; write postgresql://user:password@host:5432/db"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DatabaseUrlError(wrong) from None  # the error's text may repeat the password
    scheme = parts.scheme.split("+", 1)[0]
    if scheme not in ("postgres", "postgresql"):
        raise DatabaseUrlError(wrong)
    return urlunsplit(("postgresql", *parts[1:]))


async def prepare_connection(connection: "asyncpg.Connection[Any]") -> None:
    """Has json and jsonb columns read and written as Python values."""
    # Binary, since COPY supports no other format. A jsonb on the wire is its format's number followed by its text.
    for kind, version in (("json", b""), ("jsonb", b"\x01")):
        await connection.set_type_codec(
            kind, encoder=_json_encoder(version), decoder=_json_decoder(version), schema="pg_catalog", format="binary"
        )


def _json_encoder(version: bytes) -> Callable[[Any], bytes]:
    return lambda value: version + orjson.dumps(value)


def _json_decoder(version: bytes) -> Callable[[bytes], Any]:
    return lambda data: orjson.loads(data[len(version) :])


class _StatelessConnection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A pooled connection without session state (SET LOCAL only), so that its release needs no query."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """An asyncpg pool and an ORM engine over one PostgreSQL database."""

    def __init__(self, dsn: str, pool: "asyncpg.Pool[Any]", sessions: ServerSessions | None = None) -> None:
        self.dsn = dsn
        self._sessions = sessions or ServerSessions(dsn)
        self.pool = pool
        self._permits = asyncio.Semaphore(pool.get_max_size())
        self.space = DatabaseSpace()
        # Lists of at most one item, so that copies share them.
        self._refused: list[str] = []  # the reason why nothing is written
        self._orm: list[Orm] = []  # made when it is first used

    @classmethod
    async def open(cls, dsn: str, *, pool_size: int = POOL_SIZE, check: bool = True) -> "Database":
        """Connects. With `check` the first connection is opened at once, so that a wrong URL fails here.

        Raises:
            PoolerError: `check` finds a pooler in front of the database that does not keep sessions.
        """
        sessions = ServerSessions(dsn)

        async def prepare(connection: "asyncpg.Connection[Any]") -> None:
            await sessions.set_up(connection)
            await prepare_connection(connection)

        pool = await asyncpg.create_pool(
            dsn,
            min_size=0,  # with a minimum the pool would try to restore it, and log errors, while the database is away
            max_size=pool_size,
            command_timeout=COMMAND_TIMEOUT_S,
            timeout=ACQUIRE_TIMEOUT_S,
            init=prepare,
            max_cached_statement_lifetime=0,  # no timer for each, which would hold the context of its first use
            connection_class=_StatelessConnection,
            server_settings=STARTUP_SETTINGS,
        )

        if check:
            async with pool.acquire(timeout=ACQUIRE_TIMEOUT_S):
                pass  # the connection itself is the check

        return cls(dsn, pool, sessions)

    def share(self, connections: int) -> Self:
        """The same database, for a user that may hold at most that many of the pool's connections."""
        share = copy.copy(self)
        share._permits = asyncio.Semaphore(connections)  # noqa: SLF001 - a copy of this object
        return share

    async def apart(self, connections: int) -> "Database":
        """The same database with a pool of its own, for work that must not wait for other users of the pool.

        Connections are opened when they are first used. The caller closes it.
        """
        apart = await Database.open(self.dsn, pool_size=connections, check=False)
        apart._refused = self._refused  # noqa: SLF001 - an object of this class
        apart.space = self.space
        return apart

    def refuse_writes(self, why: str | None) -> None:
        """Refuses every transaction that may write, for this reason; None allows them again."""
        self._refused[:] = [] if why is None else [why]

    @asynccontextmanager
    async def connection(self) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """A pooled raw connection, within `ACQUIRE_TIMEOUT_S`."""
        async with self._held(lambda _: nullcontext()) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """A raw connection inside a READ COMMITTED transaction.

        Raises:
            DatabaseFullError: the disk of the database is full.
            WritesRefusedError: this process must not write.
        """
        self._check_writes()
        async with self._held(lambda connection: connection.transaction()) as connection:
            yield connection

    @asynccontextmanager
    async def transaction_or_refusal(
        self, check: Callable[[Any], Awaitable[object]]
    ) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """As `transaction`, but an invalid write is refused as such also while the database takes no writes.

        `check` runs only then, on a connection that may only read, and raises what the transaction would raise for an
        invalid write. If it raises nothing, the database's error is raised. So a client corrects its request at once.
        """
        try:
            async with self.transaction() as connection:
                yield connection
        except _TAKES_NO_WRITES:
            with suppress(*DRIVER_ERRORS, ValidationError):  # a newer controller may have stored what cannot be parsed
                async with self.snapshot() as connection:
                    await check(connection)
            raise

    @asynccontextmanager
    async def snapshot(self) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """A raw connection inside a read-only REPEATABLE READ transaction: several reads of one state."""
        async with self._held(lambda c: c.transaction(isolation="repeatable_read", readonly=True)) as connection:
            yield connection

    @asynccontextmanager
    async def _held(
        self, transaction: "Callable[[asyncpg.Connection[Any]], AbstractAsyncContextManager[Any]]"
    ) -> "AsyncIterator[asyncpg.pool.PoolConnectionProxy[Any]]":
        """A pooled connection inside the given transaction.

        A cancel takes effect at once. The driver would first wait for a server that may not answer, then raise its own
        error in place of the cancel, which the cancelled caller would take for a transient failure. So the connection
        is terminated, and the server rolls back by itself.
        """
        cancels: list[asyncio.CancelledError] = []
        async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
            await self._permits.acquire()
        try:
            async with self.pool.acquire(timeout=ACQUIRE_TIMEOUT_S) as connection:
                with _terminate_if_cancelled(connection, cancels):
                    async with transaction(connection):
                        with _terminate_if_cancelled(connection, cancels):
                            yield connection
        except DRIVER_ERRORS as error:
            if cancels:
                raise cancels[0] from None
            if is_disk_full(error):
                raise self.space.refused(error) from error
            raise
        finally:
            self._permits.release()

    @asynccontextmanager
    async def session(self) -> "AsyncIterator[AsyncSession]":
        """An ORM session inside a transaction, committed at the end.

        Raises:
            DatabaseFullError: the disk of the database is full.
            asyncpg.PostgresError: the driver's own error, as everywhere else, without the ORM's wrapping.
            TimeoutError: all ORM connections are in use.
            ConnectionError: the connection was lost, as the ORM noticed.
            WritesRefusedError: this process must not write.
        """
        self._check_writes()
        if not self._orm:
            from controller.store.core.orm import Orm  # noqa: PLC0415 - slow to import, and gateways need none

            self._orm.append(Orm(self._sessions.connect))
        try:
            async with self._orm[0].session() as session:
                yield session
        except asyncpg.PostgresError as error:
            if is_disk_full(error):
                raise self.space.refused(error) from error
            raise

    def _check_writes(self) -> None:
        if self._refused:
            raise WritesRefusedError(self._refused[0])

    async def ping(self) -> None:
        """Runs a query; raises the driver's errors."""
        async with self.connection() as connection:
            await connection.fetchval("select 1")

    async def listen_connection(self) -> "asyncpg.Connection[Any]":
        """A dedicated connection, never pooled, for LISTEN and for the lease.

        Raises:
            PoolerError: a pooler before the database does not keep sessions.
        """
        return await self._sessions.connect(again=True)

    async def abandon(self) -> None:
        """Drops all connections without closing them: that would wait for a server that hangs."""
        self.pool.terminate()
        for orm in self._orm:
            await orm.dispose(close=False)

    async def close(self) -> None:
        """Closes both pools; connections still in use are terminated after 5 s."""
        for orm in self._orm:
            await orm.dispose(close=True)
        try:
            async with asyncio.timeout(5.0):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()


@contextmanager
def _terminate_if_cancelled(connection: Any, cancels: list[asyncio.CancelledError]) -> Iterator[None]:
    try:
        yield
    except asyncio.CancelledError as cancel:
        cancels.append(cancel)
        connection.terminate()
        raise


def row_mapper(cls: type[T]) -> Callable[[Row], T]:
    """Returns a function that builds the dataclass `cls` from a row with a column for each of its fields."""
    values = itemgetter(*(field.name for field in fields(cls)))  # type: ignore[arg-type]  # a dataclass by contract
    return lambda row: cls(*values(row))


def group_rows(rows: Iterable[Row], column: str) -> defaultdict[Any, list[Row]]:
    """The rows by the value of a column."""
    groups: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return groups


def view_of(view: type[V], row: Row, /, **given: Any) -> V:
    """Builds a view from the columns named as its fields, and from `given`. UUIDs become text."""
    values = {name: row[name] for name in view.__struct_fields__ if name in row} | given
    return from_plain(view, {name: str(value) if isinstance(value, UUID) else value for name, value in values.items()})
