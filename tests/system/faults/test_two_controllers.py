"""Two controllers on one external database, with agents on either: one leads, and they never both act."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.controllers import HUB, LEADER, Controllers
from support.processes.engine_watch import EngineWatch
from support.processes.faults import RECOVERY_S, SHORT, STEADY, Faults, all_of, frozen
from support.standins.load_balancer import LoadBalancer

TTL_S = float(SHORT["GPUWARD_LEASE_TTL_S"])
NOTICED_S = 4.0  # a follower checks once a second; the rest is for a busy machine


class Pair:
    """Controllers a and b, of which a leads; agents on-a and on-b, each behind its own load balancer."""

    def __init__(self, cluster: Controllers, faults: Faults, dsn: str) -> None:
        self.cluster = cluster
        self.faults = faults
        self.dsn = dsn
        self.doors: dict[str, LoadBalancer] = {}

    async def begin(self, **env: str) -> None:
        await self.cluster.start_named("a", **{**SHORT, **env})
        await self.cluster.until(lambda: self.cluster.leads("a"), "a leads")
        await self.cluster.start_named("b", **{**SHORT, **env})
        for name in ("a", "b"):
            self.doors[name] = await LoadBalancer(self.cluster.port_of(name)).open()
            await self.cluster.start_agent(f"on-{name}", url=self.doors[name].url)
        assert (await self.cluster.leader_at("b") or {})["leading"] is False

    async def term(self) -> int:
        return int((await self.cluster.execute("select term from lease"))[0]["term"])

    async def session(self, worker: str) -> int:
        """The number of the agent's newest connection."""
        return int((await self.cluster.execute("select session from workers where name = $1", worker))[0]["session"])

    async def takes_over(self, name: str, since: float) -> float:
        """Waits until this one leads; returns the seconds since then."""
        await self.cluster.until(lambda: self.cluster.leads(name), f"{name} leads", RECOVERY_S)
        return time.monotonic() - since

    async def place(self, name: str, worker: str) -> None:
        await self.cluster.apply(name, args={"memory": "1GiB"}, placement={"workers": [worker]})

    async def aclose(self) -> None:
        await self.cluster.aclose()
        for door in self.doors.values():
            await door.close()


MakePair = Callable[[str], Awaitable[Pair]]


