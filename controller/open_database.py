"""Opens and migrates the database at the start: waits where that can help, else ends at once with the reason."""

import asyncio
import os
import pwd
import random
import ssl
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import asyncpg
import structlog

from controller.client_env import FILE_NAME
from controller.runtime.database import DATABASE_ERRORS, is_database_trouble
from controller.settings import ControllerSettings
from controller.store.core.database import Database, normalise_dsn
from controller.store.core.migrate import migrate
from controller.store.core.server_sessions import PoolerError, describe_dsn
from controller.store.embedded import EmbeddedPostgres
from controller.store.embedded.layout import Layout

log = structlog.get_logger(__name__)
WAIT_S: Final = 60.0
OLDEST_MAJOR: Final = 15
_LOG_EVERY_S: Final = 10.0
_CONNECT_S: Final = 5.0
_PAUSE_S: Final = (0.2, 1.0)
# ValueError: of a malformed URL.
OPENING_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, ValueError)
_HOST_CONNECT_S: Final = 10.0


class CannotOpenError(Exception):
    """The database cannot be used; the message has the reason and what to do."""


async def open_database(settings: ControllerSettings, stack: AsyncExitStack) -> Database:
    """The migrated database: the embedded server or an external one. The stack closes what was opened.

    Raises:
        CannotOpenError: waiting does not help, or did not help within `WAIT_S`.
        DatabaseUrlError: the URL is not one of PostgreSQL.
        EmbeddedPostgresError: the embedded server cannot run.
        SchemaTooNewError: a newer version has migrated the database.
        UnsuitableEncodingError: it cannot hold text of all languages.
    """
    if settings.database_url is None:
        dsn = (await stack.enter_async_context(EmbeddedPostgres(settings.data_dir))).dsn
    else:
        dsn = normalise_dsn(settings.database_url.get_secret_value())
    database = await _await_database(dsn)
    stack.push_async_callback(database.close)
    return database


async def _await_database(dsn: str) -> Database:
    loop = asyncio.get_running_loop()
    began = loop.time()
    logged = float("-inf")
    while True:
        try:
            return await _open(dsn)
        except OPENING_ERRORS as error:
            waited_s = loop.time() - began
            reason = reason_to_end(error, dsn)
            why = str(error) or type(error).__name__
            if reason is not None:
                raise CannotOpenError(reason) from error
            if waited_s >= WAIT_S:
                raise CannotOpenError(
                    f"the database at {describe_dsn(dsn)} did not answer within {WAIT_S:g} s: {why}; "
                    "check GPUWARD_DATABASE_URL and that the server runs"
                ) from error
            if loop.time() - logged >= _LOG_EVERY_S:
                logged = loop.time()
                log.warning("waiting for the database", at=describe_dsn(dsn), waited_s=round(waited_s, 1), error=why)
        await asyncio.sleep(random.uniform(*_PAUSE_S))  # noqa: S311 - spreads the attempts of several controllers


async def _open(dsn: str) -> Database:
    async with asyncio.timeout(_CONNECT_S):
        database = await Database.open(dsn)
    try:
        await _check_version(database)
        await migrate(database)
    except asyncio.CancelledError:
        await database.abandon()
        raise
    except BaseException:
        await database.close()
        raise
    return database


async def _check_version(database: Database) -> None:
    async with database.connection() as connection:
        major = connection.get_server_version().major
    if major < OLDEST_MAJOR:
        raise CannotOpenError(
            f"the database at {describe_dsn(database.dsn)} is PostgreSQL {major}; "
            f"upgrade it to version {OLDEST_MAJOR} or newer"
        )


def reason_to_end(error: Exception, dsn: str) -> str | None:
    """Why waiting for the database cannot help, and what to do; None if it may help. Never contains the password."""
    match error:
        case PoolerError():
            return str(error)
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):  # as poolers say it
            what = f"refuses a setting of the URL: {error}; take it out of GPUWARD_DATABASE_URL"
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            what = f"refuses this user: {error}; check user and password in GPUWARD_DATABASE_URL (or PGPASSWORD)"
        case asyncpg.InvalidCatalogNameError():
            what = f"lacks it: {error}; create it, or correct the name in GPUWARD_DATABASE_URL"
        case asyncpg.InsufficientPrivilegeError() | asyncpg.InvalidSchemaNameError():  # a schema that it may not use
            what = f"denies a right: {error}; make the user of GPUWARD_DATABASE_URL the owner of the database"
        case ssl.SSLCertVerificationError():
            what = f"shows a certificate that is not trusted: {error}; set sslrootcert in the URL to its CA"
        case ValueError() if not isinstance(error, asyncpg.PostgresError):
            return (  # its text may repeat parts of a password
                "GPUWARD_DATABASE_URL: malformed; write postgresql://user:password@host:5432/db, "
                "with special characters of user and password percent-encoded"
            )
        case asyncpg.PostgresError() if not is_database_trouble(error):
            what = f"cannot be migrated: {error}; use an empty database, or one that an older gpuward has migrated"
        case _:
            return None
    return f"the database at {describe_dsn(dsn)} {what}"


class HostCommandError(Exception):
    """The command cannot be carried out; the message has the reason and what to do."""


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
    async with asyncio.timeout(_HOST_CONNECT_S):
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
