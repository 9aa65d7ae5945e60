"""A new version migrates the database while an older one serves at full speed: nothing fails, the older one stops."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from controller.store.core.migrate import head_revision
from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.controllers import Controllers
from support.processes.earlier_versions import unpack
from support.processes.faults import RECOVERY_S, SHORT
from support.standins.load_balancer import LoadBalancer

OLDER = "1fa0bb7e"  # its newest revision is 0033
CLIENTS = 4
BOUND_S = 15.0  # of one write, with all that it waits for and its repetitions
ENGINE_S = 0.5  # between two starts of an engine
WAITS = "tables are in use, migrating again soon"
BUSY_S = 3.0
SPEC = {"engine": "simulated", "args": {"memory": "1GiB"}, "resources": {"gpus": 1, "gpu_memory": "1GiB"}}


class Upgraded(Controllers):
    """The controllers `old` and `new`, with clients that write all the time."""

    def __init__(self, folder: Path, dsn: str) -> None:
        super().__init__(folder, dsn)
        self.names = ["old"]  # those that clients ask, in this order
        self.took_s: list[float] = []
        self.by: dict[str, int] = {"old": 0, "new": 0}

    async def write(self, method: str, path: str, body: object = None) -> None:
        """One write, repeated at each address until one carries it out, as clients do."""
        began = time.monotonic()
        last: object = None
        while time.monotonic() - began < BOUND_S:
            for name in self.names:
                try:
                    async with self._sessions[name].request(method, f"/api/v1/deployments/{path}", json=body) as got:
                        last = got.status, await got.text()
                except (aiohttp.ClientError, TimeoutError) as error:
                    last = repr(error)
                    continue
                if got.status in (200, 201, 202, 204, 404):
                    self.took_s.append(time.monotonic() - began)
                    self.by[name] += 1
                    return
                assert got.status in (503, 409, 429), last  # busy, outdated, or another term: to be repeated
            await asyncio.sleep(0.05)
        raise AssertionError(f"{method} {path} failed for {BOUND_S:g} s: {last}")

    async def client(self, number: int, stopped: asyncio.Event) -> None:
        """Applies, scales and deletes at full speed; what the first one applies runs, and that of others is pending."""
        n, spec = 0, {**SPEC, "placement": {"labels": {"zone": "none"}}} if number else SPEC
        while not stopped.is_set():
            name = f"load-{number}-{n % 5}"
            await self.write("PUT", name, {**spec, "replicas": 1 + n % 2})
            await self.write("PUT", name, {**spec, "replicas": 1, "priority": 100 + n % 3})
            if not number:
                await asyncio.sleep(ENGINE_S)
            if n % 2:
                await self.write("DELETE", name)
            n += 1

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """That of all clients; they end by themselves, or with what failed."""
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self.client(number, stopped))
            try:
                yield
            finally:
                stopped.set()


@pytest.fixture
async def dsn(postgres: PostgresServer) -> AsyncIterator[str]:
    made = await create_database(postgres)
    yield made
    await drop_database(postgres, made)


@pytest.fixture
async def reader(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def cluster(data_dir: Path, dsn: str) -> AsyncIterator[Upgraded]:
    made = Upgraded(data_dir, dsn)
    yield made
    await made.aclose()


@pytest.mark.cases
async def test_a_migration_under_load_fails_no_request(
    cluster: Upgraded, reader: asyncpg.Connection, tmp_path: Path
) -> None:
    cluster.run_code("cli", unpack(OLDER, tmp_path))
    await cluster.start_named("old", **SHORT)
    await cluster.until(lambda: cluster.leads("old"), "the older one leads")
    door = await LoadBalancer(cluster.port_of("old")).open()
    try:
        await _upgrade(cluster, door, reader)
    finally:
        await door.close()


async def _upgrade(cluster: Upgraded, door: LoadBalancer, reader: asyncpg.Connection) -> None:
    for host in ("w1", "w2"):
        await cluster.start_agent(host, url=door.url)
    await cluster.apply("steady", **SPEC)
    await cluster.running("steady")
    engine = next(iter(cluster.engines().values())).pid
    async with cluster.load():
        await asyncio.sleep(BUSY_S)
        assert cluster.by["old"] > 0
        cluster.run_code()
        async with reader.transaction():  # a long read, behind which the migration has to wait
            await reader.execute("select from lease, workers, instances")
            starting = asyncio.create_task(cluster.start_named("new", **SHORT))
            await cluster.until(lambda: WAITS in _log(cluster, "new"), "the migration waits", RECOVERY_S)
        await starting
        cluster.names.append("new")
        door.target = cluster.port_of("new")
        await cluster.until(lambda: cluster.leads("new"), "the newer one leads", RECOVERY_S)
        await asyncio.sleep(BUSY_S)
    assert cluster.by["new"] > 0
    assert max(cluster.took_s) < BOUND_S, cluster.by
    assert await cluster.leads("old") is False
    assert "this controller is outdated" in _log(cluster, "old")
    (row,) = await cluster.execute("select version_num from alembic_version")
    assert row["version_num"] == head_revision()
    (row,) = await cluster.execute("select deadlocks from pg_stat_database where datname = current_database()")
    assert row["deadlocks"] == 0
    cluster.through("new")
    await cluster.running("steady")
    assert engine in {process.pid for process in cluster.engines().values()}, "what ran runs on"
    await cluster.audit()


def _log(cluster: Upgraded, name: str) -> str:
    file = cluster.folder / f"controller-{name}.log"
    return file.read_text(errors="replace") if file.exists() else ""
