"""GPU hours: the figures, the CSV and the money of the idle report (D37)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from cli.verbs.report import idle_csv
from schemas.api.history import IdleReport
from schemas.api.view import from_plain
from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")


def item(name: str, wasted: float, cost: list[str | None] | None, **more: Any) -> dict[str, Any]:
    figures = ("claimed", "used", "wasted", "unknown", "would_free")
    hours = {"claimed": 2000.03125, "used": 1 / 3, "wasted": wasted, "unknown": 0.09375, "freed": 0.0, "would_free": 7}
    return {
        "deployment": name, "uid": f"{len(name):08}-0000-0000-0000-000000000000", "deleted": False, "policy": "",
        "min_gpu_utilization": 10, "gpu_hours": hours,
        "cost": cost and dict(zip(figures, cost, strict=True)), **more,
    }  # fmt: skip


PRICED = {
    "since": "2026-11-01T00:00:00Z",
    "until": "2026-11-08T00:00:00Z",
    "items": [
        item("much", 1500.5, ["12000.10", "0.33", "9003.00", "0.00", "42.00"]),
        item("gone", 20.0, [None] * 5, deleted=True, policy='a "quoted", name'),
        item("little", 0.00005, ["1.00", "0.50", "0.00", "0.00", "0.00"]),
    ],
    "policies": [],
    "total": item("total", 1520.5, None)["gpu_hours"],
    "replayed": {"min_gpu_utilization": 30, "time_window": 600},
    "currency": "EUR",
    "total_cost": {
        "claimed": "12001.10",
        "used": "0.83",
        "wasted": "9003.00",
        "unknown": "0.00",
        "would_free": "42.00",
    },
    "unpriced": [{"model": "Tesla T4", "gpu_hours": 20.0}],
}
PLAIN = PRICED | {
    "items": [one | {"cost": None} for one in PRICED["items"]],  # type: ignore[operator, attr-defined]
    "currency": None,
    "total_cost": None,
    "unpriced": [],
}


@pytest_asyncio.fixture(loop_scope="module")
async def viewer(browser: Browser, cluster_a: Cluster) -> AsyncIterator[Seat]:
    key, _ = await key_of(cluster_a, "viewer", "vi")
    async with seat(browser, cluster_a.url, key) as taken:
        yield taken


async def shown(taken: Seat, report: dict[str, Any]) -> Page:
    """The page as it shows this report."""
    await taken.page.route(
        "**/api/v1/reports/idle?*",
        lambda route: route.fulfill(content_type="application/json", body=json.dumps(report)),
    )
    return await taken.live("/ui/hours?since=7d&min_gpu_utilization=30&time_window=10m")


@pytest.mark.parametrize("report", [PRICED, PLAIN], ids=["priced", "plain"])
async def test_the_csv_is_the_command_lines(viewer: Seat, report: dict[str, Any]) -> None:
    page = await shown(viewer, report)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="CSV").click()
    saved = await asyncio.to_thread((await (await download.value).path()).read_bytes)
    assert saved == idle_csv(from_plain(IdleReport, report)).encode()


async def test_money_is_shown_where_prices_are_set(viewer: Seat) -> None:
    page = await shown(viewer, PRICED)
    rows = page.locator("tbody tr[data-row]")
    await expect(rows).to_have_count(3)
    await expect(page.get_by_role("columnheader", name="Wasted, EUR")).to_be_visible()
    await expect(rows.nth(0)).to_contain_text("9,003.00")
    assert (await rows.nth(1).inner_text()).count("\N{EN DASH}") == 5, "unknown, and not 0"
    await expect(page.get_by_text("In EUR: 12,001.10 claimed")).to_contain_text("Tesla T4 (20.00 GPU hours)")
    await expect(rows.nth(2)).to_contain_text("<0.01")
    names = [(await rows.nth(n).inner_text()).split()[0].rstrip(",") for n in range(3)]
    assert names == ["much", "gone", "little"], "sorted by wasted"


async def test_no_money_without_prices(viewer: Seat) -> None:
    page = await shown(viewer, PLAIN)
    await expect(page.locator("tbody tr[data-row]")).to_have_count(3)
    await expect(page.get_by_role("columnheader", name="EUR")).to_have_count(0)
    assert "EUR" not in await page.locator("main").inner_text()


async def test_a_replay_shows_each_figure_of_the_api(admin: Seat, cluster_a: Cluster) -> None:
    """The history is of the past: only what was rolled up in the meantime may differ."""
    await cluster_a.apply("lazy", engine="simulated", resources={"gpus": 1, "gpu_memory": "8GiB"})
    await cluster_a.running("lazy")

    async def reported() -> bool:
        return bool((await cluster_a.get("/reports/idle?since=7d"))["items"])

    await cluster_a.until(reported, "lazy is in the report", 90)
    async with admin.page.expect_response("**/api/v1/reports/idle?*time_window*") as answered:
        page = await admin.live("/ui/hours?since=7d&min_gpu_utilization=30&time_window=10m")
    query = (await answered.value).url.partition("?")[2]
    told = {one["deployment"]: one for one in (await (await answered.value).json())["items"]}
    same = await cluster_a.get(f"/reports/idle?{query}")
    assert same["replayed"] == {"min_gpu_utilization": 30, "time_window": 600}
    assert [set(one) for one in same["items"]] == [set(one) for one in told.values()]
    row = page.locator("tbody tr[data-row]", has_text="lazy")
    hours = told["lazy"]["gpu_hours"]
    for figure in ("claimed", "freed", "would_free"):
        await expect(row).to_contain_text(f"{hours[figure]:.2f}")
    await cluster_a.delete("lazy")
    await cluster_a.gone("lazy")
