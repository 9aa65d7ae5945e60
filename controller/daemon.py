"""The controller's composition root: settings → database → task group → exit code."""

import asyncio
import contextlib
import gc
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import uvloop

from controller.client_env import ClientEnvError
from controller.controller import Controller
from controller.data_folder import DataFolderError, locked_folder
from controller.open_database import CannotOpenError, open_database
from controller.runtime.lease import expire_lease
from controller.runtime.tasks import unless_stopped
from controller.secrets_key import open_keys, protect_secrets
from controller.serving import CannotListenError
from controller.serving_tls import ServingTlsError, serving_tls
from controller.settings import ControllerSettings
from controller.store.access.key_reads import KEY_PREFIX, Principal, hash_secret
from controller.store.access.secret_keys import SecretsKeyError
from controller.store.core.database import Database, DatabaseUrlError
from controller.store.core.migrate import SchemaTooNewError, UnsuitableEncodingError
from controller.store.embedded import EmbeddedPostgresError
from controller.term import Resignation
from http1.daemon.open_files import raise_file_limit
from http1.daemon.service_manager import READY, ServiceManager, until_signalled
from schemas.log_lines import configure_logs
from schemas.unknown_variables import unknown_variables

log = structlog.get_logger(__name__)
_OPENING_ENDS_S: Final = 10.0  # after a stop: the embedded server may be half started
_LOCAL: Final = Principal("local", "local", "admin")
_THRESHOLDS: Final = (20_000, 10, 20)  # new objects; collections of generation 0; collections of generation 1


def main(settings: ControllerSettings) -> int:
    """Runs a controller until SIGTERM or SIGINT; returns the exit code."""
    manager = ServiceManager.claim()
    configure_logs(json=settings.log_format == "json", level=settings.log_level)
    for name, advice in unknown_variables(os.environ.items()).items():
        log.warning("unknown environment variable is ignored", variable=name, advice=advice)

    async def serve(stop: asyncio.Event) -> int:
        return await run_controller(settings, stop=stop, on_ready=serving)

    def serving(url: str) -> None:
        tune_gc()
        manager.notify(READY)
        log.info("serving", url=url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_signalled(manager, serve))


def make_local_key() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def make_resignation() -> Resignation:
    return Resignation()


async def run_controller(
    settings: ControllerSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    local_key: str | None = None,
    gateway_log: Path | None = None,
    resignation: Resignation | None = None,
) -> int:
    """Runs a controller, and a gateway as its child, until `stop` is set. Installs no signal handlers.

    Args:
        settings: of the controller.
        stop: set it for a clean end.
        on_ready: called once with the base URL, as soon as it serves.
        local_key: an administrator's key for this process's own use. It is not stored, and ends with the process.
        gateway_log: file for the gateway's log; None: this process's stderr.
        resignation: ends its leadership before `stop`.

    Returns:
        0 after a clean end; 1 where it cannot run (logged with what to do).
    """
    resignation = resignation or Resignation()
    raise_file_limit()  # before the embedded server starts, which inherits it
    try:
        tls = serving_tls(settings)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(locked_folder(settings.data_dir))
            opening = _open_database(settings, stack)
            database = await unless_stopped(stop, opening, limit_s=_OPENING_ENDS_S)
            if database is None:
                log.info("stopped before the database was open")
                return 0
            local_keys = {} if local_key is None else {hash_secret(local_key): _LOCAL}
            keys = await asyncio.to_thread(open_keys, settings)
            await protect_secrets(database, keys)
            controller = Controller(settings, database, local_keys, gateway_log, tls, keys)
            await controller.run(stop, on_ready, resignation)
    except (
        ClientEnvError,
        CannotListenError,
        CannotOpenError,
        DataFolderError,
        EmbeddedPostgresError,
        DatabaseUrlError,
        SchemaTooNewError,
        UnsuitableEncodingError,
        SecretsKeyError,
        ServingTlsError,
    ) as error:
        log.error("controller ended", error=str(error))  # noqa: TRY400 - the message has what to do
        return 1
    finally:
        resignation.done.set()
    return 0


async def _open_database(settings: ControllerSettings, stack: contextlib.AsyncExitStack) -> Database:
    database = await open_database(settings, stack)
    if settings.database_url is None:
        # The data folder's lock proves that the former leader is gone, so its lease need not expire first.
        async with database.transaction() as connection:
            await expire_lease(connection)
    return database


def tune_gc() -> None:
    """Excludes the objects loaded so far from collection, and collects the rest less often than Python's default."""
    # A full collection of all objects held the event loop for a tenth of a second. Thousands of long-lived agent
    # sessions made full collections frequent.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
