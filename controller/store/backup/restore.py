"""Restores a backup in one transaction, which also migrates it: it takes effect completely or not at all."""

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from dataclasses import replace as replace_field
from typing import Any, Final

import asyncpg
import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from controller.store.access.audit_log import Entry, write_entries
from controller.store.backup.archive import BackupReader, Part
from controller.store.backup.tables import UNBOUNDED, UnsuitableSchemaError, quoted
from controller.store.core.ledger_audit import audit
from controller.store.core.migrate import LOCK_KEY, known_revisions, upgrade
from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S

# No controller leads; agents first report what runs.
_LEASE: Final = """
    update lease set holder = '', renewed_at = '-infinity', cut_at = clock_timestamp(), settled_at = null,
           timeline = null
     where id = 1"""
# Transaction ids are of this server alone.
_ROLLUPS: Final = """
    insert into rollup_progress (horizon, at) values (pg_current_xact_id(), now())
        on conflict (id) do update set horizon = excluded.horizon, at = excluded.at"""
_DISCONNECTED: Final = "update worker_liveness set connected = false"
# An agent may report the highest term that it knows after each restore.
_WORKERS: Final = "update workers set above_at = null"
# A token that was used since then would be valid again.
_TOKENS: Final = """
    update join_tokens set revoked_at = clock_timestamp()
     where used_at is null and revoked_at is null and expires_at > clock_timestamp() returning 1"""
# They may have been delivered since then.
_WEBHOOKS: Final = """
    update webhook_deliveries set finished_at = clock_timestamp(), error = 'not sent: a backup was restored'
     where finished_at is null returning 1"""
_REVOKE_KEYS: Final = "update api_keys set revoked_at = clock_timestamp() where revoked_at is null returning 1"
_KEYS: Final = "select count(*)::int from api_keys where revoked_at is null"
_COUNTS: Final = """
    select (select count(*) from deployments where deleted_at is null)::int as deployments,
           (select count(*) from instances)::int as instances,
           (select count(*) from workers where deleted_at is null)::int as workers"""
_EVENT: Final = """
    insert into events (reason, message, evidence, objects, actor, request_id, subjects)
    values ('restored', 'a backup was restored: what changed since it was taken is lost', $1::text::jsonb,
            '{controller:restore}', 'host', '', event_subjects('{controller:restore}', $1::text::jsonb))"""
Progress = Callable[[str, int, int], None]  # a table, its rows and bytes
_OBJECTS: Final = """
    select count(*)::int from pg_class c
     where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p') and not c.relispartition"""
_IN_USE: Final = """
    select (select count(*) from deployments)::int as deployments, (select count(*) from workers)::int as workers,
           (select count(*) from api_keys)::int as keys"""
_LEADER: Final = """
    select holder from lease
     where id = 1 and renewed_at between clock_timestamp() - ttl_s * interval '1 second'
                                     and clock_timestamp() + ttl_s * interval '1 second'"""
# Objects of a schema's owner; those of extensions stay.
_TO_DROP: Final = """
    select format('drop table if exists %I.%I cascade', n.nspname, c.relname) as statement
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = current_schema() and c.relkind in ('r', 'p') and not c.relispartition
       and not exists (select 1 from pg_depend d where d.objid = c.oid and d.deptype = 'e')
    union all
    select format('drop routine if exists %s cascade', p.oid::regprocedure)
      from pg_proc p
     where p.pronamespace = current_schema()::regnamespace
       and not exists (select 1 from pg_depend d where d.objid = p.oid and d.deptype = 'e')"""
_SEQUENCES: Final = """
    select a.attrelid::regclass::text as "table", a.attname::text as "column",
           pg_get_serial_sequence(quote_ident(c.relname), a.attname) as sequence
      from pg_attribute a join pg_class c on c.oid = a.attrelid
     where c.relnamespace = current_schema()::regnamespace and a.attidentity <> '' and c.relkind in ('r', 'p')"""
# Numbers that the lost history may have given out are not given out again.
_GAP: Final = 1_000_000
_BOUNDS: Final = re.compile(r"FOR VALUES FROM \('[0-9 :+.-]+'\) TO \('[0-9 :+.-]+'\)")


@dataclass(frozen=True, slots=True)
class Restored:
    """Counts of restored objects, and of those that were ended because they may be outdated."""

    deployments: int
    instances: int
    workers: int
    valid_keys: int
    revoked_keys: int
    revoked_tokens: int
    dropped_webhooks: int
    violations: tuple[str, ...] = ()  # violated invariants of the ledger, as they were in the backup
    unreadable_secrets: tuple[str, ...] = ()  # that no key of this host opens
    receipts_unreadable: bool = False  # so engines that the backup does not know cannot be taken back


async def make_current(connection: Any, *, revoke_keys: bool) -> Restored:
    """Ends objects that must not return with an old state. In the transaction of the restore."""
    for statement in (_LEASE, _ROLLUPS, _DISCONNECTED, _WORKERS):
        await connection.execute(statement)
    tokens = len(await connection.fetch(_TOKENS))
    webhooks = len(await connection.fetch(_WEBHOOKS))
    revoked = len(await connection.fetch(_REVOKE_KEYS)) if revoke_keys else 0
    counts = dict(await connection.fetchrow(_COUNTS))
    restored = Restored(
        **counts,
        valid_keys=await connection.fetchval(_KEYS),
        revoked_keys=revoked,
        revoked_tokens=tokens,
        dropped_webhooks=webhooks,
    )
    await connection.execute(_EVENT, orjson.dumps(counts).decode())
    return restored


