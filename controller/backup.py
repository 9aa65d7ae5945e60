"""`gpuward backup` and `gpuward restore`: the whole ledger into one file and back, on the controller's host.

A backup is taken while everything runs. A restore needs the controllers stopped; engines run on meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any, TypeVar

import structlog

from controller.open_database import CannotOpenError, HostCommandError, check_folder, open_as_it_is
from controller.runtime.database import DATABASE_ERRORS
from controller.secrets_key import open_keys
from controller.settings import ControllerSettings
from controller.store.access.audit_log import Entry, takes_entries, write_entries
from controller.store.access.sealing import read_sealing
from controller.store.access.secret_keys import SecretsKeyError
from controller.store.access.secrets import unreadable_secrets
from controller.store.backup.archive import BackupFileError, BackupReader, Manifest, reading
from controller.store.backup.restore import (
    ControllerLeadsError,
    NotEmptyError,
    Restored,
    Target,
    check_revision,
    read_target,
    restore,
)
from controller.store.backup.tables import UnsuitableSchemaError, dedicated
from controller.store.backup.take import take_backup
from controller.store.core.database import DatabaseUrlError
from controller.store.core.events import acting
from controller.store.core.migrate import UnsuitableEncodingError
from controller.store.core.server_sessions import describe_dsn
from controller.store.embedded import EmbeddedPostgresError
from schemas.stderr import stderr_logger

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # a table, its rows and bytes
Agree = Callable[[Manifest, Target, str], bool]  # the backup, what it replaces, and where that is

_REFUSED = (
    BackupFileError,
    CannotOpenError,
    ControllerLeadsError,
    DatabaseUrlError,
    EmbeddedPostgresError,
    HostCommandError,
    NotEmptyError,
    SecretsKeyError,
    UnsuitableEncodingError,
    UnsuitableSchemaError,
)


class BackupError(Exception):
    """Nothing was written or changed; the message has the reason and what to do."""


def back_up(settings: ControllerSettings, path: Path, *, overwrite: bool, progress: Progress) -> Manifest:
    """Writes a backup of the controller's database; returns what it holds.

    Raises:
        BackupError: it cannot be taken.
    """

    async def take(folder: Path, stack: AsyncExitStack) -> Manifest:
        check_folder(folder, external=settings.database_url is not None)
        database = await open_as_it_is(settings, folder, stack)

        async def record(manifest: Manifest) -> None:
            async with database.connection() as connection:
                if await takes_entries(connection):
                    await write_entries(connection, [Entry("host", "backup", "done", f"backups/{manifest.taken_at}")])

        return await take_backup(database.dsn, path, overwrite=overwrite, progress=progress, record=record)

    return _run(settings, take)


def put_back(
    settings: ControllerSettings, path: Path, *, replace: bool, revoke_keys: bool, agree: Agree, progress: Progress
) -> Restored | None:
    """Restores a backup into the controller's database; None: `agree`, which is asked before anything changes, did not.

    Raises:
        BackupError: it cannot be restored; nothing has changed.
    """

    async def put(folder: Path, stack: AsyncExitStack) -> Restored | None:
        backup: BackupReader = stack.enter_context(reading(path))
        check_revision(backup)
        backup.verify()
        keys = open_keys(settings, make=False)  # before anything changes
        database = await open_as_it_is(settings, folder, stack)
        async with dedicated(database.dsn) as connection:
            target = await read_target(connection)
        if target.tables and not replace:
            raise NotEmptyError(
                f"the database at {describe_dsn(database.dsn)} is not empty: it holds {target.holds}; "
                "add --replace to replace all of it"
            )
        if not agree(backup.manifest, target, describe_dsn(database.dsn)):
            return None
        with acting("host"):
            restored = await restore(database.dsn, backup, replace=replace, revoke_keys=revoke_keys, progress=progress)
        async with dedicated(database.dsn) as connection:
            unreadable = await unreadable_secrets(connection, keys)
            receipts = (await read_sealing(connection, keys)).receipts_unreadable
        return replace_field(restored, unreadable_secrets=tuple(unreadable), receipts_unreadable=receipts)

    return _run(settings, put)


def _run(settings: ControllerSettings, work: Callable[[Path, AsyncExitStack], Coroutine[Any, Any, T]]) -> T:
    structlog.configure(  # stdout is for the answer
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=stderr_logger(),
    )

    async def run() -> T:
        async with AsyncExitStack() as stack:
            return await work(settings.data_dir.expanduser().resolve(), stack)

    try:
        return asyncio.run(run())
    except _REFUSED as error:
        raise BackupError(str(error)) from error
    except DATABASE_ERRORS as error:
        why = str(error) or type(error).__name__
        raise BackupError(f"the database failed, and nothing was changed: {why}") from error
