"""Database errors are the driver's own everywhere: in ORM sessions and in the gateway's refresh."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psutil
import pytest
from sqlalchemy import text

from controller.api.errors import as_api_error
from controller.live.change_fanout import ChangeFanout
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.tokens import create_token
from controller.store.core.database import Database
from controller.store.core.database_space import is_disk_full, take_space
from controller.store.core.server_sessions import TRANSACTION_TIMEOUT
from gateway.routing.live_routes import LiveRoutes

TROUBLE = (
    socket.gaierror(-2, "Name or service not known"),
    ConnectionRefusedError(111, "refused"),
    OSError(24, "Too many open files"),
    ssl.SSLError("handshake"),
    TimeoutError(),
    asyncpg.InterfaceError("pool is closing"),
    asyncpg.InternalClientError("cut"),
    asyncpg.TooManyConnectionsError("53300"),
    asyncpg.CannotConnectNowError("57P03"),
    asyncpg.AdminShutdownError("57P01"),
    asyncpg.QueryCanceledError("57014"),
    asyncpg.DeadlockDetectedError("40P01"),
    asyncpg.LockNotAvailableError("55P03"),
    asyncpg.ReadOnlySQLTransactionError("25006"),
    asyncpg.InvalidPasswordError("28P01"),
    asyncpg.InvalidCatalogNameError("3D000"),
    asyncpg.InsufficientPrivilegeError("42501"),
    asyncpg.UndefinedTableError("42P01"),
    asyncpg.DiskFullError("53100"),
    asyncpg.PostgresIOError("58030"),
    asyncpg.InternalServerError("XX000"),
)
BUGS = (
    asyncpg.UndefinedColumnError("42703"),
    asyncpg.PostgresSyntaxError("42601"),
    asyncpg.CheckViolationError("23514"),
    asyncpg.exceptions.DataError("an argument of ours"),
    KeyError("x"),
)


@pytest.mark.parametrize("error", TROUBLE, ids=lambda error: type(error).__name__)
def test_trouble_of_the_database_is_503(error: Exception) -> None:
    known = as_api_error(error)
    assert known is not None
    assert known.status == 503
    assert known.headers["Retry-After"]


@pytest.mark.parametrize("error", BUGS, ids=lambda error: type(error).__name__)
def test_a_bug_is_not_taken_for_trouble(error: Exception) -> None:
    assert as_api_error(error) is None


class _UndefinedQuotaError(asyncpg.PostgresError):  # type: ignore[misc]  # the driver has no types
    sqlstate = None


def _error(state: str, text: str) -> asyncpg.PostgresError:
    error = _UndefinedQuotaError(text)
    error.sqlstate = state
    return error


EXTEND = 'could not extend file "base/5/16384": '


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (_error("53100", EXTEND + "No space left on device"), True),
        (_error("53100", "in the words of another language"), True),
        (_error("58030", EXTEND + "No space left on device"), True),
        (_error("XX000", EXTEND + "Disk quota exceeded"), True),
        (_error("58030", EXTEND + "Input/output error"), False),
        (_error("53200", "out of memory"), False),
        (_error("53100", 'could not resize shared memory segment "/PostgreSQL.1": No space left on device'), False),
        (_error("23514", "a row that quotes: No space left on device"), False),
        (OSError(28, "No space left on device"), False),  # of this process
    ],
)
def test_a_full_disk_of_the_database_is_known_by_its_servers_words(error: Exception, full: bool) -> None:
    assert is_disk_full(error) is full


async def _in_transaction(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(REFUSAL)


async def _in_session(database: Database) -> None:
    async with database.session() as session:
        await session.execute(text(REFUSAL))


async def _in_a_part(database: Database) -> None:
    await _in_transaction(database.share(1))


async def _in_one_apart(database: Database) -> None:
    apart = await database.apart(1)
    try:
        await _in_transaction(apart)
    finally:
        await apart.close()


REFUSAL = "do $$ begin raise 'could not extend file' using errcode = 'disk_full'; end $$"


@pytest.mark.parametrize("refused", [_in_transaction, _in_session, _in_a_part, _in_one_apart])
async def test_a_refused_write_of_any_kind_tells_that_the_disk_is_full(migrated: Database, refused: Any) -> None:
    assert not migrated.space.full
    with pytest.raises(asyncpg.DiskFullError) as raised:
        await refused(migrated)
    known = as_api_error(raised.value)
    assert known is not None
    assert (known.status, known.code) == (503, "database_full")
    assert migrated.space.full


async def test_space_is_tried_without_leaving_anything(migrated: Database) -> None:
    size = "select sum(relpages + 1) from pg_class where relkind in ('r', 't') and relpersistence <> 't'"
    for _ in range(2):
        async with migrated.transaction() as connection:
            before = await connection.fetchval(size)
            await take_space(connection)
    async with migrated.transaction() as connection:
        assert await connection.fetchval(size) == before


async def test_a_session_raises_what_the_driver_raised(migrated: Database) -> None:
    async def read_impatiently() -> None:
        async with migrated.session() as session:
            await session.execute(text("set local lock_timeout = '50ms'"))
            await session.execute(text("select 1 from join_tokens"))

    async with migrated.transaction() as other:
        await other.execute("lock table join_tokens in access exclusive mode")
        with pytest.raises(asyncpg.LockNotAvailableError) as raised:
            await read_impatiently()
    known = as_api_error(raised.value)
    assert known is not None
    assert known.status == 503


async def test_a_session_whose_connection_is_cut(migrated: Database) -> None:
    async def read_while_cut() -> None:
        async with migrated.session() as session:
            pid = (await session.execute(text("select pg_backend_pid()"))).scalar_one()
            async with migrated.connection() as other:
                await other.execute("select pg_terminate_backend($1, 5000)", pid)
            await session.execute(text("select 1"))

    with pytest.raises(DATABASE_ERRORS) as raised:
        await read_while_cut()
    known = as_api_error(raised.value)
    assert known is not None
    assert known.status == 503
    assert (await create_token(migrated)).token


async def test_no_transaction_outlives_its_bound(migrated: Database) -> None:
    """Standing still between preparing and running a statement is not idleness to the server."""

    async def stand_still() -> None:
        async with migrated.connection() as connection:
            assert await connection.fetchval("show transaction_timeout") == TRANSACTION_TIMEOUT
            await connection.execute("set transaction_timeout = '300ms'")
            await connection.execute("begin")
            statement = await connection.prepare("select 1")
            await asyncio.sleep(1)
            await statement.fetchval()

    with pytest.raises(DATABASE_ERRORS):
        await stand_still()


@pytest.mark.parametrize("kind", ["connection", "transaction", "snapshot"])
async def test_a_cancel_takes_effect_at_once_on_a_hanging_server(migrated: Database, kind: str) -> None:
    """It is not waited for, and the driver's own trouble never takes the cancel's place."""
    hung: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with getattr(migrated, kind)() as connection:
            hung.set_result(await connection.fetchval("select pg_backend_pid()"))
            await connection.execute("select pg_sleep(30)")

    working = asyncio.create_task(work())
    async with asyncio.timeout(20):
        backend = psutil.Process(await hung)
        backend.suspend()
        try:
            working.cancel()
            _, pending = await asyncio.wait({working}, timeout=3)
            assert not pending
            assert working.cancelled()
        finally:
            backend.resume()
        async with migrated.transaction() as connection:
            assert await connection.fetchval("select 1") == 1


class _Stumbling:
    """The database, failing once in each way that the driver knows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.errors = [error("on purpose") for error in DATABASE_ERRORS]
        self.answered = asyncio.Event()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Any]:
        if self.errors:
            raise self.errors.pop()
        async with self._database.snapshot() as connection:
            yield connection
        self.answered.set()


async def test_the_gateways_table_survives_every_database_error(migrated: Database) -> None:
    stumbling, changes = _Stumbling(migrated), ChangeFanout()
    async with asyncio.timeout(30):
        routes = LiveRoutes(stumbling, changes)
        while not stumbling.answered.is_set():
            changes.publish("process", None)
            await asyncio.sleep(0.01)
        assert not routes.refreshing.done()
        routes.refreshing.cancel()
        await asyncio.wait([routes.refreshing])
    assert not stumbling.errors