class ControllerLeadsError(Exception):
    """A controller leads on this database; the message names it."""


class NotEmptyError(Exception):
    """The database is not empty, and may not be replaced; the message names its contents."""


@dataclass(frozen=True, slots=True)
class Target:
    """The contents that a restore would replace. `tables` 0: the database is empty."""

    tables: int
    deployments: int = 0
    workers: int = 0
    keys: int = 0

    @property
    def holds(self) -> str:
        return f"{self.deployments} deployments, {self.workers} workers, {self.keys} keys ({self.tables} tables)"


async def read_target(connection: Any) -> Target:
    """The contents of the database.

    Raises:
        ControllerLeadsError: a controller leads on it.
    """
    tables = await connection.fetchval(_OBJECTS)
    if tables == 0:
        return Target(0)
    if await connection.fetchval("select to_regclass('lease') is null or to_regclass('api_keys') is null"):
        return Target(tables)
    if (holder := await connection.fetchval(_LEADER)) is not None:
        raise ControllerLeadsError(
            f"a controller leads on this database ({holder}): stop all controllers and gateways first; "
            "one that was killed is out of the way after 10 seconds"
        )
    return Target(tables, **dict(await connection.fetchrow(_IN_USE)))


def check_revision(backup: BackupReader) -> None:
    """Refuses a backup of a newer version.

    Raises:
        UnsuitableSchemaError: its schema is not known here.
    """
    revision = backup.manifest.schema_revision
    if revision not in known_revisions():
        raise UnsuitableSchemaError(
            f"the backup was taken by gpuward {backup.manifest.gpuward}, at schema {revision}, which this version does "
            "not know; restore it with that version or a newer one"
        )


async def restore(dsn: str, backup: BackupReader, *, replace: bool, revoke_keys: bool, progress: Progress) -> Restored:
    """Replaces the contents of the database by the backup, which must be verified.

    Raises:
        ControllerLeadsError: a controller leads on it.
        NotEmptyError: it is not empty, and `replace` is false.
        UnsuitableSchemaError: the backup is of a newer version.
        UnsuitableEncodingError: the database's encoding is not UTF8.
        BackupFileError: the file has changed since it was verified.
    """
    check_revision(backup)

    async def connect() -> Any:
        connection = await asyncpg.connect(dsn, timeout=ACQUIRE_TIMEOUT_S)
        await connection.execute(UNBOUNDED)
        return connection

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    try:
        async with engine.begin() as session:
            raw: Any = (await session.get_raw_connection()).driver_connection
            await session.execute(text("select pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})  # begins, too
            await _clear(raw, replace=replace)
            await session.run_sync(upgrade, backup.manifest.schema_revision)
            await _load(raw, backup, progress)
            await session.run_sync(upgrade, "head")
            restored = await make_current(raw, revoke_keys=revoke_keys)
            await write_entries(raw, [Entry("host", "restore", "done", f"backups/{backup.manifest.taken_at}")])
            violations = (await audit(raw)).violations
    finally:
        await engine.dispose()
    return replace_field(restored, violations=tuple(violation.message for violation in violations))


async def _clear(connection: Any, *, replace: bool) -> None:
    """Drops everything, so that the migrations start with an empty schema."""
    target = await read_target(connection)
    if target.tables == 0:
        return
    if not replace:
        raise NotEmptyError(f"the database is not empty: it holds {target.holds}; add --replace to replace all of it")
    if await connection.fetchval("select to_regclass('lease') is not null"):
        await connection.execute("lock table lease in access exclusive mode")
        await read_target(connection)  # again: a controller may have started to lead
    for row in await connection.fetch(_TO_DROP):
        await connection.execute(row["statement"])


async def _load(connection: Any, backup: BackupReader, progress: Progress) -> None:
    manifest = backup.manifest
    for partition in manifest.partitions:
        await connection.execute(
            f"create table {quoted(partition.name)} partition of {quoted(partition.table)} {_bounds(partition.bounds)}"
        )
    for part in manifest.parts:
        table = quoted(part.table)
        # The rows already contain the results of triggers.
        await connection.execute(f"alter table {table} disable trigger user")
        await connection.execute(f"delete from {table}")  # noqa: S608 - quoted; migrations make some rows
        status = await connection.copy_to_table(
            part.table, source=_chunks(backup, part), columns=part.columns, format="text"
        )
        await connection.execute(f"alter table {table} enable trigger user")
        progress(part.table, int(status.rpartition(" ")[2]), part.bytes)
    for row in await connection.fetch(_SEQUENCES):
        await connection.execute(
            f"select setval($1::text::regclass, coalesce(max({quoted(row['column'])}), 0) + {_GAP}) "  # noqa: S608
            f"from {row['table']}",
            row["sequence"],
        )


async def _chunks(backup: BackupReader, part: Part) -> AsyncIterator[bytes]:
    for chunk in backup.chunks(part):
        yield chunk


def _bounds(text: str) -> str:
    """Bounds of a partition as the catalog prints them; raises UnsuitableSchemaError for any other SQL in the file."""
    if not _BOUNDS.fullmatch(text):
        raise UnsuitableSchemaError(f"the backup names a partition with unknown bounds: {text!r}")
    return text
