"""Wall clocks an hour off, and set at run time: of controller and database, and of agent and engines."""

import asyncio
import time
from pathlib import Path

import pytest

from support.processes.faults import HOST, SHORT, STEADY, Faults, kill
from support.processes.wrong_clock import wrong_clock

pytestmark = pytest.mark.cases

HOUR_S = 3600
HINTS = 40
LONG_S = float(SHORT["GPUWARD_UNREACHABLE_AFTER_S"]) + 2


async def test_an_hour_off(faults: Faults, data_dir: Path) -> None:
    cluster = faults.cluster
    with wrong_clock(data_dir / "controllers") as controllers, wrong_clock(data_dir / "agents") as agents:
        agents.set(-HOUR_S)  # from the start
        env = {**SHORT, **controllers.env, "GPUWARD_RESTART_BACKOFF_S": "3"}
        await cluster.start_controller(**env)
        began = time.monotonic()
        await cluster.start_agent(HOST, **agents.env)
        moment = await faults.catch()
        agents.set(HOUR_S)
        await faults.recovered(moment)

        # Long enough that a heartbeat dated an hour ago would count as silence.
        await asyncio.sleep(max(0.0, began + LONG_S - time.monotonic()))
        moment = await faults.catch()
        controllers.set(HOUR_S)
        await _all_are_heard(faults)
        await faults.recovered(moment)

        moment = await faults.catch()
        kill(moment.loading_pid)  # its backoff was computed by the clock that is set back now, too
        await cluster.until(lambda: faults.phase_is(moment.loading, "backoff"), "it is in backoff")
        controllers.set(0)
        await _all_are_heard(faults)
        await faults.recovered(moment, kept=False)
        assert faults.watch.pid(STEADY) == moment.steady_pid

        cluster.kill("controller")
        await cluster.start_controller(**env)
        await faults.settled([STEADY])
        await cluster.audit()


async def _all_are_heard(faults: Faults) -> None:
    """Workers are reconciled repeatedly, before the next heartbeat and after it."""
    async with faults.own_connection() as outside:
        for _ in range(HINTS):
            await outside.execute("select pg_notify('gpuward', 'worker *')")
            await asyncio.sleep(0.05)
            assert await faults.cluster.worker_is(HOST, "ready")
