"""The hub served on loopback, over a real database."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.domain.access.redaction import Redaction
from controller.domain.access.secret_scopes import ALL_DEPLOYMENTS, SecretScope
from controller.hub.hub import Hub
from controller.runtime.clock import SystemClock
from controller.runtime.metrics import HubMetrics
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import StoredSecret
from controller.store.core.database import Database
from controller.store.telemetry.partitions import SampleRetention
from rig.agent import LIMIT_S, AgentDouble
from rig.agent_messages import hello
from schemas.wire import SPOKEN, Hello, Protocols, Welcome
from support.loopback import listening


class HubUnderTest:
    """A hub on a loopback port, with a database."""

    def __init__(self, database: Database, hub: Hub, url: str, session: aiohttp.ClientSession) -> None:
        self.database = database
        self.hub = hub
        self.url = url
        self.session = session
        self.secrets: dict[str, str] = {}
        self.scopes: dict[str, SecretScope] = {}
        self.images: dict[str, str] = {}  # of the controller's settings
        self.registry = CollectorRegistry()

    async def add_worker(self, name: str = "gpu-1") -> str:
        """Adds a joined worker; its credential is `secret-NAME`."""
        id_ = uuid.uuid4()
        digest = hashlib.sha256(f"secret-{name}".encode()).digest()
        async with self.database.transaction() as c:
            await c.execute(
                "insert into workers (id, name, credential_hash, proxy_secret) values ($1, $2, $3, 'proxy')",
                id_,
                name,
                digest,
            )
        return str(id_)

    async def dial(self, name: str = "gpu-1", offered: Protocols | None = None) -> AgentDouble:
        """An open socket, before any hello; `offered` None: as an agent that names no protocol."""
        agent = AgentDouble(name, url=self.url, http=self.session, credential=f"secret-{name}")
        await agent.dial(() if offered is None else offered.names())
        return agent

    async def connect(self, name: str = "gpu-1", first: Hello | None = None) -> AgentDouble:
        """A welcomed connection."""
        connection = await self.dial(name)
        await connection.send(first or hello())
        welcome = await connection.next()
        assert isinstance(welcome, Welcome), welcome
        return connection

    def count(self, metric: str) -> float | None:
        """One of the hub's counters, such as `impossible_readings`."""
        return self.registry.get_sample_value(f"gpuward_{metric}_total")

    async def one(self, query: str, *args: Any) -> Any:
        async with self.database.connection() as c:
            return await c.fetchrow(query, *args)

    async def value(self, query: str, *args: Any) -> Any:
        async with self.database.connection() as c:
            return await c.fetchval(query, *args)

    async def execute(self, query: str, *args: Any) -> None:
        async with self.database.transaction() as c:
            await c.execute(query, *args)

    async def order(
        self, worker: str, instance: str, verb: str = "start", *, epoch: int = 1, payload: dict[str, Any] | None = None
    ) -> int:
        """Writes a command and wakes the hub."""
        default = start_payload() if verb == "start" else {"drain_time_s": 1}
        async with self.database.transaction() as c:
            id_ = await c.fetchval(
                """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
                   values ($1, $2, $3, 0, $4, $5) returning id""",
                uuid.UUID(worker),
                instance,
                epoch,
                verb,
                default if payload is None else payload,
            )
        self.hub.wake("command", worker)
        return int(id_)


def start_payload(**fields: Any) -> dict[str, Any]:
    base = {
        "deployment": "d",
        "deployment_uid": "u",
        "argv": ["true"],
        "env": {"A": "plain"},
        "claims": [],
        "needs_port": False,
        "probe": None,
        "start_timeout_s": 60,
        "drain_time_s": 5,
        "env_secrets": {},
    }
    return {**base, **fields}


async def eventually(check: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Waits until the check is true; returns its answer."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not (found := await check()):  # noqa: ASYNC110 - rows have no event to wait for
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {LIMIT_S:g} s: {what}") from None
    return found


@asynccontextmanager
async def serving(
    database: Database, spoken: Protocols = SPOKEN, keys: SecretKeys = NO_KEYS
) -> AsyncIterator[HubUnderTest]:
    """A running hub; its connections end with it."""
    known: dict[str, str] = {}
    scopes: dict[str, SecretScope] = {}
    images: dict[str, str] = {}

    async def secrets(names: Iterable[str]) -> dict[str, StoredSecret]:
        return {name: StoredSecret(known[name], scopes.get(name, ALL_DEPLOYMENTS)) for name in names if name in known}

    registry = CollectorRegistry()
    hub = Hub(
        database,
        SystemClock(),
        instance_id="test",
        secrets=secrets,
        redaction=lambda: Redaction(known),
        images=images,
        sample_s=2.5,
        keep=SampleRetention(samples_h=8, history_days=1),
        metrics=HubMetrics(registry),
        spoken=spoken,
        keys=keys,
    )
    app = web.Application()
    app.add_routes(hub.routes())
    async with listening(app, shutdown_s=5.0) as address, aiohttp.ClientSession() as session:
        running = asyncio.create_task(hub.run(), name="hub")
        try:
            under_test = HubUnderTest(database, hub, f"http://{address}", session)
            under_test.secrets, under_test.scopes, under_test.images = known, scopes, images
            under_test.registry = registry
            yield under_test
            assert not running.done(), running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
