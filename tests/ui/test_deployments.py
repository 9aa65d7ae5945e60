"""Deployments in the dashboard: live rows, their story, controls with confirmations, the manifest as applied."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from playwright.async_api import Browser, Locator, Page, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPEC: dict[str, Any] = {
    "model": "hf:Qwen/Qwen3-0.6B",
    "engine": "simulated",
    "replicas": 2,
    "labels": {"zone": "<img src=x onerror=alert(1)>", "on": "yes"},
    "resources": {"gpus": 1, "gpu_memory": "20GiB"},
}


@pytest_asyncio.fixture(loop_scope="module")
async def chat(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `chat`, of which two replicas run."""
    await cluster_a.apply("chat", **SPEC)
    await cluster_a.running("chat")
    yield cluster_a
    await cluster_a.delete("chat")
    await cluster_a.gone("chat")


def _rows(page: Page) -> Locator:
    return page.locator("[role=group][aria-label=Replicas]").locator("tr[data-row]")


async def test_a_new_replica_shows_at_once_and_the_focus_stays(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/deployments/chat")
    await expect(_rows(page)).to_have_count(2)
    await expect(page.locator("[data-part=story] li").first).to_be_visible()
    await expect(page.locator("pre.manifest")).to_be_visible()
    focused = _rows(page).nth(1).get_by_role("link").first
    name = await focused.inner_text()
    await focused.focus()
    await page.evaluate("() => { scrollTo(0, 120); getSelection().selectAllChildren(document.querySelector('h1')); }")
    await focused.evaluate("one => one.focus({preventScroll: true})")
    before = await page.evaluate("() => [scrollY, getSelection().toString()]")
    assert before == [120, "chat"]
    admin.requests.clear()
    await chat.post("/deployments/chat/scale", {"replicas": 3})
    await expect(_rows(page)).to_have_count(3, timeout=1000)
    assert await page.evaluate("() => document.activeElement.textContent") == name
    assert await page.evaluate("() => [scrollY, getSelection().toString()]") == before
    assert admin.requests == []


async def test_the_manifest_is_without_defaults_and_changes_nothing(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/deployments/chat")
    found = yaml.safe_load(await page.locator("pre.manifest").inner_text())
    assert found.pop("kind") == "Deployment"
    assert found.pop("name") == "chat"
    assert found == {**SPEC, "resources": {"gpus": 1, "gpu_memory": "20480MiB"}}
    before = await chat.get("/deployments/chat")
    await chat.apply("chat", **found)
    assert (await chat.get("/deployments/chat"))["generation"] == before["generation"]


async def test_a_change_of_another_refuses_what_was_confirmed(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_role("button", name="Scale").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Replicas (now 2)").fill("0")
    await expect(dialog).to_contain_text("2 running instances stop")
    await chat.post("/deployments/chat/scale", {"replicas": 3})
    await expect(_rows(page)).to_have_count(3)
    await dialog.get_by_role("button", name="Scale").click()
    await expect(page.get_by_role("alert")).to_contain_text("Changed meanwhile: replicas 2 → 3.")
    assert (await chat.get("/deployments/chat"))["spec"]["replicas"] == 3


@pytest.mark.usefixtures("chat")
async def test_stop_names_what_ends_and_the_story_tells_of_it(admin: Seat) -> None:
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("dialog")).to_contain_text("2 running instances stop: chat-")
    await page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    line = page.locator("[data-part=story] li[data-reason=stopped]").first
    await expect(line).to_contain_text("ann")
    await expect(line.get_by_role("link", name="chat")).to_have_attribute("href", "/ui/deployments/chat")
    await page.get_by_role("button", name="Start", exact=True).click()
    await expect(page.get_by_role("button", name="Start", exact=True)).to_have_count(0)


@pytest.mark.usefixtures("chat")
async def test_delete_wants_the_name(admin: Seat) -> None:
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    await dialog.get_by_label("Type chat to confirm").fill("chat")
    await expect(dialog.get_by_role("button", name="Delete")).to_be_enabled()
    await page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("button", name="Delete")).to_be_focused()


async def test_a_viewer_has_no_controls(browser: Browser, chat: Cluster) -> None:
    key, _ = await key_of(chat, "viewer", "viewer-of-chat")
    async with seat(browser, chat.url, key) as viewer:
        page = await viewer.live("/ui/deployments/chat")
        await expect(_rows(page)).to_have_count(2)
        for name in ("Stop", "Start", "Scale", "Delete", "Duplicate"):
            await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


async def test_two_revisions_are_compared_field_by_field(admin: Seat, chat: Cluster) -> None:
    for memory in ("24GiB", "28GiB"):
        await chat.apply("chat", **{**SPEC, "resources": {"gpus": 1, "gpu_memory": memory}})
    page = await admin.live("/ui/deployments/chat")
    await page.get_by_text("Compare two revisions").click()
    changed = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="resources.gpu_memory"))
    await expect(changed.get_by_role("cell")).to_have_text(["24GiB", "28GiB", "replaces"])
    await page.get_by_role("combobox", name="Old").select_option(label="revision 1")
    await expect(changed.get_by_role("cell")).to_have_text(["20GiB", "28GiB", "replaces"])
    await page.get_by_role("combobox", name="New").select_option(label="revision 1")
    await expect(page.get_by_text("No field differs.")).to_be_visible()
