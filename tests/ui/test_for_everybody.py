"""For everybody: shortcuts, search, a copy of a deployment, the keyboard alone, forced colours (D31, D39, D40)."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPEC = {"engine": "simulated", "replicas": 2, "resources": {"gpus": 1, "gpu_memory": "20GiB"}}
PAGES = (
    "/ui/", "/ui/deployments", "/ui/deployments/chat", "/ui/pending", "/ui/workers", "/ui/workers/w1", "/ui/hours",
    "/ui/policies", "/ui/events", "/ui/apply", "/ui/playground", "/ui/access", "/ui/catalog",
)  # fmt: skip
MOST_STOPS = 150
# Where the focus is: its name, whether it is drawn within the page, and whether an outline shows it.
FOCUS = """() => {
    const at = document.activeElement;
    if (!at || at === document.body) return null;
    const box = at.getBoundingClientRect(), style = getComputedStyle(at);
    const ring = parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none";
    return {name: `${at.tagName} ${(at.textContent || at.getAttribute("aria-label") || "").slice(0, 30)}`,
            shown: box.width > 0 && box.height > 0 && (ring || at.getAttribute("role") === "application")};
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `chat`, of which two replicas run."""
    await cluster_a.apply("chat", **SPEC)
    await cluster_a.running("chat")
    yield cluster_a
    for one in (await cluster_a.get("/deployments"))["items"]:
        await cluster_a.delete(one["name"])
        await cluster_a.gone(one["name"])


async def test_the_search_finds_a_free_gpu_and_a_policy(admin: Seat, chat: Cluster) -> None:
    rule = {"min_gpu_utilization": 10, "time_window": "30m", "dry_run": True}
    await chat.call("PUT", "/policies/watch-all", rule)
    free = next(gpu for gpu in (await chat.get("/gpus"))["items"] if not gpu["status"]["claims"])
    page = await admin.live()
    try:
        for text, href in ((free["name"][8:20], f"/ui/gpus/{free['name']}"), ("atch-al", "/ui/policies/watch-all")):
            await page.keyboard.press("/")
            await page.get_by_role("combobox", name="Name or UUID").fill(text)
            option = page.get_by_role("dialog").get_by_role("option").first
            await expect(option).to_have_attribute("href", href)
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**{href}")
    finally:
        await chat.call("DELETE", "/policies/watch-all")


@pytest.mark.usefixtures("chat")
async def test_shortcuts_act_but_not_while_one_types(admin: Seat) -> None:
    page = await admin.live()
    for key, path in (("d", "/ui/deployments"), ("w", "/ui/workers"), ("c", "/ui/")):
        await page.keyboard.press("g")
        await page.keyboard.press(key)
        await page.wait_for_url(f"**{path}")
    await page.goto(f"{admin.url}/ui/events")
    await page.get_by_label("Reason").focus()
    await page.keyboard.type("g d / ? ")
    await expect(page.get_by_label("Reason")).to_have_value("g d / ? ")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert "/ui/events" in page.url


async def test_an_age_is_short_and_tells_the_full_time_with_its_zone(browser: Browser, chat: Cluster) -> None:
    key, _ = await key_of(chat, "viewer")
    async with seat(browser, chat.url, key, timezone_id="Asia/Tokyo") as taken:
        page = await taken.live("/ui/deployments/chat")
        age = page.get_by_role("group", name="Replicas").get_by_role("time").first
        await expect(age).to_have_text(re.compile(r"^\d+[smhd]$"))
        assert "GMT+9" in (await age.get_attribute("data-tip") or "")


async def test_a_copied_manifest_is_unchanged_and_a_duplicate_is_another(admin: Seat, chat: Cluster) -> None:
    await admin.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_role("button", name="Copy as manifest").click()
    await expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert "priority" not in copied
    page = await admin.live("/ui/apply")
    await page.get_by_role("textbox", name="Manifest").fill(copied)
    await expect(page.locator("[data-part=plan]")).to_contain_text("unchanged")
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_role("button", name="Duplicate").click()
    await page.wait_for_url("**/ui/apply")
    await expect(page.get_by_role("textbox", name="Manifest")).to_have_value(
        copied.replace("name: chat", "name: chat-copy")
    )
    await page.get_by_role("button", name="Apply", exact=True).click()
    await page.wait_for_url("**/ui/deployments/chat-copy")
    await chat.running("chat-copy")


async def walk(page: Page) -> list[str]:
    """Tabs through the page: what had the focus without showing it, in words."""
    await page.evaluate("document.activeElement?.blur()")
    wrong: list[str] = []
    for _ in range(MOST_STOPS):
        await page.keyboard.press("Tab")
        at = await page.evaluate(FOCUS)
        if at is None:
            break
        if not at["shown"]:
            wrong.append(at["name"])
    return wrong


@pytest.mark.usefixtures("chat")
async def test_the_focus_shows_at_every_stop_of_every_page(admin: Seat) -> None:
    wrong: dict[str, list[str]] = {}
    for path in PAGES:
        page = await admin.live(path)
        await page.locator("main h1").first.wait_for(state="attached")
        if found := await walk(page):
            wrong[path] = found
    assert wrong == {}


@pytest.mark.usefixtures("chat")
async def test_the_keyboard_alone_stops_and_starts_a_deployment(admin: Seat) -> None:
    page = await admin.live("/ui/deployments/chat")
    stop = page.get_by_role("button", name="Stop", exact=True)
    await stop.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(stop).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Stop").focus()
    await page.keyboard.press("Enter")
    start = page.get_by_role("button", name="Start", exact=True)
    await expect(start).to_be_visible()
    await start.focus()
    await page.keyboard.press("Enter")
    await expect(stop).to_be_visible()


async def test_forced_colours_tell_states_apart(browser: Browser, chat: Cluster) -> None:
    key, _ = await key_of(chat, "viewer")
    await chat.post("/workers/w3/cordon")
    try:
        async with seat(browser, chat.url, key, forced_colors="active", reduced_motion="reduce") as taken:
            page = await taken.live()
            await expect(page.locator(".cell.cordoned").first).to_contain_text("cordoned")
            swatches = page.get_by_role("list", name="Legend").locator(".swatch")
            looks = await swatches.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundImage)")
            assert len(set(looks)) == len(looks) == 3
            assert "none" not in looks
            moving = await page.evaluate("document.getAnimations().length")
            assert moving == 0
    finally:
        await chat.post("/workers/w3/uncordon")
