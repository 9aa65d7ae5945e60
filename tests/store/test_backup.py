"""Backup and restore of the ledger: whole, of one moment, and refused before anything changes."""

import asyncio
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from controller import host_commands as host_backup
from controller.settings import ControllerSettings
from controller.store.access.audit_log import takes_entries
from controller.store.backup.archive import BackupFileError, Manifest, reading
from controller.store.backup.restore import ControllerLeadsError, NotEmptyError, Restored, restore
from controller.store.backup.tables import UnsuitableSchemaError, dedicated, load_order
from controller.store.backup.take import take_backup
from controller.store.core.database import Database
from controller.store.core.ledger_audit import audit
from controller.store.core.migrate import head_revision, read_revision
from controller.store.telemetry.partitions import SampleRetention, make_partitions
from support.database.ledger import add_deployment, add_host, add_instance, claim
from support.database.migrated import migrate_to
from support.database.postgres import PostgresServer, create_database, drop_database

GIB = 1024
OLD = "0022"


def silent(_table: str, _rows: int, _size: int) -> None:
    return


async def back_up(db: Database, path: Path, *, overwrite: bool = False) -> Manifest:
    return await take_backup(db.dsn, path, overwrite=overwrite, progress=silent)


async def put_back(dsn: str, path: Path, *, replace: bool = False, revoke_keys: bool = False) -> Restored:
    with reading(path) as backup:
        backup.verify()
        return await restore(dsn, backup, replace=replace, revoke_keys=revoke_keys, progress=silent)


async def value(dsn: str, query: str) -> Any:
    async with dedicated(dsn) as connection:
        return await connection.fetchval(query)


@pytest.fixture
async def ledger(migrated: Database) -> Database:
    """A running instance with a claim, a key, an unused join token, and a minute of history."""
    db = migrated
    host = await add_host(db, "gpu-1", gpus=2)
    uid = await add_deployment(db, "chat")
    await add_instance(db, uid, "chat-1", phase="running", epoch=3)
    await claim(db, host.gpus[0], "chat-1", 16 * GIB, epoch=3)
    await claim(db, f"host-{host.id}", "chat-1", 0, epoch=3)
    async with db.transaction() as c:
        await make_partitions(c, SampleRetention(samples_h=8, history_days=2))
        await c.execute(
            """insert into api_keys (id, name, role, hash) values (gen_random_uuid(), E'a\tb\\\\c\n', 'admin', 'x')"""
        )
        await c.execute(
            """insert into join_tokens (id, hash, expires_at) values (gen_random_uuid(), 'y', now() + interval '1 h')"""
        )
        await c.execute(
            """insert into sample_minutes (minute, device, mean, max, samples, covered_s)
               values (date_trunc('minute', now()), $1, 1, 2, 6, 60)""",
            host.gpus[0],
        )
        await c.execute("update lease set term = 7, holder = 'one'")
        await c.execute("insert into events (reason, message, objects) values ('test', 'hello', '{}')")
    return db


@pytest.fixture
async def empty(postgres: PostgresServer) -> AsyncIterator[str]:
    dsn = await create_database(postgres)
    yield dsn
    await drop_database(postgres, dsn)


async def rows_of(dsn: str, manifest: Manifest) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async with dedicated(dsn) as connection:
        for part in manifest.parts:
            columns = ", ".join(f'"{column}"' for column in part.columns)
            rows = await connection.fetch(f'select row({columns})::text as r from "{part.table}"')  # noqa: S608
            found[part.table] = sorted(row["r"] for row in rows)
    return found


CHANGED = {"lease", "join_tokens", "events", "worker_liveness", "audit_log"}  # see `restored_state`


