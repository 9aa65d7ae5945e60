"""Cluster A of the dashboard's cases, one for a module: three workers of four GPUs, in a real Chromium."""

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from support.browser.dashboard import Seat, chromium, key_of, seat
from support.database.postgres import quick_folder
from support.processes.cluster import Cluster, Prepared

WORKERS = {"w1": "a", "w2": "a", "w3": "b"}  # and their zones


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster_a(prepared: Prepared) -> AsyncIterator[Cluster]:
    """Cluster A. Tests leave no deployment behind."""
    with quick_folder() as folder:
        cluster = Cluster(folder, prepared)
        cluster.use_rig()  # for answers that take long
        try:
            await cluster.start_controller()
            for name, zone in WORKERS.items():
                await cluster.start_agent(name, gpus=4, memory="80GiB", host={"labels": {"zone": zone}})
            yield cluster
        finally:
            await cluster.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for a module."""
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(browser: Browser, cluster_a: Cluster) -> AsyncIterator[Seat]:
    """A browser without a session."""
    async with seat(browser, cluster_a.url) as taken:
        yield taken


@pytest_asyncio.fixture(loop_scope="module")
async def admin(browser: Browser, cluster_a: Cluster) -> AsyncIterator[Seat]:
    """A browser with an administrator's session. The test fails where the browser complained."""
    key, _ = await key_of(cluster_a, "admin", "ann")
    async with seat(browser, cluster_a.url, key) as taken:
        yield taken
        assert taken.complaints == []
