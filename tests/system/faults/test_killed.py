"""SIGKILL of everything that can be killed, while deployments are analyzed, load and run."""

import signal
from collections.abc import Callable

import pytest

from support.faults import HOST, SHORT, STEADY, Faults, all_of, kill

pytestmark = pytest.mark.cases


async def test_killed(make_faults: Callable[[str], Faults]) -> None:
    await all_of(_controller_and_agent(make_faults("a")), _database(make_faults("b")), _engines(make_faults("c")))


async def _controller_and_agent(faults: Faults) -> None:
    """The controller (with its database, which dies with it), the agent, and both: engines never notice."""
    cluster = faults.cluster
    await faults.begin()

    moment = await faults.catch()
    cluster.kill("controller")
    await cluster.start_controller(**SHORT)
    await faults.recovered(moment)

    moment = await faults.catch()
    cluster.kill(HOST)
    await cluster.start_agent(HOST, ready=False)
    await faults.recovered(moment)

    moment = await faults.catch()
    cluster.kill("controller")
    cluster.kill(HOST)
    await cluster.start_controller(**SHORT)
    await cluster.start_agent(HOST, ready=False)
    await faults.recovered(moment)


async def _engines(faults: Faults) -> None:
    """They start again, once."""
    await faults.begin()
    moment = await faults.catch()
    kill(moment.steady_pid)
    kill(moment.loading_pid)
    await faults.recovered(moment, kept=False)
    assert faults.watch.epochs(STEADY) == {1, 2}
    assert faults.watch.epochs(moment.loading) == {1, 2}
    assert faults.watch.epochs(moment.analyzing) == {1}


async def _database(faults: Faults) -> None:
    """PostgreSQL, whole and in part, and in the middle of a transaction of ours."""
    await faults.begin()

    moment = await faults.catch()
    kill(faults.postmaster.pid)
    await faults.recovered(moment)

    moment = await faults.catch()
    kill((await faults.backends("state = 'idle'"))[0])  # PostgreSQL then ends all its backends
    await faults.recovered(moment)

    moment = await faults.catch()
    async with faults.stranger() as connection:
        await connection.execute("begin; lock table claims in access exclusive mode")
        # Placing or reading: a transaction of the leader's waits in its middle.
        await faults.until_backends("wait_event_type = 'Lock'", "a transaction of ours waits")
        faults.postmaster.send_signal(signal.SIGQUIT)
    await faults.recovered(moment)
