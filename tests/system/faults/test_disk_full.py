"""A full disk under the agent and under PostgreSQL: engines run on, and once space is free all is as specified."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import aiohttp
import asyncpg
import pytest

from support.processes.faults import HOST, SHORT, STEADY, Faults, all_of
from support.processes.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.cases

FULL_S = 4.0
LOG_MIB = 64  # a segment has 16


@pytest.fixture
def agents(make_faults: Callable[[str], Faults]):
    """A cluster whose agent has its own small disk."""
    faults = make_faults("a")
    with small_disk(faults.cluster.folder / f"agent-{HOST}", 8) as disk:
        yield faults, disk


@pytest.fixture
def databases(make_faults: Callable[[str], Faults]):
    """A cluster whose controller and PostgreSQL have one."""
    faults = make_faults("b")
    with small_disk(faults.cluster.data_dir, 160) as disk:
        yield faults, disk


async def test_full_and_freed(agents: tuple[Faults, SmallDisk], databases: tuple[Faults, SmallDisk]) -> None:
    await all_of(_agents(*agents), _databases(*databases))


async def _agents(faults: Faults, disk: SmallDisk) -> None:
    cluster = faults.cluster
    await cluster.start_controller(**SHORT)
    token = (await cluster.post("/tokens", {}))["token"]
    await cluster.start_agent(HOST, GPUWARD_JOIN_TOKEN=token)
    moment = await faults.catch(load_s=6)
    await cluster.until(lambda: faults.watch.log_of(moment.loading), "it has written its first line")
    disk.fill()
    await asyncio.sleep(FULL_S)
    # The next agent manages with the same space.
    cluster.kill(HOST)
    await cluster.start_agent(HOST, ready=False)
    await faults.settled([STEADY, moment.loading])
    assert cluster.processes[HOST].poll() is None
    disk.free()
    # The engine that should start meanwhile could not write its log, and was retried.
    await faults.recovered(moment, kept=False)
    assert faults.watch.pid(STEADY) == moment.steady_pid
    assert faults.watch.epochs(moment.loading) == {1}


async def _databases(faults: Faults, disk: SmallDisk) -> None:
    cluster = faults.cluster
    await faults.begin()
    moment = await faults.catch()
    server = faults.postmaster
    disk.fill()
    async with faults.own_connection() as outside:
        # Soon the next WAL segment does not fit: the server stops and cannot start again.
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            for _ in range(LOG_MIB):
                await outside.execute("select pg_logical_emit_message(true, 'test', repeat('x', 1048576))")
    await cluster.until(lambda: not server.is_running(), "PostgreSQL has given up", 40)
    for path in ("/deployments/other", "/secrets/other"):
        body = {"engine": "simulated"} if "deployments" in path else {"value": "x"}
        with suppress(aiohttp.ClientError):
            status, answer = await cluster.call("PUT", path, body)
            assert status == 503, answer

    async def refused_for_that() -> bool:
        with suppress(aiohttp.ClientError):
            status, answer = await cluster.call("PUT", "/deployments/other", {"engine": "simulated"})
            return (status, answer["error"]["code"]) == (503, "database_full")
        return False

    await cluster.until(refused_for_that, "the answer has the reason")
    await asyncio.sleep(FULL_S)
    assert cluster.processes["controller"].poll() is None
    disk.free()
    await faults.recovered(moment)
    assert "Traceback" not in cluster.whole_log("controller")
