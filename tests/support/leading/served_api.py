"""The API served on loopback, as the controller serves it, with a key for every role."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.api.app import build_app
from controller.api.context import ApiContext, Check
from controller.domain.access.grants import Grant
from controller.domain.placement import Need
from controller.domain.telemetry.gpu_prices import NO_PRICES, GpuPrices
from controller.live.change_fanout import ChangeFanout
from controller.live.known_secrets import KnownSecrets
from controller.live.proxy_keys import ProxyKeys
from controller.runtime.child import ChildError
from controller.runtime.metrics import Metrics
from controller.runtime.origin import GatewayTrust
from controller.store.access.keys import create_key
from controller.store.access.proxy_secrets import PURPOSE
from controller.store.access.secret_keys import SecretKeys, new_key, parse_keys
from controller.store.core.database import Database
from gateway.gateway import Gateway, Options
from http1.bodies import Bodies
from http1.forwarded import TrustedProxies
from http1.protocol.connection_rules import Limits
from schemas.manifest.deployment import DeploymentSpec
from support.loopback import listening

KEPT_S = 2 * 3600.0  # samples
SECRET = "of the gateway"
_KEY = new_key()
SECRETS = SecretKeys(lambda: parse_keys(_KEY))  # of a controller with a key
ROLES = ("admin", "operator", "viewer", "inference")


@dataclass
class Surroundings:
    """What the API needs from the rest of the controller; tests change it."""

    leading: bool = True
    lag_s: float = 0.0
    checks: dict[str, Check] = field(default_factory=lambda: {"database": Check(ok=True)})
    need: Need | None = None
    delay_s: float = 0.0  # of an analysis
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    analysed: list[DeploymentSpec] = field(default_factory=list)

    def leadership(self) -> tuple[bool, int | None]:
        return self.leading, 1 if self.leading else None

    async def readiness(self) -> Mapping[str, Check]:
        return self.checks

    async def analyse(self, spec: DeploymentSpec) -> Need:
        self.analysed.append(spec)
        await asyncio.sleep(self.delay_s)
        if self.need is None:
            raise ChildError("MetadataError", "the folder cannot be read here", retryable=True)
        return self.need


@dataclass
class ServedApi:
    """A running API behind its gateway, in one loop."""

    url: str
    app: web.Application
    gateway: Gateway
    keys: dict[str, str]
    changes: ChangeFanout
    surroundings: Surroundings
    metrics: Metrics
    session: aiohttp.ClientSession

    def header(self, role: str = "admin") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[role]}"}

    async def call(self, method: str, path: str, *, role: str = "admin", **options: Any) -> tuple[int, Any]:
        """Status and JSON of one call."""
        headers = {**self.header(role), **options.pop("headers", {})}
        async with self.session.request(method, self.url + path, headers=headers, **options) as answer:
            return answer.status, await answer.json() if answer.content_type == "application/json" else None

    async def get(self, path: str, **options: Any) -> Any:
        """JSON of a successful GET."""
        status, body = await self.call("GET", path, **options)
        assert status == 200, body
        return body


@asynccontextmanager
async def served(
    database: Database,
    *,
    more_routes: Iterable[web.RouteDef] = (),
    shutdown_s: float = 5.0,
    operators_may: frozenset[Grant] = frozenset(),
    viewers_read_logs: bool = False,
    prices: GpuPrices = NO_PRICES,
    proxies: TrustedProxies | None = None,
    secret_keys: SecretKeys = SECRETS,
) -> AsyncIterator[ServedApi]:
    """Serves until the end of the context."""
    surroundings, changes = Surroundings(), ChangeFanout()
    context = ApiContext(
        database=database,
        changes=changes,
        leadership=surroundings.leadership,
        readiness=surroundings.readiness,
        loop_lag=lambda: surroundings.lag_s,
        analyse=surroundings.analyse,
        registry=surroundings.registry,
        version="1.2.3",
        longest_window_s=KEPT_S,
        known_secrets=KnownSecrets(database, changes, secret_keys),
        secret_keys=secret_keys,
        operators_may=operators_may,
        viewers_read_logs=viewers_read_logs,
        prices=prices,
        from_gateway=GatewayTrust(SECRET),
    )
    keys = {role: (await create_key(database, role)).key for role in ROLES}  # type: ignore[arg-type]  # of the literals
    app = build_app(context, more_routes=more_routes)
    async with (
        listening(app, shutdown_s=shutdown_s) as address,
        gateway_to(address, database, changes, proxies, secret_keys) as gateway,
        aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"}) as session,
    ):
        metrics = Metrics(surroundings.registry)
        url = f"http://127.0.0.1:{gateway.port}"
        yield ServedApi(url, app, gateway, keys, changes, surroundings, metrics, session)


@asynccontextmanager
async def gateway_to(
    controller: str,
    database: Database,
    changes: ChangeFanout,
    proxies: TrustedProxies | None = None,
    secret_keys: SecretKeys = SECRETS,
) -> AsyncIterator[Gateway]:
    """A gateway before the controller at HOST:PORT, on a free port."""
    host, _, port = controller.rpartition(":")
    proxy_keys = ProxyKeys(None)
    proxy_keys.keys = secret_keys.branch(PURPOSE)  # as in the file that a controller writes
    gateway = Gateway(
        database.share(1),
        changes,
        (host, int(port)),
        Options(secret=SECRET, proxies=proxies or TrustedProxies(), limits=Limits(20_000, 20_000, 20_000)),
        bodies=lambda refused: Bodies(512 * 2**20, 256 * 2**20, refused=refused),
        proxy_keys=proxy_keys,
    )
    bound = socket.create_server(("127.0.0.1", 0), backlog=4096)
    await gateway.start(bound)
    try:
        async with asyncio.timeout(10):
            while not gateway.routes.known:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        yield gateway
    finally:
        await gateway.close(0.0)


@asynccontextmanager
async def proxy(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Something that listens where an agent's proxy would; yields HOST:PORT."""
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", handler)
    async with listening(app) as address:
        yield address
