"""What would make an instance fit opens as a plan (D21); graphs say what they show (D25); events by filters."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
WIDE = {"gpus": 1, "gpu_memory": "100GiB"}


@pytest_asyncio.fixture(loop_scope="module")
async def unfit(cluster_a: Cluster) -> AsyncIterator[dict[str, str]]:
    """The ids of two instances: one asks for more memory than any GPU has, one for a zone whose worker is cordoned."""
    await cluster_a.post("/workers/w3/cordon")
    await cluster_a.apply("fat", engine="simulated", resources=WIDE)
    zone_b = {"labels": {"zone": "b"}}
    await cluster_a.apply("zoned", engine="simulated", resources=SMALL, placement=zone_b)

    async def waits() -> bool:
        return [*await cluster_a.phases("fat"), *await cluster_a.phases("zoned")] == ["pending", "pending"]

    await cluster_a.until(waits, "both are pending")
    yield {name: (await cluster_a.instances(name))[0]["name"] for name in ("fat", "zoned")}
    await cluster_a.post("/workers/w3/uncordon")
    for name in ("fat", "zoned"):
        await cluster_a.delete(name)
        await cluster_a.gone(name)


async def lines(page: Page) -> list[str]:
    return [text.strip() for text in await page.locator("[data-part=advice] li").all_inner_texts()]


async def test_advice_is_that_of_the_api_and_opens_as_a_plan(
    admin: Seat, cluster_a: Cluster, unfit: dict[str, str]
) -> None:
    told = [line for one in unfit.values() for line in (await cluster_a.get(f"/instances/{one}/explain"))["advice"]]
    page = await admin.live("/ui/pending")
    await expect(page.locator("[data-part=advice] li")).to_have_count(len(told))
    assert sorted(await lines(page)) == sorted(told)
    await page.get_by_role("link", name=re.compile("^fits with gpu_memory")).click()
    await page.wait_for_url("**/ui/apply")
    await expect(page.get_by_role("textbox", name="Manifest")).to_have_value(re.compile("gpu_memory: 80GiB"))
    plan = page.locator("[data-part=plan]")
    await expect(plan).to_contain_text("100GiB")
    await expect(plan).to_contain_text(re.compile(r"w\d GPU \d"))
    spec = (await cluster_a.get("/deployments/fat"))["spec"]
    assert spec["resources"]["gpu_memory"] == f"{100 * 1024}MiB", "nothing is applied yet"


async def test_advice_without_a_field_and_about_a_worker(admin: Seat, unfit: dict[str, str]) -> None:
    page = await admin.live(f"/ui/instances/{unfit['zoned']}")
    await expect(page.locator("[data-part=advice]").get_by_role("link", name="w3", exact=True)).to_have_attribute(
        "href", "/ui/workers/w3"
    )
    await page.get_by_role("link", name=re.compile("without placement.labels")).click()
    await page.wait_for_url("**/ui/apply")
    await expect(page.locator("[data-part=plan]")).to_contain_text(re.compile(r"w[12] GPU \d"))
    assert "labels" not in await page.get_by_role("textbox", name="Manifest").input_value()


async def test_a_viewer_reads_advice_and_can_open_no_plan(
    browser: Browser, cluster_a: Cluster, unfit: dict[str, str]
) -> None:
    key, _ = await key_of(cluster_a, "viewer")
    async with seat(browser, cluster_a.url, key) as taken:
        page = await taken.live(f"/ui/instances/{unfit['fat']}")
        await expect(page.locator("[data-part=advice]")).to_contain_text("fits with gpu_memory")
        await expect(page.locator("[data-part=advice]").get_by_role("link")).to_have_count(0)


async def test_a_graph_says_its_samples_and_marks_the_policy(admin: Seat, cluster_a: Cluster) -> None:
    policy = {"min_gpu_utilization": 50, "time_window": "10m", "dry_run": True}
    await cluster_a.apply("used", engine="simulated", replicas=2, resources=SMALL, utilization_policy=policy)
    await cluster_a.running("used")
    page = await admin.live("/ui/deployments/used")
    await page.get_by_role("button", name="Show utilization").click()
    graphs = page.locator("[data-part=utilization]").get_by_role("img")
    await expect(graphs).to_have_count(2)
    for one in await cluster_a.instances("used"):
        graph = page.get_by_role("img", name=re.compile(one["name"]))
        await expect(graph).to_have_accessible_name(
            re.compile(r"over 1h: last \d+ %, .*stays below 50 % for 10m"), timeout=25_000
        )
    await cluster_a.delete("used")
    await cluster_a.gone("used")


async def test_events_by_kind_reason_and_time_are_followed(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/events?kind=worker&name=w2&reason=cordoned,uncordoned&after=1h")
    shown = page.locator("ol.events > li")
    before = await shown.count()
    await cluster_a.post("/workers/w1/cordon")
    await cluster_a.post("/workers/w2/cordon")
    await expect(shown).to_have_count(before + 1)
    await expect(shown.first).to_contain_text("w2")
    for name in ("w1", "w2"):
        await cluster_a.post(f"/workers/{name}/uncordon")
    await expect(shown).to_have_count(before + 2)
    await page.reload()
    await expect(shown).to_have_count(before + 2)
    await expect(page.get_by_label("Kind")).to_have_value("worker")
    await page.get_by_label("Reason").fill("joined")
    await page.get_by_label("Reason").press("Enter")
    await expect(shown).to_have_count(1)
    assert page.url.endswith("?reason=joined&kind=worker&name=w2&after=1h")
