"""Migrates the schema at start, under a lock, so that two controllers never migrate at once."""

import asyncio
import random
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final

import asyncpg
import structlog
from sqlalchemy import Connection, text

from controller.store.core.database import Database

log = structlog.get_logger(__name__)

# All later statements wait behind a statement that waits for a table. So it gives up soon, and the migration starts
# again. Half of PostgreSQL's `deadlock_timeout`: in a deadlock the migration gives up, not the other transaction.
LOCK_TIMEOUT: Final = "500ms"
PAUSE_S: Final = (0.5, 2.0)
_BUSY: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
# The leader is of an older version, which does not know the new schema.
_END_TERM: Final = """
    with ended as (update lease set term = term + 1, renewed_at = '-infinity' where id = 1 returning term)
    select pg_notify('gpuward', 'lease *') from ended"""
LOCK_KEY: Final = 7_309_446_271  # an arbitrary constant: names this lock in the database
_CANCEL_LIMIT_S: Final = 1.0
_VERSIONS: Final = Path(__file__).parents[1] / "migrations" / "versions"


class SchemaTooNewError(RuntimeError):
    """A newer version has migrated the database; this version does not understand its schema."""


class UnsuitableEncodingError(RuntimeError):
    """The database cannot hold text of all languages; the message has the command that creates one that can."""


@cache
def known_revisions() -> dict[str, Path]:
    """The schema revisions that this version knows and can migrate to the newest, oldest first, with their SQL."""
    return {path.name.split("_", 1)[0]: path for path in sorted(_VERSIONS.glob("*.sql"))}


def head_revision() -> str:
    """The newest schema revision that this version knows."""
    return max(known_revisions())


async def read_revision(connection: Any) -> str | None:
    revision: str | None = await connection.fetchval("select version_num from alembic_version")
    return revision


async def why_outdated(connection: Any) -> str | None:
    """The reason why this version must neither lead nor write: a newer schema. None if it may."""
    revision = await read_revision(connection)
    if revision is None or revision in known_revisions():
        return None
    return (
        f"the database is at schema {revision}, which is newer than this version's {head_revision()}: "
        "upgrade this controller"
    )


async def migrate(database: Database) -> None:
    """Applies all missing migrations in one transaction. A cancel takes effect at once.

    While tables are in use it retries, and waits for each lock only briefly. The leader's term ends with the commit.

    Raises:
        SchemaTooNewError: the database has a revision that this version does not know.
        UnsuitableEncodingError: the database's encoding is not UTF8.
    """
    while True:
        try:
            await _attempt(database)
        except _BUSY as error:
            pause_s = random.uniform(*PAUSE_S)  # noqa: S311 - spreads attempts
            log.warning("tables are in use, migrating again soon", error=str(error), pause_s=round(pause_s, 1))
            await asyncio.sleep(pause_s)
        else:
            return


async def _attempt(database: Database) -> None:
    connections: list[Any] = []
    working = asyncio.create_task(_migrate(database, connections))
    try:
        await asyncio.wait({working})
    finally:
        if not working.done():
            # The driver would wait for a server that may hang; a terminated connection ends that.
            for connection in connections:
                connection.terminate()
            working.cancel()
            await asyncio.wait({working}, timeout=_CANCEL_LIMIT_S)
    working.result()


async def _migrate(database: Database, connections: list[Any]) -> None:
    async with database.session() as session:
        raw = await (await session.connection()).get_raw_connection()
        connections.append(raw.driver_connection)
        await session.execute(text("set local statement_timeout = 0"))
        await session.execute(text("set local lock_timeout = 0"))
        locked = await session.execute(text("select pg_try_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        if not locked.scalar_one():
            log.info("waiting for another controller's migration")
            await session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        await session.execute(text(f"set local lock_timeout = '{LOCK_TIMEOUT}'"))
        await (await session.connection()).run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    known = connection.execute(text("select to_regclass('alembic_version')")).scalar_one()
    current = known and connection.execute(text("select version_num from alembic_version")).scalar_one_or_none()
    if current is not None and current not in known_revisions():
        raise SchemaTooNewError(
            f"the database is at schema {current}, which this version does not know; upgrade gpuward"
        )
    if current != head_revision():
        upgrade(connection, "head")
        if current is not None:
            connection.execute(text(_END_TERM))


def upgrade(connection: Connection, revision: str) -> None:
    """Migrates up to that revision ("head": the newest), in the transaction of the connection.

    Raises:
        UnsuitableEncodingError: the database's encoding is not UTF8.
    """
    # Most starts find the newest schema, and this import takes as long as that of all our own modules of the store.
    from controller.store.migrations.scripts import run_scripts  # noqa: PLC0415

    _check_encoding(connection)
    run_scripts(connection, known_revisions(), revision)


def _check_encoding(connection: Connection) -> None:
    row = connection.execute(text("select current_database(), current_setting('server_encoding')")).one()
    name, encoding = str(row[0]), str(row[1])
    if encoding == "UTF8":
        return
    # SQL_ASCII implies the locale C, which suits UTF8. The locale of another encoding does not.
    locale = "" if encoding == "SQL_ASCII" else " --locale=C"
    raise UnsuitableEncodingError(
        f"the database {name} has the encoding {encoding}, and gpuward needs UTF8: remove it if it is empty "
        f"(dropdb {shlex.quote(name)}), and create one with: createdb -E UTF8 -T template0{locale} {shlex.quote(name)}"
    )
