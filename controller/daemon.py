"""The controller's composition root: settings → database → task group → exit code."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

import structlog
import tenacity
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.api.app import build_app
from controller.api.change_fanout import ChangeFanout
from controller.api.context import ApiContext
from controller.client_env import write_client_env
from controller.health import LoopLag, Readiness
from controller.hub.hub import Hub
from controller.leader.analyses import analyse_now
from controller.leader.model_cache import ModelCache
from controller.leading import Leading
from controller.runtime.clock import SystemClock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.feed import ChangeFeed
from controller.runtime.gc_tuning import tune_gc
from controller.runtime.lease import Lease, expire_lease
from controller.runtime.metrics import HubMetrics, Metrics
from controller.settings import ControllerSettings
from controller.store.access.keys import create_first_key
from controller.store.access.secrets import resolve_secrets
from controller.store.core.database import Database, DatabaseUrlError, describe_dsn, normalise_dsn
from controller.store.core.migrate import SchemaTooNewError, migrate
from controller.store.core.notify import GONE
from controller.store.embedded import EmbeddedPostgres, EmbeddedPostgresError
from controller.store.telemetry.partitions import SampleRetention
from controller.store.views.leader import read_holder
from http1.bodies import Bodies
from http1.connections import limits_for
from http1.files import connection_bound, raise_file_limit
from http1.forwarded import TrustedProxies
from http1.server_log import ServerLog
from http1.site import BoundedSite, Bounds
from schemas.version import __version__

log = structlog.get_logger(__name__)

_DATABASE_WAIT_S: Final = 60.0
_HTTP_CLOSE_S: Final = 2.0
_KEEPALIVE_S: Final = 90.0  # the bounds end an idle connection earlier
# Of the pool's connections, so that a flood of requests leaves the others to the controller's own work. With fewer
# requests at once each one's statements follow closely, and the event loop comes round sooner. In a storm of requests
# 6, 4 and 3 gave the same rate, and with 3 a cancel took half as long as with 6.
_API_CONNECTIONS: Final = 4


class ControllerError(Exception):
    """The controller cannot run; the message says what to do."""


def main(settings: ControllerSettings) -> int:
    """Runs a controller until SIGTERM or SIGINT; returns the exit code."""
    configure_logs(settings)

    async def serve() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await run_controller(settings, stop=stop, on_ready=serving)

    def serving(url: str) -> None:
        tune_gc()
        log.info("serving", url=url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


async def run_controller(settings: ControllerSettings, *, stop: asyncio.Event, on_ready: Callable[[str], None]) -> int:
    """Runs a controller until `stop` is set. Installs no signal handlers.

    Args:
        settings: validated settings.
        stop: set it for a clean end.
        on_ready: called once with the base URL, as soon as it serves.

    Returns:
        0 after a clean end; 1 where it cannot run (logged with what to do).
    """
    raise_file_limit()  # before the embedded server starts, which inherits it
    try:
        async with _database(settings) as database:
            await _Controller(settings, database).run(stop, on_ready)
    except (ControllerError, EmbeddedPostgresError, DatabaseUrlError, SchemaTooNewError) as error:
        log.error("controller ended", error=str(error))  # noqa: TRY400 - the message says what to do
        return 1
    return 0


@contextlib.asynccontextmanager
async def _database(settings: ControllerSettings) -> AsyncIterator[Database]:
    """The migrated database: the embedded server, running as long as the context, or an external one."""
    async with contextlib.AsyncExitStack() as stack:
        if settings.database_url is None:
            embedded = await stack.enter_async_context(EmbeddedPostgres(settings.data_dir))
            dsn = embedded.dsn
        else:
            dsn = normalise_dsn(settings.database_url.get_secret_value())
        database = await _connect(dsn)
        stack.push_async_callback(database.close)
        await migrate(database)
        if settings.database_url is None:
            # The data folder's lock proves that the former leader is gone, so its lease need not expire first.
            async with database.transaction() as connection:
                await expire_lease(connection)
        yield database


async def _connect(dsn: str) -> Database:
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(DATABASE_ERRORS),
        stop=tenacity.stop_after_delay(_DATABASE_WAIT_S),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        reraise=True,
    )
    try:
        return await retrying(Database.open, dsn)
    except DATABASE_ERRORS as error:
        raise ControllerError(
            f"cannot reach the database at {describe_dsn(dsn)}: {str(error) or type(error).__name__}; "
            "check GPUWARD_DATABASE_URL and that the server runs"
        ) from error


class _Controller:
    """The parts of one controller."""

    def __init__(self, settings: ControllerSettings, database: Database) -> None:
        self._settings = settings
        self._database = database
        clock = SystemClock()
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        proxies = TrustedProxies(settings.trusted_proxy)
        self._connections = Bounds(
            limits_for(connection_bound(raise_file_limit())),
            name="controller",
            is_proxy=proxies.__contains__,
            closed=metrics.connection_closed,
        )
        bodies = Bodies(
            settings.bodies_in_flight * 2**20,
            settings.bodies_in_flight_per_key * 2**20,
            refused=metrics.body_refused,
        )
        metrics.bodies_held(lambda: bodies.held)
        self._changes = ChangeFanout()
        # Unique per process, so that a successor never counts as the holder.
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        ttl_s = settings.lease_ttl_s
        self._lease = Lease(database.listen_connection, holder, clock, ttl_s=ttl_s, renew_s=ttl_s * 0.3)
        self._hub = Hub(
            database,
            clock,
            instance_id=holder,
            secrets=lambda names: resolve_secrets(database, names),
            sample_s=settings.sample_every_s,
            keep=SampleRetention(settings.keep_samples_h, settings.keep_history_days),
            metrics=HubMetrics(registry),
            serves=lambda request: self._connections.serve(request, agent=True) is None,
        )
        self._lag = LoopLag(clock)
        self._leading = Leading(
            database, clock, metrics, settings, self._hub.healthy_for_s, loop_lag_s=self._lag.seconds
        )
        self._feed = ChangeFeed(database.listen_connection, self._hint, clock)
        self._app = build_app(
            ApiContext(
                database=database.share(_API_CONNECTIONS),
                changes=self._changes,
                leadership=lambda: (self._lease.term is not None, self._lease.term),
                readiness=Readiness(database, self._feed, self._leader),
                loop_lag=self._lag.seconds,
                analyse=partial(analyse_now, ModelCache(clock.monotonic)),
                registry=registry,
                version=__version__,
                longest_window_s=settings.keep_samples_h * 3600,
                reserve=settings.reserve,
                operators_may=settings.operators_may,
                connections=self._connections,
                bodies=bodies,
                proxies=proxies,
            ),
            more_routes=self._hub.routes(),
        )

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
        """Serves until `stop` is set; then refuses new work, releases the lease and closes the connections."""
        runner = web.AppRunner(
            self._app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=_HTTP_CLOSE_S,
            keepalive_timeout=_KEEPALIVE_S,
            logger=ServerLog("controller"),
            auto_decompress=False,
        )
        await runner.setup()
        try:
            url = await self._listen(runner)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._lag.run(), name="loop-lag"),
                    group.create_task(self._feed.run(), name="change-feed"),
                    group.create_task(self._hub.run(), name="hub"),
                    group.create_task(self._lease.run(self._leading.lead), name="lease"),
                ]
                key = await create_first_key(self._database)
                write_client_env(self._settings.data_dir, url, key.key if key else None)
                on_ready(url)
                await stop.wait()
                log.info("stopping")
                await self._hub.close()
                await runner.cleanup()
                for task in tasks:
                    task.cancel()
        finally:
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> str:
        settings = self._settings
        site = BoundedSite(runner, self._connections, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            where, why = f"{settings.host}:{settings.port}", error.strerror or error
            raise ControllerError(f"cannot listen on {where}: {why}; choose another port with --port") from error
        host, port = runner.addresses[0][:2]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
        return f"http://{shown}:{port}"

    def _hint(self, kind: str, id_: str | None) -> None:
        self._leading.hint(kind, id_)  # first: it may end computations
        if kind == GONE:  # a hint about the deployment follows, for everything else
            return
        self._changes.publish(kind, id_)
        self._hub.wake(kind, id_)
        if kind in ("lease", "*"):
            self._lease.wake()

    async def _leader(self) -> str:
        async with self._database.connection() as connection:
            holder = await read_holder(connection)
        if holder is None:
            raise OSError("no leader: the lease is free, and a controller will acquire it within seconds")
        return f"term held by {holder}"


def configure_logs(settings: ControllerSettings) -> None:
    """Structured log lines on stderr, as JSON if the settings say so."""
    json = settings.log_format == "json"
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
