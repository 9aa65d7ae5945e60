"""The controller goes and comes back: the pages say so, change nothing meanwhile, and are true again at once (D11)."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
SAID_WITHIN_MS = 3000.0
LIVE_WITHIN_MS = 5000.0
SILENT_MS = 30_000  # of the page's clock: more than it waits for a sign of life
AWAY_S = 20.0
STARTS_S = 2.0  # about; a longer start makes the absence longer
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
ROUNDING_S = 0.05
LOST = re.compile(r"no connection since \d\d:\d\d:\d\d")
ACTS = ("Stop", "Scale", "Delete")
# Connections that fail, each noted with its time. The clock of the page is a fake one.
FAILS = """
    window.tries = [];
    window.WebSocket = class {
        static OPEN = 1;
        readyState = 3;
        constructor() {
            window.tries.push(Date.now());
            setTimeout(() => this.onclose({code: 1006}), 1);
        }
        close() {}
    };
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `stays`, of which two replicas run."""
    await cluster_a.apply("stays", replicas=2, resources=SMALL)
    await cluster_a.running("stays")
    yield cluster_a
    await cluster_a.delete("stays")
    await cluster_a.gone("stays")


async def acts_are(page: Page, *, on: bool) -> None:
    for name in ACTS:
        await expect(page.get_by_role("button", name=name, exact=True)).to_be_enabled(enabled=on)


async def test_a_lost_connection_is_said_and_comes_back(browser: Browser, held: Cluster) -> None:
    key, _ = await key_of(held, "admin", "bob")
    async with seat(browser, held.url, key) as taken:
        cluster = await taken.live()
        await held.apply("leaving", resources={"gpus": 1, "exclusive": True})
        await held.running("leaving")
        story, all_of_them, events = [await taken.context.new_page() for _ in range(3)]
        for page, path in (
            (story, "/ui/deployments/stays"), (all_of_them, "/ui/deployments"), (events, "/ui/events"),
        ):  # fmt: skip
            await page.goto(held.url + path)
            await expect(page.locator("[data-part=live]")).to_have_text("live")
        await acts_are(story, on=True)
        await expect(cluster.locator("[data-part=map]")).to_contain_text("leaving")
        await held.delete("leaving")
        held.kill("controller")
        gone_at = time.monotonic()
        for page in (cluster, story, all_of_them, events):
            await expect(page.locator("[data-part=live]")).to_have_text(LOST, timeout=SAID_WITHIN_MS)
            await expect(page.locator("main")).to_have_class(re.compile("stale"))
        await acts_are(story, on=False)
        await expect(cluster.locator("[data-gpu]")).to_have_count(12)
        await expect(story.get_by_role("link", name=re.compile("^stays-")).first).to_be_visible()
        await asyncio.sleep(AWAY_S - STARTS_S - (time.monotonic() - gone_at))
        await acts_are(story, on=False)
        await held.start_controller()
        back_at = time.monotonic()
        for page in (cluster, story, all_of_them, events):
            left_ms = LIVE_WITHIN_MS - (time.monotonic() - back_at) * 1000
            await expect(page.locator("[data-part=live]")).to_have_text("live", timeout=left_ms)
            await expect(page.locator("main")).not_to_have_class(re.compile("stale"))
        await acts_are(story, on=True)
        await held.gone("leaving")
        await expect(cluster.locator("[data-part=map]")).not_to_contain_text("leaving")
        await expect(cluster.locator("[data-gpu]")).to_have_count(12)
        await expect(all_of_them.get_by_role("link", name="leaving", exact=True)).to_have_count(0)
        await expect(all_of_them.get_by_role("main").get_by_role("link", name="stays", exact=True)).to_have_count(1)
        for one in await held.instances("stays"):
            replica = story.get_by_role("group", name="Replicas").get_by_role("link", name=one["name"], exact=True)
            await expect(replica).to_have_count(1)
        await told_once(story, held, "object=deployment/stays")
        await told_once(events, held)


async def test_a_controller_that_hangs_is_said_without_its_farewell(browser: Browser, held: Cluster) -> None:
    """It holds its connections open and answers nothing: the page waits for no close frame."""
    key, _ = await key_of(held, "admin", "bob")
    async with seat(browser, held.url, key) as taken:
        await taken.page.clock.install()
        page = await taken.live("/ui/deployments")
        await expect(page.get_by_role("main").get_by_role("link", name="stays", exact=True)).to_be_visible()
        held.signal("controller", signal.SIGSTOP)
        try:
            await page.clock.run_for(SILENT_MS)
            await expect(page.locator("[data-part=live]")).to_have_text(LOST, timeout=SAID_WITHIN_MS)
        finally:
            held.signal("controller", signal.SIGCONT)
        await expect(page.locator("[data-part=live]")).to_have_text("live", timeout=2 * LONGEST_WAIT_S * 1000)


async def told_once(page: Page, cluster: Cluster, of: str = "") -> None:
    """The page tells each event once: as many lines of each reason, in the same order, as the API has."""
    told = (await cluster.get(f"/events?limit=100&{of}"))["items"]
    said = [(one["reason"], one["message"], one["actor"], str(one["objects"])) for one in told]
    runs = [one[0] for n, one in enumerate(said) if n == 0 or said[n - 1] != one]
    lines = page.get_by_role("main").locator("li[data-reason]")
    await expect(lines).to_have_count(len(runs))
    assert await lines.evaluate_all("found => found.map(one => one.dataset.reason)") == runs


async def test_waits_between_tries_grow_to_ten_seconds_with_jitter(admin: Seat) -> None:
    """None is longer than a fifth of the time away, so that a return after 20 s is noticed within 4 s."""
    await admin.page.clock.install()
    await admin.page.add_init_script(FAILS)
    page = await admin.open("/ui/policies")
    await page.clock.run_for(200_000)
    tries: list[int] = await page.evaluate("window.tries")
    waits = [(after - before) / 1000 for before, after in pairwise(tries)]
    away = [(at - tries[0]) / 1000 for at in tries]
    for wait, since in zip(waits, away, strict=False):
        assert wait <= min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, since / 5)) + ROUNDING_S
    assert waits[0] < 1.0
    late = [wait for wait, since in zip(waits, away, strict=False) if since > 50]
    assert len(late) > 10
    assert min(late) >= LONGEST_WAIT_S * 0.6
    assert max(late) - min(late) > 0.5, "a crowd of pages does not come at once"


async def test_a_page_tries_at_once_when_the_network_is_back(admin: Seat) -> None:
    await admin.page.clock.install()
    await admin.page.add_init_script(FAILS)
    page = await admin.open("/ui/policies")
    await page.clock.run_for(100_000)
    await page.clock.pause_at(await page.evaluate("Date.now() / 1000 + 1"))
    await page.clock.run_for(10)
    for event in ("window.dispatchEvent(new Event('online'))", "document.dispatchEvent(new Event('visibilitychange'))"):
        before = await page.evaluate("window.tries.length")
        await page.evaluate(f"{event}; {event}")
        assert await page.evaluate("window.tries.length") == before + 1, "and one try at a time"
        await page.clock.run_for(10)
