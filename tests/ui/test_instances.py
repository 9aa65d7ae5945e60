"""An instance in the dashboard: its log as it comes, filtered and harmless; the start before; why it is pending."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
ONE_GPU = {"gpus": 1, "gpu_memory": "4GiB"}
TALK = "i=0; while true; do i=$((i+1)); echo line $i of the log; sleep 0.02; done"
CRASH = r"printf '\033[31mred\033[0m \033]0;title\007<script>alert(1)</script>\n'; sleep 0.3; exit 3"


@pytest_asyncio.fixture(loop_scope="module")
async def talk(cluster_a: Cluster) -> AsyncIterator[str]:
    """The id of an instance that logs 50 lines a second."""
    await cluster_a.apply("talk", engine="custom", command=["sh", "-c", TALK], resources=ONE_GPU)
    await cluster_a.running("talk")
    yield (await cluster_a.instances("talk"))[0]["name"]
    await cluster_a.delete("talk")
    await cluster_a.gone("talk")


@pytest_asyncio.fixture(loop_scope="module")
async def crash(cluster_a: Cluster) -> AsyncIterator[str]:
    """The id of an instance that exits with code 3 in a loop, on back-off."""
    await cluster_a.apply("crash", engine="custom", command=["sh", "-c", CRASH], resources=ONE_GPU)

    async def waits() -> bool:
        return await cluster_a.phases("crash") == ["backoff"]

    await cluster_a.until(waits, "crash is on back-off")
    yield (await cluster_a.instances("crash"))[0]["name"]
    await cluster_a.delete("crash")
    await cluster_a.gone("crash")


async def _last(page: Page) -> int:
    return int((await page.locator(".log-line").last.inner_text()).split()[1])


async def test_a_log_follows_stops_when_scrolled_up_and_resumes(admin: Seat, talk: str) -> None:
    page = await admin.live(f"/ui/instances/{talk}")
    log = page.locator("[data-part=log]")
    await expect(log.get_by_role("status")).to_have_text("following")
    await expect(page.get_by_text("line 100 of the log")).to_be_visible()
    await log.get_by_label(f"Log of {talk}").hover()
    await page.mouse.wheel(0, -800)
    await expect(log.get_by_role("button", name="new lines")).to_be_visible()
    seen = await _last(page)
    await log.get_by_label(f"Log of {talk}").press("End")
    await expect(log.get_by_role("status")).to_have_text("following")
    await expect(page.locator(".log-line").last).not_to_have_text(f"line {seen} of the log")
    assert await _last(page) > seen


async def test_a_filter_holds_for_what_still_comes(admin: Seat, talk: str) -> None:
    page = await admin.live(f"/ui/instances/{talk}")
    log = page.locator("[data-part=log]")
    await log.get_by_label("Regular expression").check()
    await log.get_by_label("Search").fill("line [0-9]*0 of")
    first = await _last(page)
    await expect(page.locator(".log-line").last).not_to_have_text(f"line {first} of the log")
    assert await _last(page) % 10 == 0
    await log.get_by_label("Search").fill("[")
    await expect(log.get_by_text("Invalid regular expression")).to_be_visible()


async def test_a_crash_tells_its_code_and_its_log_is_only_text(admin: Seat, crash: str) -> None:
    page = await admin.live(f"/ui/instances/{crash}")
    log = page.locator("[data-part=log]")
    await expect(log.get_by_role("status")).to_contain_text("exited with code 3")
    await expect(log.locator(".log-line").first).to_have_text("red <script>alert(1)</script>")
    await expect(log.locator(".ansi-red")).to_have_text("red")
    await expect(page.get_by_text("exited with code 3").first).to_be_visible()


async def test_the_previous_start_is_one_click_away(admin: Seat, crash: str) -> None:
    page = await admin.live(f"/ui/instances/{crash}")
    log = page.locator("[data-part=log]")
    await expect(page.get_by_text("exited with code 3").first).to_be_visible()
    await log.get_by_role("button", name="Previous start").click()
    await expect(log.locator(".log-line").first).to_have_text("red <script>alert(1)</script>", timeout=1000)
    await expect(log.get_by_role("heading", name="Log of the previous start")).to_be_visible()
    await expect(log.get_by_role("status")).to_contain_text("exited with code 3")
