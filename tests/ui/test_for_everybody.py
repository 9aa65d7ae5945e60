"""For everybody: shortcuts, search, a copy of a deployment, the keyboard alone, forced colours (D31, D39, D40)."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, expect

from cli.text.formatting import gib
from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPEC = {"engine": "simulated", "replicas": 2, "resources": {"gpus": 1, "gpu_memory": "20GiB"}}
PAGES = (
    "/ui/", "/ui/deployments", "/ui/deployments/chat", "/ui/pending", "/ui/workers", "/ui/workers/w1", "/ui/hours",
    "/ui/policies", "/ui/events", "/ui/apply", "/ui/playground", "/ui/access", "/ui/catalog",
    "/ui/instances/{instance}", "/ui/gpus/{gpu}", "/ui/policies/watch", "/ui/hours/chat",
)  # fmt: skip
MOST_STOPS = 150
MANY = 12_345
# Where the focus is: its name, whether it is drawn within the page, and whether an outline shows it.
FOCUS = """() => {
    const at = document.activeElement;
    if (!at || at === document.body) return null;
    const box = at.getBoundingClientRect(), style = getComputedStyle(at);
    const ring = parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none";
    return {name: `${at.tagName} ${(at.textContent || at.getAttribute("aria-label") || "").slice(0, 30)}`,
            shown: box.width > 0 && box.height > 0 && (ring || at.getAttribute("role") === "application")};
}"""

# In one task: only what is queued as microtasks, the drawing of pages, runs between.
PRESS_ENTER_AND_SLASH = """async (field) => {
    const press = (at, key) => at.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    press(field, "Enter");
    for (let n = 0; n < 100 && document.querySelector("dialog"); n++) await null;
    press(document.body, "/");
    for (let n = 0; n < 100 && !document.querySelector("dialog"); n++) await null;
    if (!document.querySelector("dialog")) throw new Error("the search did not open");
}"""
# What Esc does, and then the next key before any other task of the page.
PRESS_ESCAPE_AND_QUESTION_MARK = """async (field) => {
    field.closest("dialog").requestClose();
    for (let n = 0; n < 100; n++) await null;
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "?", bubbles: true, cancelable: true}));
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
            await expect(page.get_by_role("dialog")).to_have_count(0)
    finally:
        await chat.call("DELETE", "/policies/watch-all")


