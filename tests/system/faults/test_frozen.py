"""SIGSTOP past every limit on silence, then SIGCONT, while deployments are analyzed, load and run."""

import asyncio
from collections.abc import Callable

import psutil
import pytest

from support.processes.faults import HOST, SHORT, STEADY, Faults, all_of, frozen

pytestmark = pytest.mark.cases

PAST_LEASE_S = float(SHORT["GPUWARD_LEASE_TTL_S"]) + 1
PAST_EVERYTHING_S = 45.0  # no statement, no step and no end of a term waits so long


async def test_frozen_and_resumed(make_faults: Callable[[str], Faults]) -> None:
    """A resumed process recovers its part; the engines have not changed."""
    await all_of(_controller_and_database(make_faults("a")), _agent(make_faults("b")), _engines(make_faults("c")))


@pytest.mark.nightly
async def test_a_database_that_hangs_for_long(faults: Faults) -> None:
    await faults.begin()
    moment = await faults.catch()
    controller = faults.cluster.processes["controller"]
    async with frozen(faults.postmaster, *faults.postmaster.children(recursive=True)):
        await asyncio.sleep(PAST_EVERYTHING_S)
    await faults.recovered(moment)
    assert faults.cluster.processes["controller"] is controller
    assert controller.poll() is None


async def _controller_and_database(faults: Faults) -> None:
    await faults.begin()
    for who in ("controller", "database"):
        moment = await faults.catch()
        term = (await faults.leader() or {})["term"]
        processes = [psutil.Process(faults.cluster.processes["controller"].pid)]
        if who == "database":
            processes = [faults.postmaster, *faults.postmaster.children(recursive=True)]
        async with faults.own_connection() as outside, frozen(*processes):
            if who == "controller":
                await faults.until_lease_ended(outside)
            else:
                await asyncio.sleep(PAST_LEASE_S)

        async def leads_anew(before: int = term) -> bool:
            leader = await faults.leader()
            return leader is not None and leader["leading"] and leader["term"] > before

        await faults.cluster.until(leads_anew, "it leads in a new term", 40)
        await faults.recovered(moment)


async def _agent(faults: Faults) -> None:
    await faults.begin()
    moment = await faults.catch(load_s=1, analysis_s=1)
    async with frozen(psutil.Process(faults.cluster.processes[HOST].pid)):
        await faults.cluster.until(lambda: faults.cluster.worker_is(HOST, "unreachable"), "the host is silent", 60)
        await faults.cluster.until(lambda: faults.phase_is(STEADY, "unreachable"), "so are its instances")
        await faults.cluster.audit()
    await faults.cluster.until(lambda: faults.cluster.worker_is(HOST, "ready"), "the host is back")
    await faults.recovered(moment)


async def _engines(faults: Faults) -> None:
    await faults.begin()
    moment = await faults.catch()
    async with frozen(psutil.Process(moment.steady_pid), psutil.Process(moment.loading_pid)):
        await faults.cluster.until(lambda: faults.phase_is(STEADY, "unhealthy"), "it is unhealthy", 40)
        assert await faults.phase_is(moment.loading, "starting")
    await faults.recovered(moment)
