"""The cluster's page: figures that are true within seconds, the map by keys, and what needs an operator."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
WITHIN_MS = 2000 + 1500  # and the slack of a busy machine


async def apply(cluster: Cluster, name: str, **spec: Any) -> None:
    await cluster.apply(name, engine="simulated", **spec)
    await cluster.running(name)


def figure(page: Page, title: str) -> Any:
    return page.locator(".figure", has_text=title).locator(".figure-value")


async def read_again_as_now(seat: Seat) -> None:
    """From here on each read of the map says what it says now: what changes is told by the live connection alone."""
    now = await (await seat.context.request.get(f"{seat.url}/api/v1/map")).body()
    await seat.page.route("**/api/v1/map", lambda route: route.fulfill(body=now, content_type="application/json"))


async def test_figures_and_cells_follow_what_is_placed(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live()
    await expect(figure(page, "GPUs held")).to_have_text("0 of 12")
    await apply(cluster_a, "chat", replicas=2, resources=SMALL)
    gpus = (await cluster_a.get("/gpus"))["items"]
    claimed = sum(gpu["status"]["claimed_mib"] for gpu in gpus)
    held = [gpu for gpu in gpus if gpu["status"]["claims"]]
    await expect(figure(page, "GPUs held")).to_have_text(f"{len(held)} of 12", timeout=WITHIN_MS)
    await expect(figure(page, "GPU memory claimed")).to_have_text(f"{claimed // 1024} GiB")
    for gpu in gpus:
        cell = page.locator(f"[data-gpu='{gpu['name']}']")
        mib = gpu["status"]["claimed_mib"]
        await expect(cell).to_contain_text(f"{mib // 1024} of 80 GiB")
        holders = len(gpu["status"]["claims"])
        await expect(cell).to_contain_text("free" if not holders else "chat")
    await read_again_as_now(admin)
    await cluster_a.delete("chat")
    await cluster_a.gone("chat")
    await expect(figure(page, "GPUs held")).to_have_text("0 of 12", timeout=WITHIN_MS)


async def test_the_map_by_keys(admin: Seat) -> None:
    page = await admin.live()
    the_map = page.locator("[data-part=map]")
    tip = page.locator("[data-part=map-tip]")
    await the_map.focus()
    for key, expected in (
        ("ArrowRight", "w1 GPU 1"), ("Shift+ArrowRight", "w2 GPU 0"), ("ArrowLeft", "w1 GPU 3"), ("End", "w3 GPU 3"),
        ("Shift+ArrowLeft", "w2 GPU 0"), ("Home", "w1 GPU 0"), ("ArrowLeft", "w1 GPU 0"),
    ):  # fmt: skip
        await page.keyboard.press(key)
        await expect(tip).to_contain_text(expected)
    await expect(page.get_by_role("status").filter(has_text="w1 GPU 0")).to_have_count(1)
    await page.keyboard.press("t")
    table = page.get_by_role("table")
    await expect(table.get_by_role("row")).to_have_count(13)
    await table.get_by_role("button", name="GPU", exact=True).click()
    await expect(table.get_by_role("columnheader", name="GPU", exact=True)).to_have_attribute("aria-sort", "ascending")
    await page.keyboard.press("t")
    await expect(the_map).to_be_visible()


async def test_states_have_words_of_their_own(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live()
    await cluster_a.post("/workers/w2/cordon")
    try:
        await expect(page.locator(".cell.cordoned")).to_have_count(4)
        await expect(page.locator(".cell.cordoned").first).to_contain_text("cordoned")
        await page.get_by_label("Order").select_option("problems")
        await expect(page.locator(".cells-name").first).to_have_text("w2")
    finally:
        await cluster_a.post("/workers/w2/uncordon")
    await expect(page.locator(".cell.cordoned")).to_have_count(0)


async def test_what_needs_an_operator_comes_and_goes(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live()
    needs = page.locator("[data-part=needs-you]")
    await expect(needs).to_contain_text("Nothing needs you.")
    crashing = ["sh", "-c", "sleep 0.2; echo bad; exit 3"]
    await cluster_a.apply("crash", engine="custom", command=crashing, resources=SMALL)
    await expect(needs.get_by_role("listitem")).to_have_count(1, timeout=30_000)
    await expect(needs).to_contain_text("crash")
    await expect(needs).to_contain_text("exited with code 3")
    await cluster_a.delete("crash")
    await expect(needs).to_contain_text("Nothing needs you.", timeout=20_000)


async def test_one_panel_that_fails_fails_alone(admin: Seat) -> None:
    failing = True

    async def answer(route: Any) -> None:
        if failing:
            error = {"error": {"code": "internal", "message": "internal error", "details": {}}}
            await route.fulfill(status=500, json=error, headers={"X-Request-ID": "abc123"})
        else:
            await route.continue_()

    await admin.page.route("**/api/v1/map", answer)
    page = await admin.live()
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("internal error")
    await expect(alert).to_contain_text("abc123")
    await expect(page.locator("[data-part=needs-you]")).to_contain_text("Nothing needs you.")
    failing = False
    await alert.get_by_role("button", name="Try again").click()
    await expect(page.locator(".cell")).to_have_count(12)
    admin.complaints.clear()  # the browser tells of the answer 500


async def test_search_and_shortcuts(admin: Seat) -> None:
    page = await admin.live()
    await page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Name or UUID")
    await expect(field).to_be_focused()
    await field.fill("w2")
    await expect(page.get_by_role("dialog").get_by_role("option").first).to_contain_text("w2")
    await page.keyboard.press("g")
    await page.keyboard.press("p")
    await expect(field).to_have_value("w2gp")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await page.wait_for_url("**/ui/deployments")


async def test_a_quiet_connection_stays(admin: Seat) -> None:
    """Longer than a page waits for a sign of life: it asks for one, and nothing begins anew."""
    page = await admin.live("/ui/policies")
    opened: list[str] = []
    page.on("websocket", lambda socket: opened.append(socket.url))
    await page.evaluate(
        """() => {
            window.said = [];
            const live = document.querySelector("[data-part=live]");
            const all = {childList: true, characterData: true, subtree: true};
            new MutationObserver(() => window.said.push(live.textContent)).observe(live, all);
        }"""
    )
    await asyncio.sleep(32)
    assert opened == []
    assert await page.evaluate("window.said") == []
    await expect(page.locator("[data-part=live]")).to_have_text("live")
