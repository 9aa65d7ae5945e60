"""The catalog: what well-known models need, where each fits now, and one click to its plan."""

import re

import pytest
from playwright.async_api import Browser, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = "hf:Qwen/Qwen3-0.6B"


async def test_well_known_models_show_their_needs_and_open_as_a_plan(admin: Seat, cluster_a: Cluster) -> None:
    told = {one["model"]: one for one in (await cluster_a.get("/catalog"))["items"]}
    page = await admin.live("/ui/catalog")
    panel = page.locator("[data-part=well-known]")
    await expect(panel.locator("tbody tr[data-row]")).to_have_count(len(told))
    await expect(panel).to_contain_text("estimated")
    for model, one in told.items():
        row = panel.get_by_role("row").filter(has=page.get_by_role("link", name=model, exact=True))
        need = one["layouts"][0]
        gib = f"{round(need['memory_mib_per_gpu'] / 1024, 1):g}"
        await expect(row).to_contain_text(re.compile(rf"{re.escape(gib)} GiB on {need['gpus']} GPU"))
        says = f"on {one['fits']['workers'][0]}" if one["fits"] else f"no: {one['message']}"
        await expect(row).to_contain_text(says)
    await panel.get_by_role("link", name=f"Plan {SMALL}").click()
    await page.wait_for_url("**/ui/apply")
    await expect(page.get_by_role("textbox", name="Manifest")).to_have_value(re.compile(f'model: "{SMALL}"'))


async def test_a_plan_sets_the_users_draft_aside(admin: Seat) -> None:
    page = await admin.live("/ui/apply")
    manifest = page.get_by_role("textbox", name="Manifest")
    await manifest.fill("kind: Deployment\nname: mine\n")
    for _ in range(2):  # a second proposal does not take the place of the draft
        await page.get_by_role("link", name="Catalog", exact=True).click()
        await page.get_by_role("link", name=f"Plan {SMALL}").click()
        await expect(manifest).to_have_value(re.compile(SMALL))
    back = page.get_by_role("button", name="Back to your draft")
    await back.click()
    await expect(manifest).to_have_value("kind: Deployment\nname: mine\n")
    await expect(back).to_have_count(0)


async def test_packed_weights_have_no_count_of_parameters(admin: Seat) -> None:
    page = await admin.live("/ui/catalog")
    rows = page.locator("[data-part=well-known]").get_by_role("row")
    shown = {
        "Qwen2.5-7B-Instruct-AWQ": "\u2013", "Qwen2.5-7B-Instruct-GPTQ-Int4": "\u2013", "Qwen3-8B": "8.2 B",
    }  # fmt: skip
    for model, says in shown.items():
        row = rows.filter(has=page.get_by_role("link", name=f"hf:Qwen/{model}", exact=True))
        await expect(row.get_by_role("cell").nth(0)).to_have_text(says)


async def test_periods_of_the_address_are_shown(admin: Seat) -> None:
    for path, label, value in (("/ui/events?after=2s", "Time", "2s"), ("/ui/hours?since=3h", "Period", "3h")):
        page = await admin.live(path)
        await expect(page.get_by_role("combobox", name=label)).to_have_value(value)


async def test_a_viewer_sees_needs_and_no_plan(browser: Browser, cluster_a: Cluster) -> None:
    key, _ = await key_of(cluster_a, "viewer", "vi")
    async with seat(browser, cluster_a.url, key) as taken:
        page = await taken.live("/ui/catalog")
        panel = page.locator("[data-part=well-known]")
        await expect(panel.get_by_role("link", name=SMALL, exact=True)).to_be_visible()
        await expect(panel.get_by_role("link", name=re.compile("^Plan"))).to_have_count(0)
