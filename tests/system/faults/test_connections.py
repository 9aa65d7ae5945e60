"""Database connections are cut, exhausted and blocked while deployments are analyzed, load and run."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import asyncpg
import pytest

from support.processes.faults import LEASE, LISTENER, Faults, all_of

pytestmark = pytest.mark.cases

HELD_S = 10.0
CUT_ALL = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'gpuward'"


async def test_cut(make_faults: Callable[[str], Faults]) -> None:
    """`pg_terminate_backend` on the listener, on the pool, and on everything at once."""
    kinds = {"listener": LISTENER, "pool": f"not ({LISTENER} or {LEASE})", "all": "true"}
    await all_of(*(_cut(make_faults(name), which) for name, which in kinds.items()))


async def _cut(faults: Faults, which: str) -> None:
    await faults.begin()
    moment = await faults.catch()
    pids = await faults.backends(which)
    assert pids, which
    async with faults.own_connection() as outside:
        await outside.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as pid", pids)
    await faults.recovered(moment)


@pytest.mark.nightly
async def test_held_up_and_used_up(make_faults: Callable[[str], Faults]) -> None:
    """Foreign locks, held longer than any statement waits; and no free connection."""
    await all_of(_held_up(make_faults("a")), _used_up(make_faults("b")))


async def _held_up(faults: Faults) -> None:
    await faults.begin()
    for what in ("deployments, instances", "lease", "devices, workers"):
        moment = await faults.catch()
        async with faults.own_connection() as outside, outside.transaction():
            await outside.execute(f"lock table {what} in access exclusive mode")
            await asyncio.sleep(HELD_S)
        await faults.recovered(moment)


async def _used_up(faults: Faults) -> None:
    await faults.begin()
    moment = await faults.catch()
    async with AsyncExitStack() as held:
        first = await held.enter_async_context(faults.own_connection())

        async def used_up() -> bool:
            await first.execute(CUT_ALL)
            await _take_all(held, faults)
            return await faults.leaderless()

        await faults.cluster.until(used_up, "no controller leads, for lack of a connection", 40)
        await asyncio.sleep(HELD_S / 2)
    await faults.recovered(moment)


async def _take_all(held: AsyncExitStack, faults: Faults) -> None:
    """Connects until no connection is free."""
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            await held.enter_async_context(faults.own_connection())
