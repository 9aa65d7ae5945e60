"""The keyboard alone: every act is possible, and the focus is never lost (D39).

Where a control is, the tests find by its name; they reach it with Tab, as a reader does, and never by a click.
"""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
ONE = "kind: Deployment\nname: one\nengine: simulated\nresources:\n  gpus: 1\n  gpu_memory: 20GiB\n"
MOST_STOPS = 120
HAS_FOCUS = "one => one === document.activeElement"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chat(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `chat`, of which two replicas run."""
    await cluster_a.apply("chat", replicas=2, resources=SMALL)
    await cluster_a.running("chat")
    yield cluster_a
    for one in (await cluster_a.get("/deployments"))["items"]:
        await cluster_a.delete(one["name"])
        await cluster_a.gone(one["name"])


async def reach(wanted: Locator) -> None:
    """Tabs until it has the focus."""
    await wanted.wait_for()
    for _ in range(MOST_STOPS):
        if await wanted.evaluate(HAS_FOCUS):
            return
        await wanted.page.keyboard.press("Tab")
    raise AssertionError(f"not within {MOST_STOPS} stops: {wanted}")


async def press(wanted: Locator, key: str = "Enter") -> None:
    """Reaches a control that is on, and presses a key."""
    await expect(wanted).to_be_enabled()
    await reach(wanted)
    await wanted.page.keyboard.press(key)


def button(inside: Page | Locator, name: str) -> Locator:
    return inside.get_by_role("button", name=name, exact=True)


async def keeps_the_focus(page: Page) -> None:
    """Something within the page has the focus, and not the page as a whole."""
    await page.wait_for_timeout(300)
    assert await page.evaluate("document.activeElement !== document.body"), "the focus is lost"


async def test_apply_with_a_gpu_picked_by_hand(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/apply")
    await reach(page.get_by_role("textbox", name="Manifest"))
    await page.keyboard.press("Control+a")
    await page.keyboard.insert_text(ONE)
    picker = page.locator("[data-part=picker]")
    gpu = picker.get_by_role("region", name="w2", exact=True).get_by_role("checkbox").nth(1)
    await gpu.wait_for()
    await press(gpu, "Space")
    await expect(gpu).to_have_attribute("aria-checked", "true")
    await expect(page.locator("[data-part=plan]")).to_contain_text("w2 GPU 1")
    await press(button(page, "Apply"))
    await page.wait_for_url("**/ui/deployments/one")
    await chat.running("one")
    (instance,) = await chat.instances("one")
    assert instance["status"]["workers"] == ["w2"]
    await keeps_the_focus(page)


async def test_scale_and_delete_with_the_name_typed(admin: Seat, chat: Cluster) -> None:
    await chat.apply("two", replicas=1, resources=SMALL)
    await chat.running("two")
    page = await admin.live("/ui/deployments/two")
    dialog = page.get_by_role("dialog")
    await press(button(page, "Scale"))
    await reach(dialog.get_by_role("textbox"))
    await page.keyboard.press("Control+a")
    await page.keyboard.type("2")
    await press(button(dialog, "Scale"))
    await expect(page.get_by_text("2 of 2 ready")).to_be_visible(timeout=30_000)
    await expect(button(page, "Scale")).to_be_focused()
    await press(button(page, "Delete"))
    await expect(button(dialog, "Delete")).to_be_disabled()
    await reach(dialog.get_by_role("textbox"))
    await page.keyboard.type("two")
    await page.keyboard.press("Enter")
    await chat.gone("two")
    await expect(button(page, "Delete")).to_have_count(0)
    await keeps_the_focus(page)


@pytest.mark.usefixtures("chat")
async def test_cordon_and_uncordon(admin: Seat) -> None:
    page = await admin.live("/ui/workers/w3")
    await press(button(page, "Cordon"))
    await expect(button(page, "Uncordon")).to_be_visible()
    await keeps_the_focus(page)
    await press(button(page, "Uncordon"))
    await expect(button(page, "Cordon")).to_be_visible()
    await keeps_the_focus(page)


@pytest.mark.usefixtures("chat")
async def test_make_and_revoke_a_key(admin: Seat) -> None:
    page = await admin.live("/ui/access")
    dialog = page.get_by_role("dialog")
    await press(button(page, "Make a key"))
    await reach(dialog.get_by_label("Name"))
    await page.keyboard.type("by-keyboard")
    await press(button(dialog, "Make key"))
    await press(button(dialog, "Done"))
    await expect(dialog).to_have_count(0)
    await keeps_the_focus(page)
    row = page.get_by_role("row", name=re.compile("by-keyboard"))
    await press(button(row, "Revoke"))
    await press(button(dialog, "Revoke"))
    await expect(row).to_have_count(0)
    await keeps_the_focus(page)


@pytest.mark.usefixtures("chat")
async def test_send_to_the_playground_and_stop(admin: Seat) -> None:
    page = await admin.live("/ui/playground")
    await reach(page.get_by_label("Message"))
    await page.keyboard.type("hello")
    await page.keyboard.press("Enter")
    answer = page.locator("[data-part=chat]").get_by_role("listitem").nth(1)
    await expect(answer).to_contain_text(re.compile(r"\w"))
    await page.keyboard.type("[simulate tokens=100000 token_seconds=0.05]")
    await press(button(page, "Send"))
    await press(button(page, "Stop"))
    await expect(button(page, "Stop")).to_be_disabled()
    await keeps_the_focus(page)


@pytest.mark.usefixtures("chat")
async def test_filter_the_log(admin: Seat) -> None:
    page = await admin.live("/ui/deployments/chat")
    log = page.locator("[data-part=log]")
    await reach(log.get_by_role("searchbox", name="Search"))
    await page.keyboard.type("no such line [")
    expression = log.get_by_label("Regular expression")
    await press(expression, "Space")
    await expect(expression).to_be_checked()
    await expect(log.get_by_role("searchbox", name="Search")).to_have_attribute("aria-invalid", "true")
    await press(expression, "Space")
    await expect(expression).not_to_be_checked()
    alone = log.get_by_role("group", name="Instances").get_by_role("button").nth(1)
    await press(alone)
    await expect(alone).to_have_attribute("aria-pressed", "true")