@pytest.mark.usefixtures("chat")
async def test_a_search_that_opens_as_the_last_one_closes_stays(admin: Seat) -> None:
    """The browser tells of a dialog's close in a later task; keys may be pressed before it does."""
    page = await admin.live()
    await page.keyboard.press("/")
    field = page.get_by_role("combobox", name="Name or UUID")
    await field.fill("chat")
    await expect(page.get_by_role("dialog").get_by_role("option").first).to_be_visible()
    await field.evaluate(PRESS_ENTER_AND_SLASH)
    await page.wait_for_url("**/ui/deployments/chat")
    await field.fill("another")
    await expect(page.get_by_text("Nothing has this in its name.")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(field).to_have_count(0)


async def test_a_key_right_after_a_dialog_closed_acts(admin: Seat) -> None:
    """The field of a closed dialog keeps the focus until the page is drawn again, unless it leaves the page."""
    page = await admin.live()
    await page.keyboard.press("/")
    await page.get_by_role("combobox", name="Name or UUID").evaluate(PRESS_ESCAPE_AND_QUESTION_MARK)
    await expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


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
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Reason")).to_have_value("g d / ? ")
    await expect(page.get_by_label("Reason")).to_be_focused()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert "/ui/events" in page.url
    page = await admin.live("/ui/policies")
    await page.keyboard.press("?")
    shortcuts = page.get_by_role("dialog", name="Shortcuts")
    for key, place in (("/", "Search"), ("g d", "Deployments"), ("g w", "Workers"), ("Esc", "Close a dialog")):
        what = shortcuts.locator("dt", has_text=key).locator("xpath=following-sibling::dd[1]")
        await expect(what).to_have_text(place)
    await page.keyboard.press("Escape")
    await expect(shortcuts).to_have_count(0)
    admin.complaints.clear()  # the browser tells of 400 where a page was left with these as its filter


async def test_an_age_is_short_and_tells_the_full_time_with_its_zone(browser: Browser, chat: Cluster) -> None:
    key, _ = await key_of(chat, "viewer")
    async with seat(browser, chat.url, key, timezone_id="Asia/Tokyo") as taken:
        page = await taken.live("/ui/deployments/chat")
        age = page.get_by_role("group", name="Replicas").get_by_role("time").first
        await expect(age).to_have_text(re.compile(r"^\d+[smhd]$"))
        assert "GMT+9" in (await age.get_attribute("data-tip") or "")
        for show in (age.focus, age.hover):
            await page.mouse.move(0, 0)
            await show()
            shown = await age.evaluate("one => getComputedStyle(one, '::after').content")
            assert re.fullmatch(r'"\d\d \w+ \d{4}, \d\d:\d\d:\d\d GMT\+9"', shown), shown


@pytest.mark.usefixtures("chat")
async def test_an_age_of_a_minute_counts_up(admin: Seat) -> None:
    async def a_minute_old(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        for one in told["items"]:
            one["at"] = (datetime.now(UTC) - timedelta(seconds=61)).isoformat()
        await route.fulfill(response=answer, json=told)

    await admin.page.route("**/api/v1/events?*", a_minute_old)
    page = await admin.live("/ui/events")
    age = page.get_by_role("main").get_by_role("time").first
    await expect(age).to_have_text(re.compile(r"^6[1-4]s$"))
    first = await age.inner_text()
    await expect(age).not_to_have_text(first, timeout=2500)
    await expect(age).to_have_text(re.compile(r"^6\ds$"))


async def test_figures_are_those_of_the_command_line(admin: Seat, chat: Cluster) -> None:
    """Thousands are grouped, memory is in GiB as `gpuward` writes it, and unknown is never 0."""
    (held, *_) = [one for one in (await chat.get("/gpus"))["items"] if one["status"]["claims"]]

    async def other_figures(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        told["status"] |= {"memory_mib": 902_553, "free_mib": 12_640_000, "utilization": None, "used_mib": None}
        await route.fulfill(response=answer, json=told)

    async def many(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        gpus = told["gpus"]
        for name, column in gpus.items():
            more = [f"GPU-more-{n}" for n in range(MANY - len(column))] if name == "uuid" else column[-1:] * MANY
            gpus[name] = (column + more)[:MANY]
        await route.fulfill(response=answer, json=told)

    await admin.page.route(f"**/api/v1/gpus/{held['name']}", other_figures)
    page = await admin.live(f"/ui/gpus/{held['name']}")
    facts = page.get_by_role("region", name="Facts")

    def fact(title: str) -> Locator:
        return facts.locator("dt", has_text=re.compile(f"^{title}$")).locator("xpath=following-sibling::dd[1]")

    await expect(fact("Memory")).to_have_text("881.4 GiB")
    assert gib(902_553) == "881.4GiB"
    await expect(fact("Free")).to_have_text("12,343.8 GiB")
    for unknown in ("Utilization", "Used"):
        await expect(fact(unknown)).to_have_text("\N{EN DASH}")
    await admin.page.route("**/api/v1/map", many)
    page = await admin.live()
    held_figure = page.locator(".figure", has_text="GPUs held").locator(".figure-value")
    await expect(held_figure).to_have_text(re.compile(r"^\d+ of 12,345$"))
    await expect(page.get_by_role("application")).to_have_accessible_name(re.compile(r"^Map of 12,345 GPUs\."))


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


async def test_the_focus_shows_at_every_stop_of_every_page(admin: Seat, chat: Cluster) -> None:
    wrong: dict[str, list[str]] = {}
    names = {
        "instance": (await chat.instances("chat"))[0]["name"],
        "gpu": next(one["name"] for one in (await chat.get("/gpus"))["items"] if one["status"]["claims"]),
    }
    await chat.call("PUT", "/policies/watch", {"min_gpu_utilization": 10, "time_window": "30m", "dry_run": True})
    for path in PAGES:
        page = await admin.live(path.format(**names))
        await page.locator("main h1").first.wait_for(state="attached")
        if found := await walk(page):
            wrong[path] = found
    await chat.call("DELETE", "/policies/watch")
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
            assert await page.evaluate("document.getAnimations().length") == 0
            here = page.get_by_role("navigation", name="Pages").get_by_role("link", name="Cluster")
            assert await ground(here) != await ground(page.get_by_role("link", name="Workers", exact=True))
            page = await taken.live("/ui/deployments/chat")
            assert await page.locator(".phase.good").first.evaluate(
                "one => getComputedStyle(one, '::before').backgroundColor"
            ) not in ("rgba(0, 0, 0, 0)", "transparent")
            await page.keyboard.press("/")
            await page.get_by_role("combobox").fill("w")
            options = page.get_by_role("dialog").get_by_role("option")
            await expect(options.nth(1)).to_be_visible()
            assert await ground(options.nth(0)) != await ground(options.nth(1))
            assert await page.evaluate("document.getAnimations().length") == 0
    finally:
        await chat.post("/workers/w3/uncordon")


async def ground(of: Locator) -> str:
    """Its background, which forced colours take away from what is not marked otherwise."""
    found: str = await of.evaluate("one => getComputedStyle(one).backgroundColor")
    return found