@pytest.fixture
async def make_pair(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[MakePair]:
    """Makes pairs by name, each on its own database."""
    async with AsyncExitStack() as stack:

        async def make(name: str) -> Pair:
            folder = data_dir / name
            folder.mkdir()
            dsn = await create_database(postgres)
            stack.push_async_callback(drop_database, postgres, dsn)
            cluster = Controllers(folder, dsn)
            watch = stack.enter_context(EngineWatch(folder))
            pair = Pair(cluster, Faults(cluster, watch), dsn)
            stack.push_async_callback(pair.aclose)
            return pair

        yield make


@pytest.mark.cases
async def test_one_leads_and_the_other_takes_over(make_pair: MakePair) -> None:
    await all_of(_killed(await make_pair("a")), _lost_without_knowing(await make_pair("b")))


async def _killed(pair: Pair) -> None:
    """Both serve; when the leader is killed, the other one leads within the lease."""
    cluster, faults = pair.cluster, pair.faults
    await pair.begin()
    # Either takes requests, for its own agents and the other's.
    cluster.through("b")
    await pair.place("one", "on-a")
    await pair.place("two", "on-b")
    cluster.through("a")
    await pair.place("three", "on-b")
    await faults.settled(["one", "two", "three"])

    cluster.through("b")
    moment = await faults.catch()
    killed = time.monotonic()
    cluster.kill_named("a")
    pair.doors["a"].target = cluster.port_of("b")
    assert await pair.takes_over("b", killed) <= TTL_S + NOTICED_S
    await faults.recovered(moment)
    await faults.settled(["one", "two", "three"])

    await cluster.start_named("a", **SHORT)
    assert (await cluster.leader_at("a") or {})["leading"] is False
    cluster.through("a")
    await cluster.delete("three")
    await cluster.gone("three")
    await cluster.audit()
    faults.watch.check()


@pytest.mark.cases
async def test_frozen_in_mid_transaction_and_resumed(make_pair: MakePair) -> None:
    """The leader is suspended while it holds the term row: the other leads nevertheless, and the first is too late."""
    pair = await make_pair("a")
    cluster, faults = pair.cluster, pair.faults
    await pair.begin()
    await cluster.record_writes()
    cluster.through("b")
    await pair.place(STEADY, "on-a")
    await faults.settled([STEADY])
    term = await pair.term()

    outside = await asyncpg.connect(pair.dsn, timeout=30)
    try:
        await outside.execute("begin; lock table claims in access exclusive mode")
        await pair.place("late", "on-b")  # a's reconcilers wait for the table
        await cluster.until(lambda: _waits_with_the_term(outside), "a transaction of the leader is blocked")
        async with frozen(psutil.Process(cluster.pid_of("a"))):
            since = time.monotonic()
            pair.doors["a"].target = cluster.port_of("b")
            session = await pair.session("on-a")
            await outside.execute("rollback")
            assert await pair.takes_over("b", since) <= TTL_S + NOTICED_S
            await pair.place("later", "on-b")
            await faults.settled(["late", "later"])

            async def moved(before: int = session) -> bool:
                return await pair.session("on-a") > before

            await cluster.until(moved, "the frozen one's agent went to b", RECOVERY_S)
    finally:
        outside.terminate()

    await cluster.until(lambda: _follows(cluster, "a"), "a follows", RECOVERY_S)
    await asyncio.sleep(TTL_S)  # time for what it must not do: act, or write its former agent's last report
    assert await cluster.written_by("a", since_term=term + 1, places=(*LEADER, *HUB)) == []
    assert await cluster.written_by("b", since_term=term + 1) != []
    assert await pair.term() == term + 1
    cluster.through("a")
    await faults.settled([STEADY, "late", "later"])
    assert await cluster.worker_is("on-a", "ready")
    await cluster.audit()
    faults.watch.check()


async def _lost_without_knowing(pair: Pair) -> None:
    """The lease passes on while its holder still believes in it, as when the database's clock jumps."""
    cluster, faults = pair.cluster, pair.faults
    await pair.begin(GPUWARD_LEASE_TTL_S="20")  # renewed every 6 s: until then a does not know
    await cluster.record_writes()
    await pair.place("before", "on-a")
    await faults.settled(["before"])
    term = await pair.term()
    renewed = (await cluster.execute("select renewed_at from lease"))[0]["renewed_at"]

    async def renewed_again() -> bool:
        return bool((await cluster.execute("select renewed_at from lease"))[0]["renewed_at"] > renewed)

    await cluster.until(renewed_again, "the leader renews", 30)
    await cluster.execute(
        "with free as (update lease set renewed_at = '-infinity' returning 1)"
        " select pg_notify('gpuward', 'lease *') from free"
    )
    await pair.takes_over("b", time.monotonic())
    cluster.through("b")
    both = await cluster.leads("a")
    for n in range(12):
        await pair.place(f"after-{n}", "on-a" if n % 2 else "on-b")
    await faults.settled([f"after-{n}" for n in range(12)])
    assert both, "the first leader noticed too soon for this to prove anything"
    assert await cluster.written_by("a", since_term=term + 1) == []
    await cluster.until(lambda: _follows(cluster, "a"), "a follows", RECOVERY_S)
    await cluster.audit()
    faults.watch.check()


async def _waits_with_the_term(outside: Any) -> bool:
    query = """select 1 from pg_stat_activity a join pg_locks l on l.pid = a.pid
                where a.wait_event_type = 'Lock' and l.relation = 'lease'::regclass and l.mode = 'RowShareLock'"""
    return bool(await outside.fetch(query))


async def _follows(cluster: Controllers, name: str) -> bool:
    return (await cluster.leader_at(name) or {}).get("leading") is False
