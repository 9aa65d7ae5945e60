"""A failover of the database that loses its last commits: the cluster goes on from what is left."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from support.database.gate import DatabaseGate, gate_to
from support.database.postgres import PostgresServer, create_database, drop_database, quick_folder
from support.database.streaming import StreamingPair
from support.processes.controllers import Controllers
from support.processes.faults import RECOVERY_S, SHORT

pytestmark = pytest.mark.cases
COPY_S = 30.0
ONE_GPU = {"gpus": 1, "gpu_memory": "1GiB"}


class FailedOver(Controllers):
    """Controllers on a database behind a gate, which later leads to one that lacks the last commits."""

    @abstractmethod
    async def copy(self) -> None:
        """What is committed from now on will be lost."""

    @abstractmethod
    async def fail_over(self) -> None:
        """The standby takes the primary's place."""

    async def reasons(self) -> set[str]:
        return {event["reason"] for event in (await self.get("/events?limit=1000"))["items"]}

    async def has_told(self) -> bool:
        return "database_promoted" in await self.reasons()


class Streamed(FailedOver):
    """A primary and its asynchronous standby, whose link is cut for the last commits."""

    def __init__(self, folder: Path, pair: StreamingPair) -> None:
        super().__init__(folder, pair.gate.dsn)
        self._pair = pair

    async def copy(self) -> None:
        await self._pair.catch_up()
        await self._pair.link.close()

    async def fail_over(self) -> None:
        await self._pair.promote()


class Copied(FailedOver):
    """A copy within one server, which is told to be of another timeline."""

    def __init__(self, folder: Path, gate: DatabaseGate, server: PostgresServer, primary: str) -> None:
        super().__init__(folder, gate.dsn)
        self.gate = gate
        self.server = server
        self.databases = [primary]

    async def copy(self) -> None:
        """Makes the standby: what is committed by now. For a moment the database is away."""
        await self.gate.close()
        name = self.databases[0].partition("?")[0].rsplit("/", 1)[1]
        ends = time.monotonic() + COPY_S
        while len(self.databases) == 1:
            try:
                self.databases.append(await create_database(self.server, name))
            except asyncpg.ObjectInUseError:  # the server has not noticed yet that all connections are cut
                assert time.monotonic() < ends
                await asyncio.sleep(0.1)
        await self.gate.open()

    async def fail_over(self) -> None:
        """The standby takes the primary's place."""
        await self.gate.close()
        standby = await asyncpg.connect(self.databases[1])
        # A copy within one server has the timeline of its model. A promoted standby has a later one.
        assert await standby.fetchval("select timeline from lease") == 1
        await standby.execute("update lease set timeline = 0")
        await standby.close()
        await self._swap()
        await self.gate.open()

    async def _swap(self) -> None:
        """Gives the standby the primary's name."""
        primary, standby = (dsn.partition("?")[0].rsplit("/", 1)[1] for dsn in self.databases)
        connection = await asyncpg.connect(self.server.dsn)
        ends = time.monotonic() + COPY_S
        try:
            for name, later in ((primary, f"{primary}_lost"), (standby, primary), (f"{primary}_lost", standby)):
                while True:
                    try:
                        await connection.execute(f'alter database "{name}" rename to "{later}"')
                        break
                    except asyncpg.ObjectInUseError:
                        assert time.monotonic() < ends
                        await asyncio.sleep(0.1)
        finally:
            await connection.close()


@asynccontextmanager
async def streamed(folder: Path) -> AsyncIterator[FailedOver]:
    with quick_folder() as servers:
        async with StreamingPair(servers).running() as pair:
            made = Streamed(folder, pair)
            try:
                yield made
            finally:
                await made.aclose()


@asynccontextmanager
async def copied(folder: Path, postgres: PostgresServer) -> AsyncIterator[FailedOver]:
    primary = await create_database(postgres)
    async with gate_to(primary) as gate:
        made = Copied(folder, gate, postgres, primary)
        try:
            yield made
        finally:
            await made.aclose()
    for dsn in made.databases:
        await drop_database(postgres, dsn)


@pytest.fixture(params=["streamed", "copied"])
async def cluster(
    data_dir: Path, postgres: PostgresServer, request: pytest.FixtureRequest
) -> AsyncIterator[FailedOver]:
    async with streamed(data_dir) if request.param == "streamed" else copied(data_dir, postgres) as made:
        yield made


async def test_a_failover_that_loses_commits_converges(cluster: FailedOver) -> None:
    for name in ("a", "b"):
        await cluster.start_named(name, **SHORT)
    both = ",".join(f"http://127.0.0.1:{cluster.port_of(name)}" for name in ("a", "b"))
    for host in ("w1", "w2"):
        await cluster.start_agent(host, url=both, gpus=2)
    for name in ("kept", "restarted", "deleted"):
        await cluster.apply(name, engine="simulated", resources=ONE_GPU)
    for name in ("kept", "restarted", "deleted"):
        await cluster.running(name)
    names = {name: (await cluster.instances(name))[0]["name"] for name in ("kept", "restarted", "deleted")}

    await cluster.copy()
    # What the standby lacks: a deployment on the last GPU, a start with a later epoch, and a deletion.
    await cluster.until(lambda: _applies(cluster, "lost"), "the database is back", RECOVERY_S)
    await cluster.running("lost")
    cluster.engines()[names["restarted"]].kill()
    await cluster.until(lambda: _epoch(cluster, "restarted", 2), "it has restarted", RECOVERY_S)
    ran_on = {name: cluster.engines()[names[name]].pid for name in ("kept", "restarted")}
    await cluster.delete("deleted")
    await cluster.gone("deleted")
    await cluster.apply("lost-too", engine="simulated", resources=ONE_GPU)
    await cluster.running("lost-too")

    await cluster.fail_over()
    await cluster.until(lambda: _told(cluster), "the failover is told", RECOVERY_S)
    for name in ("kept", "restarted", "deleted"):
        await cluster.running(name)
    wanted = set(names.values())
    await cluster.until(lambda: set(cluster.engines()) == wanted, "the engines that are wanted run, and no others", 60)
    assert {name: cluster.engines()[names[name]].pid for name in ran_on} == ran_on
    assert await cluster.phase_of("lost") == "gone"
    # Agents obey the new term, on the GPU that the lost deployments held.
    await cluster.apply("after", engine="simulated", resources=ONE_GPU)
    await cluster.running("after")
    assert len(cluster.engines()) == 4
    await cluster.audit()


async def _applies(cluster: FailedOver, name: str) -> bool:
    status, _ = await cluster.call("PUT", f"/deployments/{name}", {"engine": "simulated", "resources": ONE_GPU})
    return status in (200, 201)


async def _told(cluster: FailedOver) -> bool:
    try:
        return await cluster.has_told()
    except (AssertionError, OSError):
        return False


async def _epoch(cluster: FailedOver, name: str, epoch: int) -> bool:
    (instance,) = await cluster.instances(name)
    return instance["status"]["phase"] == "running" and instance["status"]["epoch"] == epoch
