"""Stop, scale to none and delete while instances serve: what ends is named, what changed meanwhile is shown (D26)."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
REQUESTS = 5
DIALOG = "dialog"


@pytest_asyncio.fixture(loop_scope="module")
async def chat(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `chat`, of which three replicas run."""
    await cluster_a.apply("chat", engine="simulated", replicas=3, resources=SMALL, drain_time="1s")
    await cluster_a.running("chat")
    yield cluster_a
    if await cluster_a.phase_of("chat") not in ("gone", "deleting"):
        await cluster_a.delete("chat")
    await cluster_a.gone("chat")


@asynccontextmanager
async def in_flight(cluster: Cluster, number: int) -> AsyncIterator[None]:
    """So many requests that wait for their first token."""

    async def ask() -> None:
        body = {"model": "chat", "messages": [{"role": "user", "content": "[simulate wait=120 tokens=1]"}]}
        async with cluster.session.post("/v1/chat/completions", json=body) as answer:
            await answer.read()

    asked = [asyncio.create_task(ask()) for _ in range(number)]

    async def counted() -> bool:
        return bool((await cluster.get("/deployments/chat/load"))["in_flight"] == number)

    try:
        await cluster.until(counted, f"{number} requests are in flight")
        yield
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def open_dialog(page: Page, verb: str) -> Any:
    await page.get_by_role("button", name=verb, exact=True).click()
    return page.get_by_role(DIALOG)


async def test_each_confirmation_names_instances_and_requests(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/deployments/chat")
    told = re.compile(r"3 running instances stop: chat-.*; 5 requests are in flight\.")
    async with in_flight(chat, REQUESTS):
        for verb in ("Stop", "Scale", "Delete"):
            dialog = await open_dialog(page, verb)
            if verb == "Scale":
                await dialog.get_by_label("Replicas (now 3)").fill("0")
            await expect(dialog).to_contain_text(told)
            await expect(page.get_by_role(DIALOG)).to_have_count(1)
            await page.keyboard.press("Escape")
            await expect(dialog).to_have_count(0)
    dialog = await open_dialog(page, "Stop")
    await expect(dialog).to_contain_text("no requests are in flight", timeout=5000)
    assert await chat.phases("chat") == ["running"] * 3, "nothing was confirmed"


@pytest.mark.usefixtures("chat")
async def test_a_control_is_busy_until_the_controller_confirmed(admin: Seat) -> None:
    page = await admin.live("/ui/deployments/chat")
    let_go = asyncio.Event()

    async def hold(route: Any) -> None:
        await let_go.wait()
        await route.continue_()

    await page.route("**/deployments/chat/stop", hold)
    stop = page.get_by_role("button", name="Stop", exact=True)
    dialog = await open_dialog(page, "Stop")
    await dialog.get_by_role("button", name="Stop").click()
    await expect(stop).to_have_attribute("aria-busy", "true")
    await expect(stop).to_be_disabled()
    await expect(page.get_by_text("3 of 3 ready")).to_be_visible()
    let_go.set()
    await expect(stop).to_have_count(0)
    await expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()
    await expect(page.get_by_text("0 of 0 ready")).to_be_visible(timeout=20_000)


@pytest.mark.parametrize("verb", ["Stop", "Delete"])
async def test_what_another_changed_is_shown_even_where_the_page_did_not_know(
    admin: Seat, chat: Cluster, verb: str
) -> None:
    """The live connection is held back, so only the controller can refuse."""
    await admin.page.route_web_socket("**/api/v1/live", hold_changes)
    page = await admin.live("/ui/deployments/chat")
    dialog = await open_dialog(page, verb)
    await chat.post("/deployments/chat/scale", {"replicas": 2})
    if verb == "Delete":
        await dialog.get_by_label("Type chat to confirm").fill("chat")
    await dialog.get_by_role("button", name=verb).click()
    await expect(page.get_by_role("alert")).to_contain_text("Changed meanwhile: replicas 3 → 2. Nothing was done")
    view = await chat.get("/deployments/chat")
    assert (view["spec"]["replicas"], view["status"]["intents"], view["deleted_at"]) == (2, [], None)
    admin.complaints.clear()  # the browser tells of the answer 412


def hold_changes(socket: Any) -> None:
    server = socket.connect_to_server()
    socket.on_message(server.send)

    def tell(message: str) -> None:
        if '"type":"changed"' not in message.replace(" ", ""):
            socket.send(message)

    server.on_message(tell)
