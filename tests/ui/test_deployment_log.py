"""The log of a deployment in the dashboard: all replicas by name, one alone, ends and new replicas, many lines."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
LINES = 33_000  # of each of three replicas
TALK = f"seq -f 'line %.0f of many' {LINES}; while true; do echo tick; sleep 0.2; done"
FRAME_MS, FRAMES, JUMP_PX = 32.0, 40, 9000
SCROLL = """async to => {
    document.querySelector(".log-view").scrollTop = to;
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
}"""
COMES_BACK_MS = 20_000.0
MANY_LINES = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trio(cluster_a: Cluster) -> AsyncIterator[list[str]]:
    """The ids of three replicas that have logged much, and go on."""
    resources = {"gpus": 1, "gpu_memory": "4GiB"}
    await cluster_a.apply("trio", engine="custom", command=["sh", "-c", TALK], replicas=3, resources=resources)
    await cluster_a.running("trio")
    yield [one["name"] for one in await cluster_a.instances("trio")]
    await cluster_a.delete("trio")
    await cluster_a.gone("trio")


def _log(page: Page) -> Locator:
    return page.locator("[data-part=log]")


async def _held(page: Page) -> int:
    found = re.search(r"([\d,]+)(?: of ([\d,]+))? lines", await _log(page).locator(".log-foot").inner_text())
    return int((found[2] or found[1]).replace(",", "")) if found else 0


async def frames(page: Page) -> list[float]:
    """What each frame of scrolling costs the page's main thread, in milliseconds of CPU: other load does not count."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def spent() -> float:
        told = (await session.send("Performance.getMetrics"))["metrics"]
        return 1000 * float(next(one["value"] for one in told if one["name"] == "TaskDuration"))

    took: list[float] = []
    for frame in range(FRAMES):
        before = await spent()
        await page.evaluate(SCROLL, 20_000 + frame * JUMP_PX)
        took.append(await spent() - before)
    return took


async def test_three_replicas_are_merged_and_scrolling_stays_smooth(admin: Seat, trio: list[str]) -> None:
    page = await admin.live("/ui/deployments/trio")
    log = _log(page)
    await expect(log.get_by_role("status")).to_have_text("following")
    for _ in range(100):
        if await _held(page) >= 3 * LINES:
            break
        await page.wait_for_timeout(200)
    assert await _held(page) >= 3 * LINES
    chips = log.get_by_role("group", name="Instances").get_by_role("button")
    await expect(chips).to_have_text(["All", *sorted(trio)])
    took = sorted(await frames(page))
    assert took[-1] <= FRAME_MS, took
    assert await page.evaluate("document.querySelectorAll('*').length") <= 5000
    print(f"frames while scrolling: median {took[FRAMES // 2]:.0f} ms, longest {took[-1]:.0f} ms")  # noqa: T201 - for the reader
    await log.get_by_role("button", name=trio[1]).click()
    names = log.locator(".log-name")
    await expect(names.filter(has_not_text=trio[1])).to_have_count(0)
    await expect(names.first).to_contain_text(trio[1])
    download = log.get_by_role("link", name="Download")
    href = await download.get_attribute("href") or ""
    assert f"instance={trio[1]}" in href
    answer = await admin.context.request.get(admin.url + href)
    assert len((await answer.text()).splitlines()) >= LINES
    await log.get_by_label("Search").fill("tick")
    before = await log.locator(".log-foot").inner_text()
    await expect(log.locator(".log-line").last).to_contain_text("tick")
    await expect(log.locator(".log-foot")).not_to_have_text(before)


async def test_new_replicas_join_and_settings_are_kept(admin: Seat, cluster_a: Cluster) -> None:
    spec: dict[str, Any] = {"engine": "custom", "resources": {"gpus": 1, "gpu_memory": "4GiB"}}
    await cluster_a.apply("grow", command=["sh", "-c", "echo hello; exec sleep 1000"], replicas=1, **spec)
    try:
        await cluster_a.running("grow")
        page = await admin.live("/ui/deployments/grow")
        log = _log(page)
        await expect(log.locator(".log-line")).to_have_count(1)
        await log.get_by_label("Times").check()
        await cluster_a.post("/deployments/grow/scale", {"replicas": 2})
        await expect(log.locator(".log-line")).to_have_count(2)
        await page.reload()
        await expect(log.get_by_label("Times")).to_be_checked()
        await expect(log.locator("time").first).to_be_visible()
        await log.get_by_label("Times").uncheck()
    finally:
        await cluster_a.delete("grow")
        await cluster_a.gone("grow")


