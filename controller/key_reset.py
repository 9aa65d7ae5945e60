"""`gpuward key reset`: makes a new administrator's key on the controller's host, whether or not the controller runs.

Its right is that of the data folder: what may write there can read `client.env` and reach the embedded database.
"""

import asyncio
import logging
import os
import pwd
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog

from controller.client_env import FILE_NAME, ClientEnvError, stored_ca, stored_url, write_client_env
from controller.open_database import OPENING_ERRORS, CannotOpenError, reason_to_end
from controller.runtime.database import DATABASE_ERRORS
from controller.settings import ControllerSettings
from controller.store.access.keys import create_key
from controller.store.core.acting import acting
from controller.store.core.database import Database, DatabaseUrlError, describe_dsn, normalise_dsn
from controller.store.embedded import EmbeddedPostgres, EmbeddedPostgresError
from controller.store.embedded.layout import Layout

KEY_NAME: Final = "reset"
_CONNECT_S: Final = 10.0


class KeyResetError(Exception):
    """No key was made; the message says why and what to do."""


def reset_key(settings: ControllerSettings) -> Path:
    """Makes a key and writes it to `client.env`; returns the file. Other keys stay as they are.

    Raises:
        KeyResetError: the folder or the database cannot be used.
    """
    structlog.configure(  # stdout is for the answer
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    folder = settings.data_dir.expanduser().resolve()
    _check_folder(folder, external=settings.database_url is not None)
    try:
        return asyncio.run(_reset(settings, folder))
    except (CannotOpenError, ClientEnvError, DatabaseUrlError, EmbeddedPostgresError) as error:
        raise KeyResetError(str(error)) from error


def _check_folder(folder: Path, *, external: bool) -> None:
    """Refuses a folder that is not the controller's, before anything is made in it."""
    if not (folder / FILE_NAME).exists() and (external or not (folder / "postgres").exists()):
        raise KeyResetError(
            f"--data-dir: {folder} is not the data folder of a controller; name the one that your controller uses"
        )
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise KeyResetError(f"--data-dir: {folder} belongs to {_account(owner)}; run this command as that account")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KeyResetError(f"--data-dir: {folder} is not writable")


async def _reset(settings: ControllerSettings, folder: Path) -> Path:
    async with AsyncExitStack() as stack:
        database = await _open(settings, folder, stack)
        path = folder / FILE_NAME
        url = stored_url(folder) or f"http://127.0.0.1:{settings.port}"
        try:
            with acting("host"):
                await create_key(
                    database,
                    "admin",
                    name=KEY_NAME,
                    keep=lambda key: write_client_env(folder, url, key, stored_ca(folder)),
                )
        except DATABASE_ERRORS as error:
            raise KeyResetError(
                f"the database at {describe_dsn(database.dsn)} did not take the key: {error}; "
                "start the controller once, so that it makes its tables"
            ) from error
        return path


async def _open(settings: ControllerSettings, folder: Path, stack: AsyncExitStack) -> Database:
    """The database as it is: external, embedded and served by the running controller, or embedded and started here."""
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
