"""Commands on the controller's host that need its database: `gpuward backup`, `gpuward restore`, `gpuward key reset`.

Backups and new keys work while everything runs. A restore needs stopped controllers; engines continue to run. The right
to run these commands is that of the data folder: an account that may write there can read `client.env` and reach the
embedded database.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace as replace_field
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from controller.client_env import FILE_NAME, ClientEnvError, stored_ca, stored_url, write_client_env
from controller.open_database import OPENING_ERRORS, CannotOpenError, reason_to_end
from controller.runtime.database import DATABASE_ERRORS
from controller.secrets_key import open_keys
from controller.settings import ControllerSettings
from controller.store.access.audit_log import Entry, takes_entries, write_entries
from controller.store.access.keys import create_key
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
from controller.store.core.database import Database, DatabaseUrlError, normalise_dsn
from controller.store.core.events import acting
from controller.store.core.migrate import UnsuitableEncodingError
from controller.store.core.server_sessions import describe_dsn
from controller.store.embedded import EmbeddedPostgres, EmbeddedPostgresError
from controller.store.embedded.accounts import name_of
from controller.store.embedded.layout import Layout
from schemas.stderr import stderr_logger

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # a table, its rows and bytes
Agree = Callable[[Manifest, Target, str], bool]  # the backup, the data that it replaces, and the database
KEY_NAME: Final = "reset"
_CONNECT_S: Final = 10.0


class HostCommandError(Exception):
    """The command cannot be carried out, and nothing was changed. The message has the reason and what to do."""


_REFUSED = (
    BackupFileError,
    CannotOpenError,
    ClientEnvError,
    ControllerLeadsError,
    DatabaseUrlError,
    EmbeddedPostgresError,
    NotEmptyError,
    SecretsKeyError,
    UnsuitableEncodingError,
    UnsuitableSchemaError,
)


def back_up(settings: ControllerSettings, path: Path, *, overwrite: bool, progress: Progress) -> Manifest:
    """Writes a backup of the controller's database. Raises HostCommandError if it cannot be taken."""

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
    """Restores a backup into the controller's database. Calls `agree` before any change; None if that returns False.

    Raises:
        HostCommandError: it cannot be restored; nothing has changed.
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


def reset_key(settings: ControllerSettings) -> Path:
    """Writes a new administrator's key to `client.env`; returns that file. Raises HostCommandError if it cannot."""

    async def reset(folder: Path, stack: AsyncExitStack) -> Path:
        check_folder(folder, external=settings.database_url is not None)
        database = await open_as_it_is(settings, folder, stack)
        url = stored_url(folder) or f"http://127.0.0.1:{settings.port}"
        try:
            with acting("host"):
                await create_key(
                    database,
                    "admin",
                    name=KEY_NAME,
                    keep=lambda key: write_client_env(folder, url, key, stored_ca(folder)),
                    action="key.reset",
                )
        except DATABASE_ERRORS as error:
            raise HostCommandError(
                f"the database at {describe_dsn(database.dsn)} did not take the key: {error}; "
                "start the controller once, so that it makes its tables"
            ) from error
        return folder / FILE_NAME

    return _run(settings, reset)


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
        raise HostCommandError(str(error)) from error
    except DATABASE_ERRORS as error:
        why = str(error) or type(error).__name__
        raise HostCommandError(f"the database failed, and nothing was changed: {why}") from error


def check_folder(folder: Path, *, external: bool) -> None:
    """Raises HostCommandError if the folder is not a controller's, or this account may not write there."""
    if not (folder / FILE_NAME).exists() and (external or not (folder / "postgres").exists()):
        raise HostCommandError(
            f"--data-dir: {folder} is not the data folder of a controller; name the one that your controller uses"
        )
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise HostCommandError(f"--data-dir: {folder} belongs to {name_of(owner)}; run this command as that account")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise HostCommandError(f"--data-dir: {folder} is not writable")


async def open_as_it_is(settings: ControllerSettings, folder: Path, stack: AsyncExitStack) -> Database:
    """Opens the database without migrating it: an external server, the running controller's, or an embedded one.

    Raises:
        CannotOpenError: it does not answer.
        DatabaseUrlError: the URL is not a PostgreSQL URL.
        EmbeddedPostgresError: the embedded server cannot run.
    """
    if settings.database_url is not None:
        dsn = normalise_dsn(settings.database_url.get_secret_value())
    else:
        dsn = Layout(folder).url("postgresql")
    try:
        database = await _connect(dsn)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        if settings.database_url is not None:
            raise _unreachable(dsn, error) from error
        await stack.enter_async_context(EmbeddedPostgres(folder))  # no controller runs
        database = await _connect(dsn)
    except OPENING_ERRORS as error:
        raise _unreachable(dsn, error) from error
    stack.push_async_callback(database.close)
    return database


async def _connect(dsn: str) -> Database:
    async with asyncio.timeout(_CONNECT_S):
        return await Database.open(dsn, pool_size=1)


def _unreachable(dsn: str, error: Exception) -> CannotOpenError:
    why = str(error) or type(error).__name__
    return CannotOpenError(
        reason_to_end(error, dsn)
        or f"the database at {describe_dsn(dsn)} does not answer: {why}; check GPUWARD_DATABASE_URL"
    )
