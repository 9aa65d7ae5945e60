"""SIGKILL of every process while deployments are analyzed, load and run."""

import signal
from collections.abc import Callable

import pytest

from support.processes.faults import HOST, SHORT, STEADY, Faults, all_of, kill

pytestmark = pytest.mark.cases


async def test_killed(make_faults: Callable[[str], Faults]) -> None:
    await all_of(_controller_and_agent(make_faults("a")), _database(make_faults("b")), _engines(make_faults("c")))


async def _controller_and_agent(faults: Faults) -> None:
    """The controller with its database, the agent, and both at once: engines are not affected."""
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
    """Each starts again, once."""
    await faults.begin()
    moment = await faults.catch()
    kill(moment.steady_pid)
    kill(moment.loading_pid)
    await faults.recovered(moment, kept=False)
    assert faults.watch.epochs(STEADY) == {1, 2}
    assert faults.watch.epochs(moment.loading) == {1, 2}
    assert faults.watch.epochs(moment.analyzing) == {1}


async def _database(faults: Faults) -> None:
    """PostgreSQL: the server, one backend, and in the middle of a transaction."""
    await faults.begin()

    moment = await faults.catch()
    kill(faults.postmaster.pid)
    await faults.recovered(moment)

    moment = await faults.catch()
    kill((await faults.backends("state = 'idle'"))[0])  # PostgreSQL then ends all its backends
    await faults.recovered(moment)

    moment = await faults.catch()
    async with faults.own_connection() as connection:
        await connection.execute("begin; lock table claims in access exclusive mode")
        # A transaction of the leader, placing or reading, blocks in its middle.
        await faults.until_backends("wait_event_type = 'Lock'", "a transaction of ours is blocked")
        faults.postmaster.send_signal(signal.SIGQUIT)
    await faults.recovered(moment)
