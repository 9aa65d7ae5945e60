"""What is wrong looks like it: states of GPUs on the map (D16), and four troubles at once in "Needs you" (D22)."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from controller.store.core.database import Database
from support.browser.dashboard import Seat, seat
from support.database.ledger import add_deployment, add_host, add_instance, claim
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.served_api import ServedApi, served
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
STATES = {
    "lost": "worker lost",
    "sick": "unhealthy",
    "held-back": "cordoned",
    "leaving": "draining",
    "new": "no sample",
}
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
MENDED_MS = 2000.0
REASON = "xid_79: fell off the bus"
BACKGROUND = "element => getComputedStyle(element).backgroundImage + getComputedStyle(element).borderStyle"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def troubled(postgres: PostgresServer) -> AsyncIterator[ServedApi]:
    """The API on a database with a worker in each state, of one GPU each."""
    async with migrated_database(postgres, migrated_template(postgres)) as database:
        await fill(database)
        async with served(database) as api:
            yield api


async def fill(database: Database) -> None:
    for name in STATES:
        await add_host(database, name, gpus=1, gib=80, phase="lost" if name == "lost" else "ready")
    uid = await add_deployment(database, "m")
    await add_instance(database, uid, "m-1", phase="running", epoch=1)
    await claim(database, "GPU-leaving-0", "m-1", 1024)
    async with database.transaction() as connection:
        await connection.execute("update workers set cordoned = true where name = 'held-back'")
        await connection.execute("update workers set labels = $1 where name = 'new'", {"zone": HOSTILE})
        await connection.execute("update workers set draining = true where name = 'leaving'")
        await connection.execute(
            "update devices set health = 'unhealthy', health_reason = $1 where uuid = 'GPU-sick-0'", REASON
        )


# The least contrast of a text of a cell with any colour that stands behind it, as WCAG reckons it.
CONTRAST = """cell => {
    const numbers = text => [...text.matchAll(/rgba?\\(([^)]+)\\)/g)].map(one => one[1].split(/[, /]+/).map(Number));
    const linear = part => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const style = getComputedStyle(cell);
    const solid = numbers(style.backgroundColor).filter(one => (one[3] ?? 1) > 0);
    const grounds = [...numbers(style.backgroundImage), ...solid].map(light);
    const colour = one => numbers(getComputedStyle(one).color)[0];
    const texts = [...cell.querySelectorAll("span:not(.meter)")].map(one => light(colour(one)));
    return Math.min(...texts.flatMap(text => grounds.map(ground =>
        (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05))));
}"""
LEAST_CONTRAST = 4.5
HOSTILE = '<img src=x onerror="alert(1)">'


def cell(page: Page, worker: str) -> Locator:
    return page.locator(f"[data-gpu='GPU-{worker}-0']")


async def test_each_state_has_a_pattern_and_a_word_besides_its_colour(browser: Browser, troubled: ServedApi) -> None:
    async with seat(browser, troubled.url, troubled.keys["viewer"]) as taken:
        page = await taken.live()
        looks: dict[str, str] = {}
        for worker, word in STATES.items():
            await expect(cell(page, worker)).to_contain_text(word)
            await expect(cell(page, worker).locator(".cell-figure")).to_have_text("\N{EN DASH}")
            looks[worker] = await cell(page, worker).evaluate(BACKGROUND)
        assert len(set(looks.values())) == len(STATES), looks
        assert "0 %" not in await page.locator("[data-part=map]").inner_text()
        mean = page.locator(".figure", has_text="Mean utilization")
        await expect(mean).to_contain_text("\N{EN DASH}")
        await expect(mean).to_contain_text("of 0 GPUs with samples")
        await page.get_by_label("Order").select_option("problems")
        await expect(page.locator(".cells-name")).to_have_text(["lost", "sick", "leaving", "held-back", "new"])
        await cell(page, "sick").hover()
        await expect(page.locator("[data-part=map-tip]")).to_contain_text(REASON)
        await page.get_by_role("button", name="Table", exact=True).click()
        for worker in STATES:
            row = page.get_by_role("row", name=re.compile(f"^{worker} GPU 0"))
            await expect(row.get_by_role("cell").last).not_to_have_text("0 %")
        assert taken.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_text_is_legible_on_the_pattern_of_each_state(browser: Browser, troubled: ServedApi, theme: str) -> None:
    """axe does not look at patterns."""
    async with seat(browser, troubled.url, troubled.keys["viewer"], color_scheme=theme) as taken:
        page = await taken.live()
        await expect(page.locator(".cell")).to_have_count(len(STATES))
        found = {worker: await cell(page, worker).evaluate(CONTRAST) for worker in STATES}
        assert {worker: value for worker, value in found.items() if value < LEAST_CONTRAST} == {}


async def test_a_label_of_a_worker_is_only_text(browser: Browser, troubled: ServedApi) -> None:
    async with seat(browser, troubled.url, troubled.keys["viewer"]) as taken:
        for path in ("/ui/workers", "/ui/workers/new"):
            page = await taken.live(path)
            await expect(page.get_by_text(f"zone={HOSTILE}")).to_be_visible()
            await expect(page.get_by_role("main").locator("img")).to_have_count(0)
        assert taken.complaints == []


async def test_four_troubles_are_four_entries_worst_first_and_each_goes(admin: Seat, cluster_a: Cluster) -> None:
    policy = {"min_gpu_utilization": 100, "time_window": "30s", "dry_run": True}
    await cluster_a.apply("lazy", resources=SMALL, utilization_policy=policy, placement={"workers": ["w1"]}, replicas=1)
    await cluster_a.running("lazy")
    page = await admin.live()
    entries = page.locator("[data-part=needs-you]").get_by_role("listitem")
    await cluster_a.apply("on-w3", replicas=3, resources=SMALL, placement={"workers": ["w3"]})
    await cluster_a.running("on-w3")
    crashing = ["sh", "-c", "sleep 0.2; echo bad; exit 3"]
    await cluster_a.apply("crash", engine="custom", command=crashing, resources=SMALL, placement={"workers": ["w2"]})
    await cluster_a.apply("huge", resources={"gpus": 8, "exclusive": True})
    cluster_a.kill("w3")
    try:
        await expect(entries).to_have_count(4, timeout=90_000)
        causes = await entries.evaluate_all("found => found.map(one => one.dataset.cause)")
        told = [(one["cause"], one["title"]) for one in (await cluster_a.get("/attention"))["items"]]
        assert causes == [cause for cause, _ in told]
        severities = [one["severity"] for one in (await cluster_a.get("/attention"))["items"]]
        order = ["critical", "error", "warning", "notice"]
        assert severities == sorted(severities, key=order.index)
        for place in range(4):
            await expect(entries.nth(place).get_by_role("time")).to_have_count(1)
            await expect(entries.nth(place).get_by_role("link").first).to_have_attribute("href", re.compile("^/ui/"))
        for name, left in (("crash", 3), ("huge", 2), ("lazy", 1)):
            await cluster_a.delete(name)
            await cluster_a.gone(name)
            await expect(entries).to_have_count(left, timeout=MENDED_MS)
        await cluster_a.start_agent("w3", gpus=4, memory="80GiB", host={"labels": {"zone": "b"}})
        await expect(entries).to_have_count(0, timeout=MENDED_MS)
    finally:
        if "w3" not in cluster_a.processes:
            await cluster_a.start_agent("w3", gpus=4, memory="80GiB", host={"labels": {"zone": "b"}})
        for name in ("lazy", "on-w3", "crash", "huge"):
            if await cluster_a.phase_of(name) != "gone":
                await cluster_a.delete(name)
                await cluster_a.gone(name)
