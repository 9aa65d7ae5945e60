"""A database that cannot hold text of all languages: refused at once, with the command that creates one that can."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from controller.open_database import open_database
from controller.settings import ControllerSettings
from controller.store.backup.archive import reading
from controller.store.backup.restore import restore
from controller.store.backup.take import take_backup
from controller.store.core.database import Database
from controller.store.core.migrate import UnsuitableEncodingError
from support.database.postgres import PostgresServer, create_database, drop_database

OPTIONS = {"SQL_ASCII": "-E UTF8 -T template0", "LATIN1": "-E UTF8 -T template0 --locale=C"}


@asynccontextmanager
async def encoded(postgres: PostgresServer, encoding: str) -> AsyncIterator[str]:
    """An empty database with this encoding."""
    other = await create_database(postgres)
    name = f"odd name {encoding.lower()} {urlsplit(other).path.rpartition('_')[2]}"
    connection = await asyncpg.connect(other)
    try:
        await connection.execute(f"create database \"{name}\" encoding '{encoding}' template template0 locale 'C'")
    finally:
        await connection.close()
    dsn = postgres.database_dsn(name.replace(" ", "%20"))
    try:
        yield dsn
    finally:
        connection = await asyncpg.connect(other)
        await connection.execute(f'drop database "{name}" with (force)')
        await connection.close()
        await drop_database(postgres, other)


async def refused(opening: Callable[[], Awaitable[object]], encoding: str) -> None:
    with pytest.raises(UnsuitableEncodingError) as raised:
        await opening()
    message = str(raised.value)
    assert encoding in message
    assert f"createdb {OPTIONS[encoding]} 'odd name" in message


@pytest.mark.parametrize("encoding", OPTIONS)
async def test_a_controller_names_the_command(postgres: PostgresServer, tmp_path: Path, encoding: str) -> None:
    async with encoded(postgres, encoding) as dsn, AsyncExitStack() as stack:
        settings = ControllerSettings(data_dir=tmp_path, database_url=dsn)
        await refused(lambda: open_database(settings, stack), encoding)


async def test_a_restore_names_it_too(postgres: PostgresServer, migrated: Database, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    await take_backup(migrated.dsn, file, overwrite=False, progress=lambda *_: None)
    async with encoded(postgres, "SQL_ASCII") as dsn:
        with reading(file) as backup:
            backup.verify()
            await refused(
                lambda: restore(dsn, backup, replace=False, revoke_keys=False, progress=lambda *_: None), "SQL_ASCII"
            )
