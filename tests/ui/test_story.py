"""Stories: every step with its time, its duration and who did it; equal lines are one; objects keep theirs (D23)."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import write_events
from support.browser.dashboard import Seat, key_of, seat
from support.database.ledger import add_deployment, add_host
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.served_api import ServedApi, served
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
WINDOW_MS = 60_000.0
FOLLOWS_MS = 2500.0
MANY = 130  # more than a page of a story


def lines(page: Page) -> Locator:
    return page.locator("[data-part=story] ol > li")


def line(page: Page, reason: str) -> Locator:
    return page.locator(f"[data-part=story] li[data-reason={reason}]")


async def test_a_story_from_apply_to_the_start_after_a_policys_stop(
    browser: Browser, admin: Seat, cluster_a: Cluster
) -> None:
    bob, _ = await key_of(cluster_a, "operator", "bob")
    rule = {"min_gpu_utilization": 100, "time_window": "30s"}
    status, _ = await cluster_a.call("PUT", "/policies/stop-idle", rule)
    assert status == 201
    spec = {"engine": "simulated", "resources": SMALL, "utilization_policy": "stop-idle"}
    applied = await admin.context.request.put(
        f"{cluster_a.url}/api/v1/deployments/chat", data=spec, headers={"Origin": cluster_a.url}
    )
    assert applied.ok, await applied.text()
    page = await admin.live("/ui/deployments/chat")
    try:
        stopped = line(page, "policy_stop")
        await expect(stopped).to_contain_text("policy stop-idle", timeout=WINDOW_MS)
        await expect(line(page, "applied").first).to_contain_text("ann")
        running = line(page, "running").first
        await expect(running).to_contain_text(re.compile(r"\d(\.\d)?s"))
        instance = (await running.get_by_role("link", name=re.compile("^chat-")).get_attribute("href")) or ""
        assert instance.startswith("/ui/instances/chat-")
        await expect(stopped.get_by_role("link", name="stop-idle")).to_have_attribute("href", "/ui/policies/stop-idle")
        async with seat(browser, cluster_a.url, bob) as other:
            there = await other.live("/ui/deployments/chat")
            await there.get_by_role("button", name="Start", exact=True).click()
            await expect(line(there, "started")).to_contain_text("bob", timeout=FOLLOWS_MS)
        await expect(line(page, "started")).to_contain_text("bob", timeout=FOLLOWS_MS)
        await expect(line(page, "running")).to_have_count(2, timeout=WINDOW_MS)  # nothing more happens while we compare
        reasons = await lines(page).evaluate_all("found => found.map(one => one.dataset.reason)")
        order = [reasons.index(reason) for reason in ("started", "policy_stop", "applied")]
        assert order == sorted(order), "newest first"
        told = await cluster_a.get("/events?object=deployment/chat&limit=100")
        shown = [one["reason"] for one in told["items"]]
        assert [one for n, one in enumerate(shown) if n == 0 or shown[n - 1] != one] == reasons
    finally:
        await cluster_a.delete("chat")
        await cluster_a.gone("chat")
        await cluster_a.call("DELETE", "/policies/stop-idle")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def told(postgres: PostgresServer) -> AsyncIterator[tuple[ServedApi, Database]]:
    """The API on a database with an object of each kind that has a page and a story."""
    async with migrated_database(postgres, migrated_template(postgres)) as database:
        await add_host(database, "w1", gpus=1, gib=80)
        uid = await add_deployment(database, "m")
        async with database.transaction() as connection:
            for n in range(MANY):
                await write_events(connection, [NewEvent("scaled", f"step {n}", (f"deployment:{uid}",))])
            for _ in range(7):
                crashed = NewEvent("backoff", "exited with code 3", (f"deployment:{uid}",))
                await write_events(connection, [crashed])
            await write_events(connection, [NewEvent("gpu_unhealthy", "xid_79", ("gpu:GPU-w1-0",))])
        async with served(database) as api:
            yield api, database


async def test_seven_equal_lines_are_one_and_older_ones_come_on_demand(
    browser: Browser, told: tuple[ServedApi, Database]
) -> None:
    api, _ = told
    async with seat(browser, api.url, api.keys["viewer"]) as taken:
        page = await taken.live("/ui/deployments/m")
        equal = line(page, "backoff")
        await expect(equal).to_contain_text("\N{MULTIPLICATION SIGN}7")
        await expect(equal.get_by_role("time")).to_have_count(2)
        await expect(lines(page)).to_have_count(1 + 100 - 7)
        await page.get_by_role("button", name="Older events").click()
        await expect(lines(page)).to_have_count(1 + MANY)
        await expect(lines(page).last).to_contain_text("step 0")
        assert taken.complaints == []


async def test_a_gpus_story_follows_what_comes_by_the_connection(
    browser: Browser, told: tuple[ServedApi, Database]
) -> None:
    api, database = told
    async with seat(browser, api.url, api.keys["viewer"]) as taken:
        page = await taken.live("/ui/gpus/GPU-w1-0")
        await expect(lines(page)).to_have_count(1)
        await expect(lines(page)).to_contain_text("xid_79")
        async with database.transaction() as connection:
            await write_events(connection, [NewEvent("gpu_healthy", "readable again", ("gpu:GPU-w1-0",))])
        await expect(lines(page)).to_have_count(2, timeout=FOLLOWS_MS)
        await expect(lines(page).first).to_contain_text("readable again")
        assert taken.complaints == []
