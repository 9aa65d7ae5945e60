"""Opens and migrates the database at the start. Waits where that can help; else raises the reason at once."""

import asyncio
import random
import ssl
from contextlib import AsyncExitStack
from typing import Final

import asyncpg
import structlog

from controller.runtime.database import DATABASE_ERRORS, is_database_trouble
from controller.settings import ControllerSettings
from controller.store.core.database import Database, normalise_dsn
from controller.store.core.migrate import migrate
from controller.store.core.server_sessions import PoolerError, describe_dsn
from controller.store.embedded import EmbeddedPostgres

log = structlog.get_logger(__name__)
WAIT_S: Final = 60.0
OLDEST_MAJOR: Final = 15
_LOG_EVERY_S: Final = 10.0
_CONNECT_S: Final = 5.0
_PAUSE_S: Final = (0.2, 1.0)
# ValueError: of a malformed URL.
OPENING_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, ValueError)


class CannotOpenError(Exception):
    """The database cannot be used; the message has the reason and what to do."""


async def open_database(settings: ControllerSettings, stack: AsyncExitStack) -> Database:
    """Opens the embedded or external database and migrates it. The stack closes it.

    Raises:
        CannotOpenError: waiting does not help, or did not help within `WAIT_S`.
        DatabaseUrlError: the URL is not a PostgreSQL URL.
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
    started = loop.time()
    logged = float("-inf")
    while True:
        try:
            return await _open(dsn)
        except OPENING_ERRORS as error:
            waited_s = loop.time() - started
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
    """Returns why waiting for the database cannot help, and what to do; None if it may help. Without the password."""
    match error:
        case PoolerError():
            return str(error)
        case asyncpg.ProtocolViolationError() if "startup parameter" in str(error):  # poolers' wording
            why = f"refuses a setting of the URL: {error}; take it out of GPUWARD_DATABASE_URL"
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why = f"refuses this user: {error}; check user and password in GPUWARD_DATABASE_URL (or PGPASSWORD)"
        case asyncpg.InvalidCatalogNameError():
            why = f"lacks it: {error}; create it, or correct the name in GPUWARD_DATABASE_URL"
        case asyncpg.InsufficientPrivilegeError() | asyncpg.InvalidSchemaNameError():  # a schema that it may not use
            why = f"denies a right: {error}; make the user of GPUWARD_DATABASE_URL the owner of the database"
        case ssl.SSLCertVerificationError():
            why = f"shows a certificate that is not trusted: {error}; set sslrootcert in the URL to its CA"
        case ValueError() if not isinstance(error, asyncpg.PostgresError):
            return (  # its text may repeat parts of a password
                "GPUWARD_DATABASE_URL: malformed; write postgresql://user:password@host:5432/db, "
                "with special characters of user and password percent-encoded"
            )
        case asyncpg.PostgresError() if not is_database_trouble(error):
            why = f"cannot be migrated: {error}; use an empty database, or one that an older gpuward has migrated"
        case _:
            return None
    return f"the database at {describe_dsn(dsn)} {why}"