@pytest.mark.usefixtures("trio")
async def test_viewers_see_no_log(browser: Browser, cluster_a: Cluster) -> None:
    key, _ = await key_of(cluster_a, "viewer", "viewer-of-logs")
    async with seat(browser, cluster_a.url, key) as viewer:
        page = await viewer.live("/ui/deployments/trio")
        await expect(page.get_by_role("heading", name="Replicas")).to_be_visible()
        await expect(_log(page)).to_have_count(0)


async def test_ranks_of_a_gang_are_shown_alone_by_a_click(admin: Seat, cluster_a: Cluster) -> None:
    await cluster_a.apply("gang", replicas=1, resources={"gpus": 6, "gpu_memory": "4GiB", "max_workers": 2})
    try:
        await cluster_a.running("gang")
        page = await admin.live("/ui/deployments/gang")
        log = _log(page)
        names = log.locator(".log-name")
        await expect(names.filter(has_text="rank 0").first).to_be_visible()
        await expect(names.filter(has_text="rank 1").first).to_be_visible()
        await log.get_by_role("button", name="Rank 1", exact=True).click()
        await expect(names.filter(has_text="rank 0")).to_have_count(0)
        await expect(names.filter(has_text="rank 1").first).to_be_visible()
        href = await log.get_by_role("link", name="Download").get_attribute("href") or ""
        assert "rank=1" in href
        whole = await (await admin.context.request.get(admin.url + href)).text()
        await expect(names).to_have_count(len(whole.splitlines()))
        await expect(log.get_by_role("status")).to_have_text("following")
    finally:
        await cluster_a.delete("gang")
        await cluster_a.gone("gang")


async def told(page: Page) -> tuple[int, int]:
    """The number in the newest line, and how many lines with a number there are, both of one moment."""
    await page.locator(".log-text").first.wait_for()
    newest, foot = await page.evaluate(
        "() => [...document.querySelectorAll('.log-text')].slice(-1).concat(document.querySelector('.log-foot'))"
        ".map(one => one.innerText)"
    )
    found = re.search(r"(\d+)(?: of \d+)? lines", foot)
    return int(newest.split()[1]), int(found[1]) if found else 0


async def reaches(page: Page, number: int) -> int:
    """Waits until the newest line has this number or a higher one, which is returned."""
    async with asyncio.timeout(COMES_BACK_MS / 1000):
        while (newest := (await told(page))[0]) < number:
            await page.wait_for_timeout(100)
        return newest


async def test_a_log_goes_on_after_a_restart_that_lets_viewers_read(browser: Browser, cluster_a: Cluster) -> None:
    """The last one: the controller is another process afterwards."""
    count = ["sh", "-c", "i=0; while true; do i=$((i+1)); echo count $i; sleep 0.1; done"]
    await cluster_a.apply("count", engine="custom", command=count, resources={"gpus": 1, "gpu_memory": "4GiB"})
    key, _ = await key_of(cluster_a, "viewer", "reader")
    admins, _ = await key_of(cluster_a, "admin", "follower")
    try:
        await cluster_a.running("count")
        async with seat(browser, cluster_a.url, admins) as follower, seat(browser, cluster_a.url, key) as viewer:
            page = await follower.live("/ui/deployments/count")
            await _log(page).get_by_label("Search").fill("count")
            last = await reaches(page, MANY_LINES)
            cluster_a.kill("controller")
            await expect(page.locator("[data-part=live]")).to_contain_text("no connection")
            await expect(_log(page).get_by_role("status")).to_have_text("no connection")
            await cluster_a.start_controller(GPUWARD_VIEWERS_READ_LOGS="true")
            await expect(page.locator("[data-part=live]")).to_have_text("live", timeout=COMES_BACK_MS)
            await reaches(page, last + MANY_LINES)
            newest, lines = await told(page)
            assert lines == newest, "each line once, and none left out"
            other = await viewer.live("/ui/deployments/count")
            await expect(_log(other).get_by_role("status")).to_have_text("following")
            await expect(_log(other).locator(".log-line").last).to_contain_text("count")
            await expect(other.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    finally:
        await cluster_a.delete("count")
        await cluster_a.gone("count")
