"""The graphs of a deployment's utilization: gaps, the policy's marks, the verdict, and the same as a table (D25)."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Route, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHARE = {"gpus": 1, "gpu_memory": "20GiB"}
DRY = {"min_gpu_utilization": 50, "time_window": "10m", "dry_run": True, "ignore_requests": True}
SLOT_S = 30
GAP = range(60, 66)  # three minutes of half an hour


@pytest_asyncio.fixture(loop_scope="module")
async def used(cluster_a: Cluster) -> AsyncIterator[list[dict[str, Any]]]:
    """Two replicas under a dry run."""
    await cluster_a.apply("used", engine="simulated", replicas=2, resources=SHARE, utilization_policy=DRY)
    await cluster_a.running("used")
    yield await cluster_a.instances("used")
    await cluster_a.delete("used")
    await cluster_a.gone("used")


async def with_gap(route: Route) -> None:
    """The controller's answer, with other samples: none for three minutes of the last hour."""
    answer = await route.fetch()
    told = await answer.json()
    for series in told["series"]:
        series["values"] = [None if slot in GAP else 20.0 + slot % 5 for slot in range(120)]
    await route.fulfill(response=answer, body=json.dumps({**told, "window_s": 120 * SLOT_S, "slot_s": SLOT_S}))


async def test_a_gap_is_a_gap_and_the_policy_is_marked(admin: Seat, used: list[dict[str, Any]]) -> None:
    await admin.page.route("**/api/v1/utilization?*", with_gap)
    page = await admin.live("/ui/deployments/used")
    await page.get_by_role("button", name="Show utilization").click()
    panel = page.locator("[data-part=utilization]")
    for one in used:
        graph = panel.get_by_role("img", name=re.compile(re.escape(one["name"])))
        await expect(graph).to_have_accessible_name(re.compile("samples for 95 % of the time.*below 50 % for 10m"))
        lines = graph.locator("[data-part=line]")
        await expect(lines).to_have_count(2)
        ends = [(await lines.nth(n).get_attribute("points") or "").split() for n in range(2)]
        before, after = float(ends[0][-1].split(",")[0]), float(ends[1][0].split(",")[0])
        assert (before, after) == (600 * GAP.start / 120, 600 * GAP.stop / 120), "no line goes through the gap"
        threshold = graph.locator("[data-part=threshold]")
        assert float(await threshold.get_attribute("y1") or 0) == pytest.approx(36, abs=1), "half of the height"
        window = graph.locator("[data-part=window]")
        assert float(await window.get_attribute("width") or 0) == pytest.approx(600 * 600 / (120 * SLOT_S))


async def test_the_same_figures_are_a_table(admin: Seat, used: list[dict[str, Any]]) -> None:
    await admin.page.route("**/api/v1/utilization?*", with_gap)
    page = await admin.live("/ui/deployments/used")
    await page.get_by_role("button", name="Show utilization").click()
    await page.get_by_text("The same as a table").click()
    table = page.locator("[data-part=utilization]").get_by_role("table")
    for one in used:
        await expect(table.get_by_role("columnheader", name=re.compile(re.escape(one["name"])))).to_have_count(1)
    rows = table.locator("tbody tr[data-row]")
    await expect(rows).to_have_count(120)
    cells = [(await row.locator("td").nth(1).inner_text()).strip() for row in await rows.all()]
    oldest_first = cells[::-1]
    assert [slot for slot, text in enumerate(oldest_first) if text == "\N{EN DASH}"] == list(GAP)
    assert oldest_first[:3] == ["20 %", "21 %", "22 %"]


async def test_a_dry_run_says_when_it_would_stop(admin: Seat, cluster_a: Cluster, used: list[dict[str, Any]]) -> None:
    async def due() -> bool:
        return all(one["status"]["utilization"]["due_at"] for one in await cluster_a.instances("used"))

    await cluster_a.until(due, "a window has begun for both", 60)
    page = await admin.live("/ui/deployments/used")
    await page.get_by_role("button", name="Show utilization").click()
    panel = page.locator("[data-part=utilization]")
    for one in await cluster_a.instances("used"):
        found = one["status"]["utilization"]
        at = await page.evaluate(
            "at => new Date(at).toLocaleTimeString('en-GB', {hour: '2-digit', minute: '2-digit'})", found["due_at"]
        )
        row = panel.get_by_role("listitem").filter(has_text=one["name"])
        await expect(row).to_contain_text(f"{found['verdict']}: ")
        await expect(row).to_contain_text(re.compile(rf"would stop at (\d\d \w+, )?{at} \(dry run\)"))
    assert len(used) == 2
