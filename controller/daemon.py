"""The controller's composition root: settings → database → task group → exit code."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.api.app import build_app
from controller.api.context import ApiContext
from controller.api_socket import serve_socket
from controller.client_env import ClientEnvError
from controller.first_key import publish_client_env
from controller.gateway_process import GatewayProcess, bind
from controller.health import LoopLag, Readiness
from controller.hub.hub import Hub
from controller.leader.analyses import analyse_now
from controller.leader.model_cache import ModelCache
from controller.leading import Leading
from controller.live.change_fanout import ChangeFanout
from controller.live.known_secrets import KnownSecrets
from controller.open_database import CannotOpenError, open_database
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.runtime.gc_tuning import tune_gc
from controller.runtime.lease import Lease, expire_lease
from controller.runtime.metrics import HubMetrics, Metrics
from controller.runtime.tasks import unless_stopped
from controller.schema_watch import SchemaWatch
from controller.secrets_key import drop_old_keys, open_keys, protect_secrets, renew_key
from controller.serving_tls import ServingTls, ServingTlsError, serving_tls
from controller.settings import ControllerSettings
from controller.store.access.key_reads import KEY_PREFIX, Principal, hash_secret
from controller.store.access.secret_keys import SecretKeys, SecretsKeyError
from controller.store.access.secrets import resolve_secrets
from controller.store.core.database import Database, DatabaseUrlError
from controller.store.core.migrate import SchemaTooNewError, why_outdated
from controller.store.core.notify import GONE
from controller.store.embedded import EmbeddedPostgresError
from controller.store.telemetry.partitions import SampleRetention
from controller.store.views.leader import read_holder
from controller.store.workers.lost_history import tell_promotion
from http1.bodies import Bodies
from http1.connections import limits_for
from http1.files import connection_bound, raise_file_limit
from http1.forwarded import TrustedProxies
from http1.origin_middleware import GatewayTrust
from http1.server_log import ServerLog
from http1.service_manager import READY, STOPPING, ServiceManager
from http1.site import BoundedSite, Bounds
from schemas.log_lines import configure_logs
from schemas.process_figures import GcWatch, read_figures
from schemas.process_metrics import ProcessMetrics
from schemas.unknown_variables import unknown_variables
from schemas.version import __version__

log = structlog.get_logger(__name__)

_OPENING_ENDS_S: Final = 10.0  # after a stop: the embedded server may be half started
_LOCAL: Final = Principal("local", "local", "admin")
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
    manager = ServiceManager.claim()
    configure_logs(json=settings.log_format == "json", level=settings.log_level)
    for name, advice in unknown_variables(os.environ.items()).items():
        log.warning("unknown environment variable is ignored", variable=name, advice=advice)

    async def serve() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            manager.tell(STOPPING)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        watchdog = asyncio.create_task(manager.keep_alive(), name="watchdog")
        try:
            return await run_controller(settings, stop=stop, on_ready=serving)
        finally:
            watchdog.cancel()

    def serving(url: str) -> None:
        tune_gc()
        manager.tell(READY)
        log.info("serving", url=url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


def make_local_key() -> str:
    """A new key for `run_controller`."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


async def run_controller(
    settings: ControllerSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    local_key: str | None = None,
    gateway_log: Path | None = None,
) -> int:
    """Runs a controller, and a gateway as its child, until `stop` is set. Installs no signal handlers.

    Args:
        settings: validated settings.
        stop: set it for a clean end.
        on_ready: called once with the base URL, as soon as it serves.
        local_key: a key of an administrator for this process's own use. It is stored nowhere and ends with the process.
        gateway_log: file for the gateway's log; None: this process's stderr.

    Returns:
        0 after a clean end; 1 where it cannot run (logged with what to do).
    """
    raise_file_limit()  # before the embedded server starts, which inherits it
    try:
        tls = serving_tls(settings)
        async with contextlib.AsyncExitStack() as stack:
            opening = _open_database(settings, stack)
            database = await unless_stopped(stop, opening, limit_s=_OPENING_ENDS_S)
            if database is None:
                log.info("stopped before the database was open")
                return 0
            local_keys = {} if local_key is None else {hash_secret(local_key): _LOCAL}
            keys = await asyncio.to_thread(open_keys, settings)
            await protect_secrets(database, keys)
            await _Controller(settings, database, local_keys, gateway_log, tls, keys).run(stop, on_ready)
    except (
        ControllerError,
        CannotOpenError,
        EmbeddedPostgresError,
        DatabaseUrlError,
        SchemaTooNewError,
        SecretsKeyError,
        ServingTlsError,
    ) as error:
        log.error("controller ended", error=str(error))  # noqa: TRY400 - the message says what to do
        return 1
    return 0


