"""An empty cluster, and an API that takes long: what a new user sees, and that nothing jumps (D19)."""

import asyncio
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.database.postgres import quick_folder
from support.processes.cluster import Cluster, Prepared

pytestmark = pytest.mark.asyncio(loop_scope="module")
HOST = "workers: [{name: w1, gpus: [{model: NVIDIA A100, memory: 80GiB, count: 4}]}]"
SLOW_S = 4.0
ASKS = ("", "pending", "events", "hours")  # the others show what the live connection tells
MOST_SHIFT = 0.05  # of the Cumulative Layout Shift
SHIFTS = """() => new Promise(done => {
    let sum = 0;
    const seen = new PerformanceObserver(list => {
        for (const one of list.getEntries()) if (!one.hadRecentInput) sum += one.value;
    });
    seen.observe({type: "layout-shift", buffered: true});
    requestAnimationFrame(() => requestAnimationFrame(() => done(sum)));
})"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def empty(prepared: Prepared) -> AsyncIterator[Cluster]:
    """A controller that no agent has joined."""
    with quick_folder() as folder:
        cluster = Cluster(folder, prepared)
        try:
            await cluster.start_controller()
            yield cluster
        finally:
            await cluster.aclose()


@pytest_asyncio.fixture(loop_scope="module")
async def first_user(browser: Browser, empty: Cluster) -> AsyncIterator[Seat]:
    key, _ = await key_of(empty, "admin", "ann")
    async with seat(browser, empty.url, key) as taken:
        yield taken


async def test_a_viewer_is_told_what_an_administrator_runs(browser: Browser, empty: Cluster) -> None:
    key, _ = await key_of(empty, "viewer", "vic")
    async with seat(browser, empty.url, key) as taken:
        page = await taken.live()
        panel = page.get_by_role("region", name="Join the first GPU host")
        await expect(panel).to_contain_text("gpuward join-token create")
        await expect(panel.get_by_role("button", name="Make a join token")).to_have_count(0)


async def test_the_command_of_the_first_steps_joins_a_host(first_user: Seat, empty: Cluster) -> None:
    page = await first_user.live()
    panel = page.get_by_role("region", name="Join the first GPU host")
    await panel.get_by_role("button", name="Make a join token").click()
    await expect(panel).to_contain_text("shown only here")
    program, *words = shlex.split(await panel.locator("pre").inner_text())
    assert program == "gpuward"
    (empty.folder / "w1.yaml").write_text(HOST)
    simulated = ["--simulate", str(empty.folder / "w1.yaml"), "--data-dir", str(empty.folder / "agent-w1")]
    empty.start("w1", *words, "--name", "w1", *simulated)
    await expect(page.locator(".cell")).to_have_count(4, timeout=30_000)
    await expect(panel).to_have_count(0)
    await page.goto(first_user.url + "/ui/deployments")
    await expect(page.get_by_text("Nothing is deployed.")).to_be_visible()
    await page.get_by_role("main").get_by_role("link", name="Apply a manifest").last.click()
    await expect(page).to_have_url(first_user.url + "/ui/apply")


@pytest.mark.parametrize("path", [*ASKS, "deployments", "workers", "policies", "catalog"])
async def test_nothing_jumps_while_the_api_takes_long(first_user: Seat, path: str) -> None:
    """The skeleton comes after 300 ms, and what replaces it moves nothing that was read."""

    answers = asyncio.Event()

    async def late(route: Any) -> None:
        await answers.wait()
        await route.continue_()

    page = await first_user.live()
    await page.route(lambda url: "/api/v1/" in url and not url.endswith(("/me", "/live")), late)
    await page.goto(f"{first_user.url}/ui/{path}")
    await page.get_by_role("heading", level=1).wait_for(state="attached")
    if path in ASKS:
        await expect(page.locator(".skeleton i.shown").first).to_be_visible()
    await asyncio.sleep(SLOW_S)
    answers.set()
    await expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=3 * SLOW_S * 1000)
    assert await shifts(page) < MOST_SHIFT


async def shifts(page: Page) -> float:
    """How far content has moved by itself since the navigation, as CLS counts it."""
    found: float = await page.evaluate(SHIFTS)
    return found
