"""What fault tests share: deployments caught at each stage of their start, and the proof that they recover."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg
import psutil

from controller.store.embedded.layout import Layout
from support.processes.cluster import Cluster
from support.processes.engine_watch import EngineWatch

HOST = "host"
STEADY = "steady"
SHORT = {
    "GPUWARD_LEASE_TTL_S": "3",
    "GPUWARD_UNREACHABLE_AFTER_S": "7",  # heartbeats come every 5 s
    "GPUWARD_RESTART_BACKOFF_S": "0.5",
}
RECOVERY_S = 40.0  # generous: the machine may be busy, and the test proves recovery, not its time
_STATEMENT_S = 30.0


@dataclass(frozen=True)
class Moment:
    """The deployments at the moment of a fault, with their engines: one runs, one loads, one is analyzed."""

    loading: str
    analyzing: str
    steady_pid: int
    loading_pid: int

    @property
    def names(self) -> tuple[str, str, str]:
        """All three."""
        return STEADY, self.loading, self.analyzing


class Faults:
    """One cluster under faults. `watch` sees all of its engines."""

    def __init__(self, cluster: Cluster, watch: EngineWatch) -> None:
        self.cluster = cluster
        self.watch = watch
        self._rounds = 0

    async def begin(self, *hosts: str, **env: str) -> None:
        """Starts controller and agents."""
        await self.cluster.start_controller(**{**SHORT, **env})
        for name in hosts or (HOST,):
            await self.cluster.start_agent(name)

    async def catch(self, *, load_s: float = 3.0, analysis_s: float = 2.0) -> Moment:
        """Returns while one deployment runs, a second one's engine loads and a third one is analyzed."""
        self._rounds += 1
        n = self._rounds
        loading, analyzing = f"loading-{n}", f"analyzing-{n}"
        if await self.cluster.phase_of(STEADY) == "gone":
            await self.cluster.apply(STEADY, args={"memory": "4GiB"}, probe={"path": "/health", "period": "1s"})
        await self.settled([STEADY])
        # A new size in each round, so that no cached analysis is used.
        await self.cluster.apply(loading, args={"memory": "4GiB", "load_seconds": load_s})
        await self.cluster.until(lambda: self.watch.pid(loading), f"the engine of {loading} loads")
        await self.cluster.apply(analyzing, args={"memory": f"{4096 + n}MiB", "analysis_seconds": analysis_s})
        await self.cluster.until(self._computes, f"{analyzing} is analyzed")
        steady_pid, loading_pid = self.watch.pid(STEADY), self.watch.pid(loading)
        assert steady_pid is not None
        assert loading_pid is not None
        return Moment(loading, analyzing, steady_pid, loading_pid)

    async def recovered(self, moment: Moment, *, kept: bool = True, limit_s: float = RECOVERY_S) -> None:
        """Checks that all three run; with `kept`, in the same processes and in their first start.

        Then deletes the two younger ones, so that the next fault finds the cluster as this one did.
        """
        await self.settled(moment.names, limit_s)
        await self.answers(STEADY)
        await self.cluster.audit()
        self.watch.check()
        self.check_logs()
        if kept:
            assert self.watch.pid(STEADY) == moment.steady_pid
            assert self.watch.pid(moment.loading) == moment.loading_pid
            for name in (moment.loading, moment.analyzing):
                assert self.watch.epochs(name) == {1}, name
        for name in (moment.loading, moment.analyzing):
            await self.cluster.delete(name)
        for name in (moment.loading, moment.analyzing):
            await self.cluster.gone(name)
            assert not self.watch.alive(name)

    def check_logs(self) -> None:
        """Checks that no expected fault was logged as an unexpected error."""
        for path in self.cluster.folder.glob("*.log"):
            log = path.read_text(errors="replace")
            assert "unexpectedly" not in log, log[log.index("unexpectedly") - 1000 :][:4000]

    async def settled(self, names: Iterable[str], limit_s: float = RECOVERY_S) -> None:
        """Waits until all of these run, each as one process."""

        async def done() -> bool:
            return all([await self._runs(name) for name in names])

        await self.cluster.until(done, f"{', '.join(names)} run", limit_s)

    async def _runs(self, name: str) -> bool:
        try:
            return await self.cluster.phases(name) == ["running"] and len(self.watch.alive(name)) == 1
        except (aiohttp.ClientError, TimeoutError, AssertionError):  # no answer, or not yet
            return False

    def _computes(self) -> bool:
        """Whether a controller has a computing child."""
        for name, process in self.cluster.processes.items():
            with suppress(psutil.Error):
                children = psutil.Process(process.pid).children(recursive=True) if name.startswith("controller") else []
                if any("child_main" in word for child in children for word in child.cmdline()):
                    return True
        return False

    async def answers(self, name: str) -> None:
        """Waits until the engine answers a request through the gateway."""
        body = {"model": name, "prompt": "hello", "max_tokens": 2}

        async def answered() -> bool:
            async with self.cluster.session.post("/v1/completions", json=body) as response:
                return response.status == 200

        await self.cluster.until(answered, f"{name} answers", RECOVERY_S)

    async def leader(self) -> dict[str, Any] | None:
        """What the API reports about the leader; None without an answer."""
        try:
            return dict(await self.cluster.get("/leader"))
        except (aiohttp.ClientError, TimeoutError, AssertionError):
            return None

    async def leaderless(self) -> bool:
        """Whether the controller no longer leads, or does not answer."""
        leader = await self.leader()
        return leader is None or not leader["leading"]

    async def phase_is(self, name: str, phase: str) -> bool:
        """Whether the only instance of a deployment is in this phase."""
        return await self.cluster.phases(name) == [phase]

    # The embedded PostgreSQL

    @property
    def dsn(self) -> str:
        """Its dsn."""
        return Layout(self.cluster.data_dir).url("postgresql")

    @property
    def postmaster(self) -> psutil.Process:
        """Its first process, the postmaster."""
        file = Layout(self.cluster.data_dir).cluster / "postmaster.pid"
        return psutil.Process(int(file.read_text().splitlines()[0]))

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator["asyncpg.Connection[Any]"]:
        """A connection of the test's own to the controller's database."""
        connection = await asyncpg.connect(self.dsn, timeout=_STATEMENT_S, command_timeout=_STATEMENT_S)
        try:
            yield connection
        finally:
            connection.terminate()

    async def backends(self, which: str) -> list[int]:
        """Pids of the controller's connections for which the condition on pg_stat_activity holds."""
        async with self.own_connection() as connection:
            query = f"select pid from pg_stat_activity where application_name = 'gpuward' and ({which})"  # noqa: S608 - the test's own
            return [row["pid"] for row in await connection.fetch(query)]

    async def until_lease_ended(self, outside: "asyncpg.Connection[Any]") -> None:
        """Waits until the lease has expired by the database's clock, plus a second."""
        await self.cluster.until(
            lambda: outside.fetchval(
                "select renewed_at + (ttl_s + 1) * interval '1 second' < clock_timestamp() from lease"
            ),
            "the lease has run out",
        )

    async def until_backends(self, which: str, what: str) -> list[int]:
        """Waits for such a connection; returns the pids."""
        found: list[int] = []

        async def there() -> bool:
            found[:] = await self.backends(which)
            return bool(found)

        await self.cluster.until(there, what)
        return found


LISTENER = "query ilike 'listen%' or query = 'SELECT 1'"
LEASE = "query like '%lease%'"


def kill(pid: int) -> None:
    """Sends SIGKILL, as a crash."""
    os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def frozen(*processes: psutil.Process) -> AsyncIterator[None]:
    """Suspends these processes while the context lasts."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def all_of(*steps: Any) -> None:
    """Runs independent scenarios at once; the first failure ends them all."""
    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(step)
