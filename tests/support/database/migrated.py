"""Migrated databases: the migration runs once, and every test gets a copy."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy.ext.asyncio import create_async_engine

from controller.store.core.database import Database
from controller.store.core.migrate import migrate, upgrade
from support.database.postgres import PostgresServer, create_database, drop_database


async def _make(server: PostgresServer) -> str:
    dsn = await create_database(server)
    database = await Database.open(dsn, pool_size=1)
    try:
        await migrate(database)
    finally:
        await database.close()
    return urlsplit(dsn).path.removeprefix("/")


def migrated_template(server: PostgresServer) -> str:
    """The name of a migrated database without connections. For a fixture, outside of any loop."""
    return _outside(_make(server))


async def migrate_to(dsn: str, revision: str) -> None:
    """Migrates an empty database as an older version did, whose newest revision that was."""

    async def connect() -> Any:
        return await asyncpg.connect(dsn)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    async with engine.begin() as session:
        await session.run_sync(upgrade, revision)
    await engine.dispose()


def _outside(work: Coroutine[Any, Any, str]) -> str:
    # In a thread: a loop of its own must not take the place of the test's.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result(timeout=60)


@asynccontextmanager
async def migrated_database(server: PostgresServer, template: str) -> AsyncIterator[Database]:
    """A fresh copy, open; dropped at the end."""
    dsn = await create_database(server, template)
    try:
        database = await Database.open(dsn)
        try:
            yield database
        finally:
            await database.close()
    finally:
        await drop_database(server, dsn)