async def test_what_comes_back_is_what_was_there(ledger: Database, empty: str, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    manifest = await back_up(ledger, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["b.zip"]  # noqa: ASYNC240 - a moment
    assert (manifest.term, manifest.schema_revision) == (7, head_revision())
    kept = {part.table for part in manifest.parts}
    assert {"deployments", "claims", "secrets", "sample_minutes", "api_keys"} <= kept
    assert not kept & {"samples", "browser_sessions", "gateway_demand", "queue_places"}
    restored = await put_back(empty, file)
    assert (restored.deployments, restored.instances, restored.workers, restored.valid_keys) == (1, 1, 1, 1)
    before, after = await rows_of(ledger.dsn, manifest), await rows_of(empty, manifest)
    assert {t: r for t, r in before.items() if t not in CHANGED} == {t: r for t, r in after.items() if t not in CHANGED}
    async with dedicated(empty) as connection:
        lease = await connection.fetchrow("select * from lease")
        assert (lease["term"], lease["holder"], lease["settled_at"]) == (7, "", None)
        assert lease["cut_at"] is not None
        # Triggers work again, and counted nothing twice.
        assert await connection.fetchval("select sum(claimed_mib) from devices") == 16 * GIB
        await connection.execute("delete from claims")
        assert await connection.fetchval("select sum(claimed_mib) from devices") == 0
        # New numbers do not repeat those of the lost history.
        last = await connection.fetchval("select max(id) from events")
        new = "insert into events (reason, message, objects) values ('x', 'x', '{}') returning id"
        assert await connection.fetchval(new) > last >= 1
        assert await connection.fetchval("select max(id) from events") >= 1_000_000


async def test_what_may_be_outdated_does_not_come_back(ledger: Database, empty: str, tmp_path: Path) -> None:
    async with ledger.transaction() as c:
        await c.execute(
            "insert into webhook_deliveries (id, url, secret, payload) values (gen_random_uuid(), 'u', 's', 'p')"
        )
    await back_up(ledger, tmp_path / "b.zip")
    restored = await put_back(empty, tmp_path / "b.zip", revoke_keys=True)
    assert (restored.revoked_tokens, restored.dropped_webhooks, restored.revoked_keys) == (1, 1, 1)
    assert restored.valid_keys == 0
    assert await value(empty, "select count(*) from join_tokens where revoked_at is null") == 0
    assert await value(empty, "select count(*) from webhook_deliveries where finished_at is null") == 0
    assert await value(empty, "select reason from events order by id desc limit 1") == "restored"


async def test_a_backup_is_of_one_moment(ledger: Database, empty: str, tmp_path: Path) -> None:
    """Claims and devices are written all the time; in the backup they agree."""
    stop = asyncio.Event()

    async def write() -> int:
        n = 0
        device = await value(ledger.dsn, "select min(uuid) from devices where kind = 'gpu' and claims = 0")
        while not stop.is_set():
            async with ledger.transaction() as c:
                await c.execute("delete from claims where device = $1", device)
                await c.execute(
                    "insert into claims (device, instance_id, epoch, memory_mib) values ($1, 'chat-1', 3, $2)",
                    device,
                    1 + n % 1000,
                )
            n += 1
        return n

    writing = asyncio.create_task(write())
    for n in range(5):
        await back_up(ledger, tmp_path / f"{n}.zip")
    stop.set()
    assert await writing > 5
    await put_back(empty, tmp_path / "3.zip")
    mismatch = """select count(*) from devices d where claimed_mib <>
                  (select coalesce(sum(memory_mib), 0) from claims c where c.device = d.uuid)"""
    assert await value(empty, mismatch) == 0


@pytest.mark.parametrize("harm", ["cut", "flip a byte of a table", "flip a byte of the manifest", "other", "empty"])
async def test_a_damaged_file_changes_nothing(ledger: Database, empty: str, tmp_path: Path, harm: str) -> None:
    file = tmp_path / "b.zip"
    await back_up(ledger, file)
    data = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as whole:
        named = "tables/devices.copy" if harm == "flip a byte of a table" else "manifest.json"
        at = whole.getinfo(named).header_offset + 30 + len(named) + 40
    match harm:
        case "cut":
            data = data[: len(data) // 2]
        case "other":
            data = bytearray(b"not a backup")
        case "empty":
            data = bytearray()
        case _:
            data[at] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(BackupFileError, match="damaged"):
        await put_back(empty, file)
    assert await value(empty, "select count(*) from pg_class where relname = 'lease'") == 0


async def test_refusals_leave_the_database_as_it_is(ledger: Database, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    await back_up(ledger, file)
    with pytest.raises(BackupFileError, match="exists"):
        await back_up(ledger, file)
    with pytest.raises(NotEmptyError, match="1 deployments, 1 workers, 1 keys"):
        await put_back(ledger.dsn, file)
    async with ledger.transaction() as c:
        await c.execute("update lease set renewed_at = clock_timestamp()")
    with pytest.raises(ControllerLeadsError, match="one"):
        await put_back(ledger.dsn, file, replace=True)
    async with ledger.transaction() as c:
        await c.execute("update lease set renewed_at = '-infinity'")
        await c.execute("update deployments set name = 'later'")
    await put_back(ledger.dsn, file, replace=True)
    assert await value(ledger.dsn, "select name from deployments") == "chat"


async def test_a_ledger_that_broke_an_invariant_comes_back_and_says_so(
    ledger: Database, empty: str, tmp_path: Path
) -> None:
    """Even then it is the only backup, and must come back."""
    async with ledger.transaction() as c:
        await c.execute("update devices set claimed_mib = claimed_mib + 1 where kind = 'gpu' and claims = 1")
    await back_up(ledger, tmp_path / "b.zip")
    restored = await put_back(empty, tmp_path / "b.zip")
    assert len(restored.violations) == 1
    assert "claimed_mib" in restored.violations[0]


async def test_an_older_backup_is_migrated_and_a_newer_one_refused(
    ledger: Database, empty: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.zip"
    await migrate_to(database, OLD)
    async with dedicated(database) as connection:
        await connection.execute("update lease set term = 5")
    taken = await take_backup(database, file, overwrite=False, progress=silent)
    assert (taken.schema_revision, taken.term) == (OLD, 5)
    await put_back(empty, file)
    async with dedicated(empty) as connection:
        assert await read_revision(connection) == head_revision()
        assert await connection.fetchval("select term from lease where settled_at is null") == 5
        assert (await audit(connection)).ok
    async with ledger.transaction() as c:
        await c.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(UnsuitableSchemaError, match="9999"):
        await back_up(ledger, tmp_path / "newer.zip")
    monkeypatch.setattr("controller.store.backup.restore.known_revisions", lambda: frozenset({"0021"}))
    with pytest.raises(UnsuitableSchemaError, match="newer"):
        await put_back(empty, file, replace=True)


def test_tables_are_loaded_after_those_that_they_refer_to() -> None:
    assert list(load_order({"b": {"a"}, "a": set(), "c": {"a", "b"}})) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="circle"):
        load_order({"a": {"b"}, "b": {"a"}})


@pytest.fixture
def log_settings() -> Iterator[None]:
    """Puts back what a verb sets for its process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("log_settings")
async def test_backup_and_restore_leave_entries(ledger: Database, empty: str, tmp_path: Path) -> None:
    """Of the commands themselves: the file that is restored names the one that was taken."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "client.env").touch()
    settings = ControllerSettings(data_dir=folder, database_url=SecretStr(ledger.dsn))
    file = tmp_path / "b.zip"
    manifest = await asyncio.to_thread(host_backup.back_up, settings, file, overwrite=False, progress=silent)
    entry = "select action || ' ' || object from audit_log where actor = 'host' order by id desc limit 1"
    assert await value(ledger.dsn, entry) == f"backup backups/{manifest.taken_at}"
    await put_back(empty, file)
    assert await value(empty, entry) == f"restore backups/{manifest.taken_at}"
    async with dedicated(ledger.dsn) as connection:
        await connection.execute("drop table audit_log")  # as before it was there
    await asyncio.to_thread(host_backup.back_up, settings, file, overwrite=True, progress=silent)


async def test_a_database_that_may_only_be_read_is_asked_for_no_entry(ledger: Database) -> None:
    async with dedicated(ledger.dsn) as connection:
        assert await takes_entries(connection)
        await connection.execute("set default_transaction_read_only = on")
        assert not await takes_entries(connection)  # as on a standby
