"""A database that answers slowly while a fleet of doubles is cut off and comes back: none of them is lost for it."""

import asyncio
import time
from pathlib import Path

import asyncpg
import pytest

from support.database.gate import gate_to
from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.cluster import Cluster
from support.processes.many_hosts import GPUS, ManyHosts

SLOWNESS = 4.0  # each statement takes so many times as long
BACK_S = 60.0  # after the database is as quick as before
REPLICAS = 20
JOIN_S = 600.0
SMALL = pytest.param(250, 20.0, marks=pytest.mark.cases, id="250")
LARGE = pytest.param(5_000, 60.0, marks=[pytest.mark.nightly, pytest.mark.timeout(2_400)], id="5000")


@pytest.mark.parametrize(("doubles", "slow_s"), [SMALL, LARGE])
async def test_a_slow_database_costs_no_worker_and_no_instance(
    data_dir: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, doubles: int, slow_s: float
) -> None:
    """The doubles are cut off as the database becomes slow, so that their hellos are what it has to write."""
    monkeypatch.setenv("MANY_HOSTS_SEED", "1")
    dsn = await create_database(postgres)
    cluster = Cluster(data_dir)
    hosts: ManyHosts | None = None
    try:
        async with gate_to(dsn) as gate, asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            await cluster.start_controller(GPUWARD_DATABASE_URL=gate.dsn)
            hosts = await ManyHosts.start(cluster.url, "synthetic", "10")
            await hosts.add(cluster, doubles)
            await hosts.send(sampling=True)
            await cluster.until(lambda: _all_present(pool, doubles), "all are connected and ready", JOIN_S)
            for n in range(REPLICAS):
                await cluster.apply(
                    f"d-{n}", engine="simulated", resources={"gpus": min(GPUS, 2), "gpu_memory": "1GiB"}
                )
            await cluster.until(lambda: _all_run(pool), "all run", 120)
            before = await _instances(pool)
            gate.slowness, slow_until = SLOWNESS, time.monotonic() + slow_s
            back = asyncio.create_task(hosts.send(herd=True))
            await asyncio.sleep(slow_until - time.monotonic())
            gate.slowness = 1.0
            async with asyncio.timeout(BACK_S):
                await back
                while not await _all_present(pool, doubles):  # noqa: ASYNC110 - rows have no event to wait for
                    await asyncio.sleep(0.5)
            assert await _instances(pool) == before, "an instance was replaced or started again"
            told = await pool.fetch("select distinct reason from events where reason in ('worker_lost', 'replaced')")
            assert told == []
            assert "cannot reach its database" not in cluster.log("controller"), "agents were sent away"
            await cluster.audit()
    finally:
        if hosts is not None:
            await hosts.aclose()
        await cluster.aclose()
        await drop_database(postgres, dsn)


async def _all_present(pool: "asyncpg.Pool[asyncpg.Record]", doubles: int) -> bool:
    query = """
        select count(*) from workers w join worker_liveness l on l.worker_id = w.id
         where w.phase = 'ready' and l.connected and l.session = w.session
           and l.last_seen > clock_timestamp() - interval '15 s'"""
    return bool(await pool.fetchval(query) == doubles)


async def _all_run(pool: "asyncpg.Pool[asyncpg.Record]") -> bool:
    return bool(await pool.fetchval("select count(*) from instances where phase = 'running'") == REPLICAS)


async def _instances(pool: "asyncpg.Pool[asyncpg.Record]") -> list[tuple[str, int, str]]:
    rows = await pool.fetch("select id, epoch, phase from instances order by id")
    return [(row["id"], row["epoch"], row["phase"]) for row in rows]