async def _open_database(settings: ControllerSettings, stack: contextlib.AsyncExitStack) -> Database:
    database = await open_database(settings, stack)
    if settings.database_url is None:
        # The data folder's lock proves that the former leader is gone, so its lease need not expire first.
        async with database.transaction() as connection:
            await expire_lease(connection)
    return database


class _Controller:
    """The parts of one controller."""

    def __init__(
        self,
        settings: ControllerSettings,
        database: Database,
        local_keys: Mapping[bytes, Principal],
        gateway_log: Path | None,
        tls: ServingTls | None,
        keys: SecretKeys,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._gateway_log = gateway_log
        self._database = database
        self._client_env_written = False
        clock = SystemClock()
        registry = CollectorRegistry()
        metrics = Metrics(registry)
        if tls is not None:
            metrics.certificate(lambda: tls.certificate.expires_s, lambda: tls.certificate.problem)
        authority_ends = None if tls is None else tls.authority_ends()
        if authority_ends is not None:
            metrics.authority(authority_ends.timestamp())
        proxies = TrustedProxies(settings.trusted_proxy)
        self._connections = Bounds(
            limits_for(connection_bound(raise_file_limit())),
            name="controller",
            is_proxy=lambda address: not address or address in proxies,  # the gateway's have none
            closed=metrics.connection_closed,
        )
        bodies = Bodies(
            settings.bodies_in_flight * 2**20,
            settings.bodies_in_flight_per_key * 2**20,
            refused=metrics.body_refused,
        )
        metrics.bodies_held(lambda: bodies.held)
        self._collections = GcWatch()
        registry.register(
            ProcessMetrics("controller", lambda: {(): read_figures(self._collections, settings.data_dir)}, disk=True)
        )
        self._changes = ChangeFanout()
        self._known_secrets = KnownSecrets(database, self._changes, keys)
        # Unique per process, so that a successor never counts as the holder.
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        ttl_s = settings.lease_ttl_s
        self._schema = SchemaWatch(database)
        self._lease = Lease(
            database.listen_connection,
            holder,
            clock,
            ttl_s=ttl_s,
            renew_s=ttl_s * 0.3,
            unfit=why_outdated,
            promoted=tell_promotion,
        )
        self._hub = Hub(
            database,
            clock,
            instance_id=holder,
            secrets=lambda names: resolve_secrets(database, names, keys),
            images=settings.engine_images,
            redaction=self._known_secrets.redaction,
            sample_s=settings.sample_every_s,
            keep=SampleRetention(settings.keep_samples_h, settings.keep_history_days),
            metrics=HubMetrics(registry),
            serves=lambda request: self._connections.serve(request, agent=True) is None,
            unreachable_after_s=settings.unreachable_after_s,
            rotate_credentials_s=settings.rotate_credentials_days * 86_400.0,
        )
        registry.register(ProcessMetrics("agent", self._hub.agents_processes, labels=("worker",), disk=True))
        self._lag = LoopLag(clock)
        metrics.loop_lag(self._lag.seconds)
        self._leading = Leading(
            database, clock, metrics, settings, self._hub.healthy_for_s, loop_lag_s=self._lag.seconds, keys=keys,
            redaction=self._known_secrets.redaction,
        )  # fmt: skip
        self._feed = ChangeFeed(database.listen_connection, self._hint, clock)
        self._app = build_app(
            ApiContext(
                database=database.share(_API_CONNECTIONS),
                changes=self._changes,
                leadership=lambda: (self._lease.term is not None, self._lease.term),
                readiness=Readiness(
                    database,
                    self._feed,
                    self._leader,
                    lambda: self._client_env_written,
                    None if tls is None else tls.check,
                ),
                loop_lag=self._lag.seconds,
                analyse=partial(analyse_now, ModelCache(clock.monotonic)),
                registry=registry,
                version=__version__,
                longest_window_s=settings.keep_samples_h * 3600,
                known_secrets=self._known_secrets,
                reserve=settings.reserve,
                operators_may=settings.operators_may,
                viewers_read_logs=settings.viewers_read_logs,
                prices=settings.prices,
                connections=self._connections,
                bodies=bodies,
                proxies=proxies,
                from_gateway=GatewayTrust(
                    "" if settings.gateway_secret is None else settings.gateway_secret.get_secret_value()
                ),
                local_keys=local_keys,
                authority=None if tls is None else tls.known_authority(),
                certificates=tuple if tls is None else partial(tls.certificates, authority_ends),
                secret_keys=keys,
                renew_secrets_key=partial(renew_key, settings, keys),
                drop_old_secrets_keys=partial(drop_old_keys, settings, keys),
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
        await self._known_secrets.refresh()  # before anything is told
        gateway: GatewayProcess | None = None
        try:
            url, gateway = await self._listen(runner)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._lag.run(), name="loop-lag"),
                    group.create_task(self._feed.run(), name="change-feed"),
                    group.create_task(self._schema.run(), name="schema-watch"),
                    group.create_task(self._known_secrets.run(), name="known-secrets"),
                    group.create_task(self._hub.run(), name="hub"),
                    group.create_task(self._lease.run(self._leading.lead), name="lease"),
                ]
                if self._tls is not None:
                    tasks.append(group.create_task(self._tls.run(), name="certificate"))
                if gateway is not None:
                    await unless_stopped(stop, gateway.start(), limit_s=_HTTP_CLOSE_S)
                failure = await self._make_ready(url, stop, on_ready)
                if failure is None:
                    await stop.wait()
                log.info("stopping")
                if gateway is not None:
                    await gateway.stop()
                await self._hub.close()
                await runner.cleanup()
                for task in tasks:
                    task.cancel()
            if failure is not None:
                raise failure
        finally:
            if gateway is not None:
                await gateway.stop()
            await runner.cleanup()
            self._collections.close()

    async def _make_ready(
        self, url: str, stop: asyncio.Event, on_ready: Callable[[str], None]
    ) -> ControllerError | None:
        """Writes client.env, then calls back, unless `stop` is set before. Returns why the file cannot be written."""
        try:
            ca = None if self._tls is None else self._tls.ca
            writing = publish_client_env(self._database, self._settings.data_dir, url, ca)
            if await unless_stopped(stop, writing, limit_s=_HTTP_CLOSE_S):
                self._client_env_written = True
                on_ready(url)
        except ClientEnvError as error:
            return ControllerError(str(error))
        return None

    async def _listen(self, runner: web.AppRunner) -> tuple[str, GatewayProcess | None]:
        """Serves the API on its socket, and the public port by a gateway or itself; returns the URL and the gateway."""
        settings, tls = self._settings, self._tls
        api = await serve_socket(runner, self._connections, settings.data_dir)
        listening: list[socket.socket] | None = None
        try:
            if settings.gateway:
                listening = await bind(settings.host, settings.port, settings.gateway_processes)
                address = listening[0].getsockname()
            else:
                context = None if tls is None else lambda: tls.certificate.context
                site = BoundedSite(runner, self._connections, settings.host, settings.port, context)
                await site.start()
                address = next(one for one in runner.addresses if isinstance(one, tuple))
        except OSError as error:
            where, why = f"{settings.host}:{settings.port}", error.strerror or error
            raise ControllerError(f"cannot listen on {where}: {why}; choose another port with --port") from error
        host, port = address[:2]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}" if tls is None else tls.url(shown, port)
        if listening is None:
            return url, None
        files = None if tls is None else tls.files
        return url, GatewayProcess(settings, listening, api, self._database.dsn, self._gateway_log, files)

    def _hint(self, kind: str, id_: str | None) -> None:
        self._leading.hint(kind, id_)  # first: it may end computations
        if kind == GONE:  # a hint about the deployment follows, for everything else
            return
        self._changes.publish(kind, id_)
        self._hub.wake(kind, id_)
        if kind in ("lease", "*"):
            self._lease.wake()
            self._schema.wake()

    async def _leader(self) -> str:
        async with self._database.connection() as connection:
            holder = await read_holder(connection)
        if holder is None:
            raise OSError("no leader: the lease is free, and a controller will acquire it within seconds")
        return f"term held by {holder}"
