"""Takes a backup: all tables in one snapshot, while everything continues. Reads only."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from controller.store.backup.archive import FORMAT, BackupWriter, Manifest, Part, writing
from controller.store.backup.tables import Table, UnsuitableSchemaError, dedicated, kept_tables, partitions_of, quoted
from controller.store.core.migrate import known_revisions, read_revision
from schemas.version import __version__

Progress = Callable[[str, int, int], None]  # a table, its rows and bytes
Record = Callable[[Manifest], Awaitable[None]]


async def _nowhere(_manifest: Manifest) -> None:
    pass


async def take_backup(
    dsn: str, path: Path, *, overwrite: bool, progress: Progress, record: Record = _nowhere
) -> Manifest:
    """Writes the database at `dsn` to the file.

    `record` is awaited once all is written, before the file has its name; if it raises there is no file.

    Raises:
        BackupFileError: the file exists or cannot be written.
        UnsuitableSchemaError: the database is empty, or of a newer version.
    """
    async with dedicated(dsn) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        revision = await _revision(connection)
        tables = await kept_tables(connection)
        with writing(path, overwrite=overwrite) as backup:
            parts = [await _take(connection, table, backup, progress) for table in tables]
            manifest = await _manifest(connection, revision, parts)
            backup.manifest(manifest)
            await record(manifest)
    return manifest


async def _take(connection: Any, table: Table, backup: BackupWriter, progress: Progress) -> Part:
    query = f"select {table.listed} from {quoted(table.name)}"  # noqa: S608 - quoted names of the catalog
    with backup.part(table.name) as out:
        status: str = await connection.copy_from_query(query, output=out.write, format="text")
    rows = int(status.rpartition(" ")[2])
    progress(table.name, rows, out.bytes)
    return Part(table=table.name, columns=table.columns, rows=rows, bytes=out.bytes, sha256=out.sha256)


async def _revision(connection: Any) -> str:
    if await connection.fetchval("select to_regclass('alembic_version')") is None:
        raise UnsuitableSchemaError("the database is empty: there is nothing to back up")
    revision = await read_revision(connection)
    if revision not in known_revisions():
        raise UnsuitableSchemaError(
            f"the database is at schema {revision}, which this version does not know; use the newer gpuward"
        )
    return revision


async def _manifest(connection: Any, revision: str, parts: list[Part]) -> Manifest:
    return Manifest(
        format=FORMAT,
        gpuward=__version__,
        postgres=await connection.fetchval("select current_setting('server_version')"),
        schema_revision=revision,
        taken_at=(await connection.fetchval("select clock_timestamp()")).isoformat(),
        term=await connection.fetchval("select term from lease where id = 1"),
        parts=tuple(parts),
        partitions=await partitions_of(connection, [part.table for part in parts]),
    )
