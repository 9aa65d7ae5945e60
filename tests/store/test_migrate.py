"""Migrations beside controllers that run: they wait for no lock for long, and end an older leader's term."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from controller.store.core import migrate as module
from controller.store.core.database import Database, WritesRefusedError
from controller.store.core.migrate import head_revision, migrate, why_outdated
from controller.store.deployments.specs import spec_from_json
from controller.store.migrations import versions
from support.database.ledger import add_deployment
from support.database.migrated import migrate_to
from support.database.postgres import PostgresServer, create_database, drop_database

FOLDER = Path(versions.__file__).parent
BOUND = 27  # the rules hold for later ones
# Each holds a lock that keeps all others out for as long as the table is large, or breaks what an older gateway does.
FORBIDDEN = {
    r"\balter\s+column\s+\w+\s+(set\s+data\s+)?type\b": "rewrites the table: add a column and fill it by and by",
    r"\bset\s+not\s+null\b": "reads the whole table under a lock: add a check `not valid`, validate it later",
    r"\bdrop\s+(column|table)\b": "an older gateway may still read it: drop it one version later",
    r"\brename\b": "an older gateway still uses the old name: add, fill, and drop one version later",
    r"\bvacuum\b|\bconcurrently\b": "cannot run in the migration's transaction",
    r"\block\s+table\b": "keeps all others out",
    r"default\s+(clock_timestamp|random|gen_random_uuid)\s*\(": "rewrites the table: set the default afterwards",
    r"index\s+\w+\s+on\s+(events|samples|sample_minutes|claim_spans)\b": "reads a table of millions of rows",
}
# They change tables of a few rows, which a rewrite does not hold up.
SMALL = {"0029_sealed_secrets"}


def later_migrations() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*.sql") if int(path.name[:4]) > BOUND)


@pytest.mark.parametrize("path", later_migrations(), ids=lambda path: path.stem)
def test_a_migration_holds_nothing_up_for_long(path: Path) -> None:
    text = re.sub(r"--[^\n]*", "", path.read_text()).lower()
    for pattern, why in FORBIDDEN.items():
        if why.startswith("rewrites") and path.stem in SMALL:
            continue
        found = re.search(pattern, text)
        assert found is None, f"{path.name}: {found and found[0]!r} {why}"


async def test_each_landed_revision_upgrades_to_the_newest(database: str, postgres: PostgresServer) -> None:
    """It takes seconds, since each of 47 states of the schema gets a database of its own."""
    revisions = [path.name[:4] for path in sorted(FOLDER.glob("*.sql"))]
    assert len(revisions) >= 47
    for revision in revisions:  # from one to the next, in one database: each state of it is a landed one
        await migrate_to(database, revision)
        copy = await create_database(postgres, urlsplit(database).path.removeprefix("/"))
        opened = await Database.open(copy)
        async with opened.connection() as c:
            assert await c.fetch("select version_num from alembic_version") == [(revision,)]
        await migrate(opened)
        async with opened.connection() as c:
            assert await c.fetch("select version_num from alembic_version") == [(revisions[-1],)]
        await opened.close()
        await drop_database(postgres, copy)


@pytest.fixture
async def older(database: str) -> AsyncIterator[Database]:
    """As an older version left it, with a leader."""
    await migrate_to(database, "0022")
    opened = await Database.open(database)
    async with opened.transaction() as c:
        await c.execute("update lease set term = 7, holder = 'old', renewed_at = clock_timestamp()")
    yield opened
    await opened.close()


@pytest.fixture
async def other(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def test_the_older_leader_s_term_ends_with_the_migration(older: Database) -> None:
    await migrate(older)
    async with older.connection() as c:
        lease = await c.fetchrow("select term, renewed_at = '-infinity' as free from lease")
        assert tuple(lease) == (8, True)
    await migrate(older)
    async with older.connection() as c:
        assert await c.fetchval("select term from lease") == 8, "nothing to migrate ends no term"


async def test_a_long_read_holds_up_the_migration_and_nothing_else(
    older: Database, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements behind a waiting migration wait for its lock timeout at most, and the migration comes through."""
    monkeypatch.setattr(module, "LOCK_TIMEOUT", "300ms")
    monkeypatch.setattr(module, "PAUSE_S", (0.2, 0.3))
    uid = await add_deployment(older, "chat")
    reading = other.transaction()
    await reading.start()
    await other.fetch("select * from instances")
    migrating = asyncio.create_task(migrate(older))
    longest_s, writes = 0.0, 0
    began = time.monotonic()
    while time.monotonic() - began < 2.0:
        at = time.monotonic()
        async with older.transaction() as c:
            await c.execute(
                "insert into instances (id, deployment_uid, revision, phase) values ($1, $2, 1, 'pending')",
                f"chat-{writes}",
                uid,
            )
        longest_s = max(longest_s, time.monotonic() - at)
        writes += 1
    assert not migrating.done()
    assert writes > 3
    await reading.rollback()
    await migrating
    async with older.connection() as c:
        assert await c.fetchval("select version_num from alembic_version") == head_revision()
        assert await c.fetchval("select count(*) from instances") == writes
    assert longest_s < 5.0, "far below the timeout of a statement"


async def test_an_outdated_process_writes_nothing(migrated: Database) -> None:
    async with migrated.transaction() as c:
        assert await why_outdated(c) is None
        await c.execute("update alembic_version set version_num = '9999'")
        why = await why_outdated(c)
    assert why is not None
    assert "9999" in why
    share = migrated.share(1)
    migrated.refuse_writes(why)
    for database in (migrated, share):
        with pytest.raises(WritesRefusedError, match="9999"):
            async with database.transaction():
                pass
        with pytest.raises(WritesRefusedError, match="9999"):
            async with database.session():
                pass
        async with database.snapshot() as c:
            assert await c.fetchval("select 1") == 1
    migrated.refuse_writes(None)
    async with share.transaction() as c:
        await c.execute("select 1")


async def test_a_strategy_that_was_stored_as_pack_counts_as_not_written(database: str) -> None:
    """It was the default, and stored whether it was written or not."""
    await migrate_to(database, "0037")
    opened = await Database.open(database)
    stored = {"pack": "auto", "spread": "spread"}
    async with opened.transaction() as c:
        for name in stored:
            spec = {"engine": "simulated", "placement": {"strategy": name, "labels": {"zone": "a"}}}
            uid = await c.fetchval(
                "insert into deployments (uid, name, generation, revision, spec)"
                " values (gen_random_uuid(), $1, 1, 1, $2) returning uid", name, spec,
            )  # fmt: skip
            await c.execute(
                "insert into revisions (deployment_uid, generation, spec, input_hash) values ($1, 1, $2, '')", uid, spec
            )
    await migrate(opened)
    async with opened.connection() as c:
        for table in ("deployments d", "revisions r join deployments d on d.uid = r.deployment_uid"):
            column = "r.spec" if table.startswith("r") else "d.spec"
            rows = await c.fetch(f"select d.name, {column} as spec from {table}")  # noqa: S608 - constants, no input
            found = {row["name"]: spec_from_json(row["spec"]).placement for row in rows}
            assert {name: one.strategy for name, one in found.items()} == stored
            assert all(one.labels == {"zone": "a"} for one in found.values())
    await opened.close()
