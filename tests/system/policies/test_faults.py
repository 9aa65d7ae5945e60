"""Policies during faults in mid-window: of controller, database, leader, agent, clock and network."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.cluster import Cluster
from support.processes.controllers import Controllers
from support.processes.faults import RECOVERY_S, SHORT, Faults, all_of, kill
from support.processes.policies import SAMPLE_S, SAMPLING, WINDOW_S, PolicyWatch, seconds
from support.processes.policy_faults import FAULT_AT_S, Subjects, subjects_on
from support.processes.wrong_clock import wrong_clock
from support.standins.load_balancer import LoadBalancer

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]  # three clusters at once; a busy machine takes its time

HOUR_S = 3600
ENV = {**SHORT, **SAMPLING, "GPUWARD_UNREACHABLE_AFTER_S": "10", "GPUWARD_LOST_AFTER_S": "600"}
BEYOND_FULL_S = 6.0  # a cut in mid-window that lasts until the window would have been full for so long
MakeFaults = Callable[[str], Faults]


async def test_in_mid_window(make_faults: MakeFaults, make_pair: "MakePair", data_dir: Path) -> None:
    """All at once, each well before the window is full."""
    await all_of(
        _database_then_controller(make_faults("a")),
        _leader(make_pair("b")),
        _agents(make_faults("c").cluster, data_dir, WINDOW_S - FAULT_AT_S + BEYOND_FULL_S),
    )


@pytest.mark.nightly
async def test_for_longer_than_a_window(make_faults: MakeFaults, data_dir: Path) -> None:
    """The network is cut for a minute; controller and database are away as long."""
    await all_of(
        _agents(make_faults("a").cluster, data_dir, 60.0),
        _controller_away(make_faults("b"), 45.0),
    )


async def _database_then_controller(faults: Faults) -> None:
    """PostgreSQL is killed, then the controller; each is soon back."""
    cluster, watch = faults.cluster, PolicyWatch(faults.cluster)
    await faults.begin("host", **ENV)
    (subjects,) = await subjects_on(watch, "host")
    await subjects.serve()
    kill(faults.postmaster.pid)
    await asyncio.sleep(5)
    cluster.kill("controller")
    await cluster.start_controller(**ENV)
    await subjects.end_well(back_at=await watch.now())  # on a busy machine it starts late
    await subjects.check_samples(subjects.served[subjects.busy].since + seconds(SAMPLE_S), await watch.now())
    await cluster.audit()
    faults.watch.check()


async def _controller_away(faults: Faults, away_s: float) -> None:
    cluster, watch = faults.cluster, PolicyWatch(faults.cluster)
    await faults.begin("host", **ENV)
    (subjects,) = await subjects_on(watch, "host")
    await subjects.serve()
    cluster.kill("controller")
    await asyncio.sleep(away_s)
    started_at = datetime.now(UTC)
    await cluster.start_controller(**ENV)
    await subjects.end_well(not_before=started_at, back_at=await watch.now())
    await subjects.check_samples(subjects.served[subjects.busy].since + seconds(SAMPLE_S), await watch.now())
    await cluster.audit()


async def _agents(cluster: Cluster, data_dir: Path, cut_s: float) -> None:
    """One agent is killed and adopts its engines; one host's clock is an hour slow, then fast; one agent is cut off."""
    watch = PolicyWatch(cluster)
    with wrong_clock(data_dir / "clock") as clock:
        clock.set(-HOUR_S)
        await cluster.start_controller(**ENV)
        door = await LoadBalancer(cluster.port).open()
        try:
            await cluster.start_agent("killed")
            await cluster.start_agent("skewed", **clock.env)
            await cluster.start_agent("far", url=door.url)
            killed, skewed, far = await subjects_on(watch, "killed", "skewed", "far")
            for subjects in (killed, skewed, far):
                await subjects.serve()
            door.cut()
            cut_at = await watch.now()
            clock.set(HOUR_S)
            cluster.kill("killed")
            await cluster.start_agent("killed", ready=False)
            await all_of(killed.end_well(), skewed.end_well(), _mended(far, door, cut_s))
            await far.check_samples(cut_at, cut_at + seconds(cut_s))
            await skewed.check_samples(skewed.served[skewed.busy].since + seconds(SAMPLE_S), await watch.now())
            await cluster.audit()
        finally:
            await door.close()


async def _mended(far: Subjects, door: LoadBalancer, cut_s: float) -> None:
    """Nothing is done to instances without samples; after the cut the samples arrive."""
    await asyncio.sleep(cut_s)
    assert await far.watch.now() > far.served[far.idle].full_at()
    for name in (far.idle, far.falls, far.busy):
        await far.watch.untouched([name])
        condition = await far.watch.condition(name)
        assert condition["status"] == "unknown", condition
        assert condition["reason"], condition
    mended_at = await far.watch.now()
    door.mend()
    await far.end_well(not_before=mended_at)


class Pair:
    """Controllers a and b on one database, of which a leads; an agent behind its own load balancer for each."""

    def __init__(self, cluster: Controllers) -> None:
        self.cluster = cluster
        self.doors: list[LoadBalancer] = []

    async def begin(self) -> None:
        await self.cluster.start_named("a", **ENV)
        await self.cluster.until(lambda: self.cluster.leads("a"), "a leads")
        await self.cluster.start_named("b", **ENV)
        for name in ("a", "b"):
            self.doors.append(await LoadBalancer(self.cluster.port_of(name)).open())
            await self.cluster.start_agent(f"on-{name}", url=self.doors[-1].url)

    async def aclose(self) -> None:
        await self.cluster.aclose()
        for door in self.doors:
            await door.close()


MakePair = Callable[[str], "tuple[Pair, PolicyWatch]"]


@pytest.fixture
async def make_pair(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[MakePair]:
    async with AsyncExitStack() as stack:
        dsn = await create_database(postgres)
        stack.push_async_callback(drop_database, postgres, dsn)

        def make(name: str) -> tuple[Pair, PolicyWatch]:
            folder = data_dir / name
            folder.mkdir()
            pair = Pair(Controllers(folder, dsn))
            stack.push_async_callback(pair.aclose)
            return pair, PolicyWatch(pair.cluster, dsn)

        yield make


async def _leader(made: tuple[Pair, PolicyWatch]) -> None:
    """The leader is killed; its agent connects to the other, which leads from then on."""
    pair, watch = made
    await pair.begin()
    here, there = await subjects_on(watch, "on-a", "on-b")
    await here.serve()
    await there.serve()
    pair.cluster.through("b")
    pair.cluster.kill_named("a")
    pair.doors[0].target = pair.cluster.port_of("b")
    await pair.cluster.until(lambda: pair.cluster.leads("b"), "b leads", RECOVERY_S)
    leads_at = await watch.now()
    await here.end_well(back_at=leads_at)
    await there.end_well(back_at=leads_at)
    await there.check_samples(there.served[there.busy].since + seconds(SAMPLE_S), await watch.now())
    await pair.cluster.audit()
