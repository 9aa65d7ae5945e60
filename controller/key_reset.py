"""`gpuward key reset`: makes a new administrator's key on the controller's host, whether or not the controller runs.

Its right is that of the data folder: what may write there can read `client.env` and reach the embedded database.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import structlog

from controller.client_env import FILE_NAME, ClientEnvError, stored_ca, stored_url, write_client_env
from controller.open_database import CannotOpenError, HostCommandError, check_folder, open_as_it_is
from controller.runtime.database import DATABASE_ERRORS
from controller.settings import ControllerSettings
from controller.store.access.keys import create_key
from controller.store.core.database import DatabaseUrlError
from controller.store.core.events import acting
from controller.store.core.server_sessions import describe_dsn
from controller.store.embedded import EmbeddedPostgresError
from schemas.stderr import stderr_logger

KEY_NAME: Final = "reset"


class KeyResetError(Exception):
    """No key was made; the message has the reason and what to do."""


def reset_key(settings: ControllerSettings) -> Path:
    """Makes a key and writes it to `client.env`; returns the file. Other keys stay as they are.

    Raises:
        KeyResetError: the folder or the database cannot be used.
    """
    structlog.configure(  # stdout is for the answer
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=stderr_logger(),
    )
    folder = settings.data_dir.expanduser().resolve()
    try:
        check_folder(folder, external=settings.database_url is not None)
        return asyncio.run(_reset(settings, folder))
    except (CannotOpenError, ClientEnvError, DatabaseUrlError, EmbeddedPostgresError, HostCommandError) as error:
        raise KeyResetError(str(error)) from error


async def _reset(settings: ControllerSettings, folder: Path) -> Path:
    async with AsyncExitStack() as stack:
        database = await open_as_it_is(settings, folder, stack)
        path = folder / FILE_NAME
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
            raise KeyResetError(
                f"the database at {describe_dsn(database.dsn)} did not take the key: {error}; "
                "start the controller once, so that it makes its tables"
            ) from error
        return path
