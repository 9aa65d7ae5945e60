"""PgBouncer before the database: sessions that are kept are supported with all their bounds, others are refused."""

import asyncio

import asyncpg
import pytest

from controller.open_database import reason_to_end
from controller.store.core import server_sessions
from controller.store.core.database import Database
from controller.store.core.server_sessions import PoolerError
from support.database.pooler import PROGRAM, pgbouncer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="Debian's package pgbouncer is not installed")
BOUNDS = {
    "lock_timeout": "8s",
    "statement_timeout": "14s",
    "idle_in_transaction_session_timeout": "20s",
    "jit": "off",
    "application_name": "gpuward",
}


async def _bounds(connection: asyncpg.Connection) -> dict[str, str]:
    return {name: await connection.fetchval(f"show {name}") for name in BOUNDS}


async def test_a_kept_session_has_its_bounds_and_hears_notifications(migrated: Database) -> None:
    async with pgbouncer(migrated.dsn, pool_mode="session") as dsn:
        database = await Database.open(dsn, pool_size=2)
        try:
            async with database.connection() as connection:
                assert await _bounds(connection) == BOUNDS
            async with database.session() as session:
                raw = await (await session.connection()).get_raw_connection()
                assert await _bounds(raw.driver_connection) == BOUNDS
            listening = await database.listen_connection()
            assert await _bounds(listening) == BOUNDS
            heard = asyncio.Event()
            await listening.add_listener("gpuward", lambda *_: heard.set())
            async with database.transaction() as connection:
                await connection.execute("select pg_notify('gpuward', 'lease *')")
            async with asyncio.timeout(20):
                await heard.wait()
            await listening.close(timeout=5)
        finally:
            await database.close()


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"pool_mode": "transaction"}, "pool_mode = session"),
        ({"pool_mode": "transaction", "server_round_robin": "1"}, "pool_mode = session"),
        ({"pool_mode": "statement"}, "pool_mode = session"),
        ({"pool_mode": "session", "server_reset_query": ""}, "server_reset_query = DISCARD ALL"),
    ],
    ids=["transaction", "in turn", "statement", "without a reset"],
)
async def test_sessions_that_are_not_kept_are_refused_with_the_fix(
    migrated: Database, settings: dict[str, str], fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_sessions, "HEARD_WITHIN_S", 0.2)
    async with pgbouncer(migrated.dsn, **settings) as dsn:
        with pytest.raises(PoolerError, match=fix) as refused:
            await Database.open(dsn, pool_size=2)
        assert reason_to_end(refused.value, dsn) == str(refused.value)
        # One that is opened later, as a gateway's, is refused wherever it connects first.
        lazy = await Database.open(dsn, pool_size=2, check=False)
        try:
            with pytest.raises(PoolerError):
                await lazy.listen_connection()
            with pytest.raises(PoolerError):
                await lazy.ping()
        finally:
            await lazy.close()
        left = await asyncpg.connect(dsn, statement_cache_size=0)
        try:
            assert await left.fetchval("show lock_timeout") == "0"  # nothing was set for strangers
        finally:
            await left.close(timeout=5)


async def test_a_setting_of_the_url_that_the_pooler_refuses_ends_the_start(migrated: Database) -> None:
    async with pgbouncer(migrated.dsn, pool_mode="session") as dsn:
        with pytest.raises(asyncpg.ProtocolViolationError) as refused:
            await Database.open(f"{dsn}?search_path=public")
        why = reason_to_end(refused.value, dsn)
        assert why is not None
        assert "unsupported startup parameter: search_path" in why
        assert "GPUWARD_DATABASE_URL" in why
