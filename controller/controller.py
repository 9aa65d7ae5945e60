"""One controller: its parts, and the order of their start and end."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web

from controller.api.app import build_app
from controller.api.context import ApiContext
from controller.client_env import ClientEnvError, publish_client_env
from controller.database_watch import SchemaWatch, SpaceWatch
from controller.gateway_process import GatewayProcess
from controller.health import Readiness
from controller.hub.hub import Hub
from controller.hub.proxy_address import HostTrust
from controller.leader.analyses import ModelCache, analyse_now
from controller.live.change_fanout import ChangeFanout
from controller.live.known_secrets import KnownSecrets
from controller.runtime.clock import Clock, SystemClock
from controller.runtime.feed import EVERYTHING, ChangeFeed
from controller.runtime.lease import Lease
from controller.runtime.metrics import HubMetrics, Metrics
from controller.runtime.origin import GatewayTrust
from controller.runtime.tasks import unless_stopped
from controller.secrets_key import ProxyKeyFile, drop_old_keys, renew_key
from controller.serving import HTTP_CLOSE_S, Serving, listen, runner_of, serve_socket, serving_parts
from controller.serving_tls import ServingTls
from controller.settings import ControllerSettings
from controller.store.access.key_reads import Principal
from controller.store.access.secret_keys import SecretKeys
from controller.store.access.secrets import resolve_secrets
from controller.store.core.database import Database
from controller.store.core.events import GONE
from controller.store.core.migrate import why_outdated
from controller.store.embedded.layout import Layout
from controller.store.telemetry.partitions import SampleRetention
from controller.store.views.leader import read_holder
from controller.store.workers.lost_history import record_promotion
from controller.term import Leading, Resignation, Term
from http1.protocol.listening import PlainAcceptor
from schemas.process_metrics import ProcessMetrics
from schemas.version import __version__

log = structlog.get_logger(__name__)

# A flood of requests leaves the pool's other connections to the controller's own work. With fewer requests at once the
# statements of each follow closely, and the event loop comes round sooner. In a storm of requests 6, 4 and 3 gave the
# same rate, and with 3 a cancel took half as long as with 6.
_API_CONNECTIONS: Final = 4


class Controller:
    """Serves the API and agents, and leads while it holds the lease, until `run` returns.

    `local_keys`: keys of this process alone, by their hash. `gateway_log` None: this process's stderr.
    """

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
        self._gateway_log = gateway_log
        self._database = database
        self._client_env_written = False
        self._local_keys = local_keys
        self._keys = keys
        self._clock = clock = SystemClock()
        # Unique per process, so that a successor never counts as the holder.
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._serving = serving_parts(settings, tls, clock)
        self._changes = ChangeFanout()
        self._known_secrets = KnownSecrets(database, self._changes, keys)
        self._schema = SchemaWatch(database)
        embedded = Layout(settings.data_dir.absolute()).cluster if settings.database_url is None else None
        self._space = SpaceWatch(database, embedded, self._note_space)
        self._lease = _lease(settings, database, holder, clock)
        self._hub = _hub(settings, database, holder, clock, self._serving, keys, self._known_secrets)
        metrics = Metrics(self._serving.registry)
        self._leading = Leading(
            lambda term: Term(
                database, term, clock, metrics, settings, self._hub.healthy_for_s,
                loop_lag_s=self._serving.lag.seconds, keys=keys, redaction=self._known_secrets.redaction,
            )
        )  # fmt: skip
        self._feed = ChangeFeed(database.listen_connection, self._hint, clock)
        self._proxy_key_file = ProxyKeyFile(database, keys)
        self._api_socket: PlainAcceptor | None = None

    async def run(self, stop: asyncio.Event, on_ready: Callable[[str], None], resignation: Resignation) -> None:
        """Serves until `stop` is set; then refuses new work, releases the lease and closes the connections.

        Raises:
            CannotListenError: the port cannot be bound.
            ClientEnvError: client.env cannot be written.
        """
        runner = runner_of(build_app(self._api_context(), more_routes=self._hub.routes()))
        await runner.setup()
        await self._known_secrets.refresh()  # before the first answer
        gateway: GatewayProcess | None = None
        try:
            url, gateway = await self._listen(runner)
            async with asyncio.TaskGroup() as group:
                leading = group.create_task(self._lease.run(self._leading.lead), name="lease")
                tasks = [
                    leading,
                    group.create_task(resignation.carry_out(leading), name="resignation"),
                    group.create_task(self._serving.lag.run(), name="loop-lag"),
                    group.create_task(self._feed.run(), name="change-feed"),
                    group.create_task(self._schema.run(), name="schema-watch"),
                    group.create_task(self._space.run(), name="space-watch"),
                    group.create_task(self._known_secrets.run(), name="known-secrets"),
                    group.create_task(self._proxy_key_file.run(), name="proxy-key"),
                    group.create_task(self._hub.run(), name="hub"),
                ]
                if self._serving.tls is not None:
                    tasks.append(group.create_task(self._serving.tls.run(), name="certificate"))
                if gateway is not None:
                    await unless_stopped(stop, gateway.start(), limit_s=HTTP_CLOSE_S)
                failure = await self._make_ready(url, stop, on_ready)
                if failure is None:
                    await stop.wait()
                log.info("stopping")
                if gateway is not None:
                    await gateway.stop()
                await self._hub.close()
                await self._end_serving(runner)
                for task in tasks:
                    task.cancel()
            if failure is not None:
                raise failure
        finally:
            if gateway is not None:
                await gateway.stop()
            await self._end_serving(runner)
            self._serving.collections.close()

    async def _end_serving(self, runner: web.AppRunner) -> None:
        if self._api_socket is not None:
            self._api_socket.close()
        await runner.cleanup()

    def _api_context(self) -> ApiContext:
        settings, serving, tls = self._settings, self._serving, self._serving.tls
        gateway_secret = "" if settings.gateway_secret is None else settings.gateway_secret.get_secret_value()
        return ApiContext(
            database=self._database.share(_API_CONNECTIONS),
            changes=self._changes,
            leadership=lambda: (self._lease.term is not None, self._lease.term),
            readiness=Readiness(
                self._database,
                self._feed,
                self._leader,
                lambda: self._client_env_written,
                None if tls is None else tls.check,
            ),
            loop_lag=serving.lag.seconds,
            analyse=partial(analyse_now, ModelCache(self._clock.monotonic)),
            registry=serving.registry,
            version=__version__,
            longest_window_s=settings.keep_samples_h * 3600,
            known_secrets=self._known_secrets,
            reserve=settings.reserve,
            operators_may=settings.operators_may,
            viewers_read_logs=settings.viewers_read_logs,
            trusted_labels=settings.trusted_labels,
            prices=settings.prices,
            bodies=serving.bodies,
            proxies=serving.proxies,
            from_gateway=GatewayTrust(gateway_secret),
            local_keys=self._local_keys,
            authority=None if tls is None else tls.known_authority(),
            certificates=tuple if tls is None else partial(tls.certificates, serving.authority_ends),
            secret_keys=self._keys,
            renew_secrets_key=self._renew_key,
            drop_old_secrets_keys=partial(drop_old_keys, settings, self._keys),
        )

    def _renew_key(self) -> None:
        renew_key(self._settings, self._keys)
        self._proxy_key_file.write()

    async def _make_ready(
        self, url: str, stop: asyncio.Event, on_ready: Callable[[str], None]
    ) -> ClientEnvError | None:
        """Writes client.env, then calls `on_ready`, unless `stop` is set before. Returns the error of the file."""
        try:
            ca = None if self._serving.tls is None else self._serving.tls.ca
            writing = publish_client_env(self._database, self._settings.data_dir, url, ca)
            if await unless_stopped(stop, writing, limit_s=HTTP_CLOSE_S):
                self._client_env_written = True
                on_ready(url)
        except ClientEnvError as error:
            return error
        return None

    async def _listen(self, runner: web.AppRunner) -> tuple[str, GatewayProcess | None]:
        """Serves the API on its socket, and the public port by a gateway or itself; returns the URL and the gateway."""
        settings, tls = self._settings, self._serving.tls
        if runner.server is None:
            raise AssertionError("the runner is not set up")
        api, self._api_socket = await serve_socket(runner.server, settings.data_dir)
        await self._proxy_key_file.place(api.parent)
        url, listening = await listen(settings, self._serving, runner)
        if listening is None:
            return url, None
        files = None if tls is None else tls.files
        return url, GatewayProcess(settings, listening, api, self._database.dsn, self._gateway_log, files)

    def _hint(self, kind: str, id_: str | None) -> None:
        self._leading.hint(kind, id_)  # first: it may end computations
        if kind == GONE:  # a hint about the deployment follows
            return
        self._changes.publish(kind, id_)
        self._hub.wake(kind, id_)
        if kind in ("lease", "*"):
            self._lease.wake()
            self._schema.wake()

    def _note_space(self, full: bool) -> None:
        """Has all watchers read again, as objects get the reason of a full disk. With space again, wakes everything."""
        if full:
            self._changes.publish(EVERYTHING, None)
        else:
            self._hint(EVERYTHING, None)

    async def _leader(self) -> str:
        async with self._database.connection() as connection:
            holder = await read_holder(connection)
        if holder is None:
            raise OSError("no leader: the lease is free, and a controller will acquire it within seconds")
        return f"term held by {holder}"


def _lease(settings: ControllerSettings, database: Database, holder: str, clock: Clock) -> Lease:
    return Lease(
        database.listen_connection,
        holder,
        clock,
        ttl_s=settings.lease_ttl_s,
        renew_s=settings.lease_ttl_s * 0.3,
        unfit=why_outdated,
        promoted=record_promotion,
    )


def _hub(
    settings: ControllerSettings,
    database: Database,
    holder: str,
    clock: Clock,
    serving: Serving,
    keys: SecretKeys,
    known_secrets: KnownSecrets,
) -> Hub:
    hub = Hub(
        database,
        clock,
        instance_id=holder,
        secrets=lambda names: resolve_secrets(database, names, keys),
        images=settings.engine_images,
        redaction=known_secrets.redaction,
        sample_s=settings.sample_every_s,
        keep=SampleRetention(settings.keep_samples_h, settings.keep_history_days),
        metrics=HubMetrics(serving.registry),
        unreachable_after_s=settings.unreachable_after_s,
        rotate_credentials_s=settings.rotate_credentials_days * 86_400.0,
        trust=HostTrust(settings.trusted_labels, settings.advertise_networks),
        keys=keys,
    )
    serving.registry.register(ProcessMetrics("agent", hub.agents_processes, labels=("worker",), disk=True))
    return hub
