"""The controller's database for commands on its host, which work whether or not a controller runs."""

import asyncio
import os
import pwd
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from controller.client_env import FILE_NAME
from controller.open_database import OPENING_ERRORS, CannotOpenError, reason_to_end
from controller.settings import ControllerSettings
from controller.store.core.database import Database, normalise_dsn
from controller.store.core.server_sessions import describe_dsn
from controller.store.embedded import EmbeddedPostgres
from controller.store.embedded.layout import Layout

_CONNECT_S: Final = 10.0


class HostCommandError(Exception):
    """The command cannot be carried out; the message says why and what to do."""


def check_folder(folder: Path, *, external: bool) -> None:
    """Refuses a folder that is not the controller's, before anything is made in it.

    Raises:
        HostCommandError: it is not, or this account may not write there.
    """
    if not (folder / FILE_NAME).exists() and (external or not (folder / "postgres").exists()):
        raise HostCommandError(
            f"--data-dir: {folder} is not the data folder of a controller; name the one that your controller uses"
        )
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise HostCommandError(f"--data-dir: {folder} belongs to {_account(owner)}; run this command as that account")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise HostCommandError(f"--data-dir: {folder} is not writable")


async def open_as_it_is(settings: ControllerSettings, folder: Path, stack: AsyncExitStack) -> Database:
    """The database, not migrated: external, embedded and served by the running controller, or embedded, started here.

    Raises:
        CannotOpenError: it does not answer.
        DatabaseUrlError: the URL is not one of PostgreSQL.
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


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user id {uid}"
