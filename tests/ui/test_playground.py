"""The playground: text is text, Stop ends the request at the engine, figures, snippets, refusals (D7, D38)."""

import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from support.browser.dashboard import Seat
from support.processes.cluster import Cluster
from support.processes.served_models import counters

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = {"gpus": 1, "gpu_memory": "20GiB"}
HOSTILE_LABEL = '<img src="/v1/stolen" onerror=alert(1)>'
HOSTILE = "# Title\n<img src=/v1/stolen onerror=alert(1)><script>alert(2)</script>\n[click](javascript:alert(3)) http://x.test/"
ENGINE = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body, media):
        self.send_response(200)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b"{}", "application/json")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        chunk = {"choices": [{"index": 0, "delta": {"content": TEXT}}]}
        self.answer(b"data: " + json.dumps(chunk).encode() + b"\\n\\ndata: [DONE]\\n\\n", "text/event-stream")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest_asyncio.fixture(loop_scope="module")
async def chat(cluster_a: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with `chat`, which runs."""
    await cluster_a.apply("chat", resources=SMALL)
    await cluster_a.running("chat")
    yield cluster_a
    await cluster_a.delete("chat")
    await cluster_a.gone("chat")


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_what_a_model_and_a_label_say_is_only_text(admin: Seat, cluster_a: Cluster) -> None:
    dialogs: list[Any] = []

    def note(dialog: Any) -> None:
        dialogs.append(dialog)

    admin.page.on("dialog", note)
    command = ["python3", "-c", f"TEXT = {HOSTILE!r}\n{ENGINE}", "{port}"]
    await cluster_a.apply("hostile", engine="custom", command=command, resources=SMALL, labels={"zone": HOSTILE_LABEL})
    try:
        await cluster_a.running("hostile")
        page = await admin.live("/ui/deployments/hostile")
        await expect(page.locator("pre.manifest")).to_contain_text("onerror=alert(1)")
        page = await admin.live("/ui/playground")
        await page.get_by_label("Model").select_option("hostile")
        await send(page, "[click](javascript:alert(4)) <b>bold</b>")
        chat = page.locator("[data-part=chat]")
        await expect(chat.locator(".assistant .turn-text")).to_have_text(HOSTILE, use_inner_text=True)
        await expect(chat.locator(".user .turn-text")).to_have_text("[click](javascript:alert(4)) <b>bold</b>")
        for made in ("img", "script", "b", "a"):
            await expect(chat.locator(f".turns {made}")).to_have_count(0)
        assert await page.locator("a[href^='javascript:' i]").count() == 0
        assert dialogs == []
        assert not [one for one in admin.requests if "stolen" in one or not one.split()[1].startswith(admin.url)]
    finally:
        await cluster_a.delete("hostile")
        await cluster_a.gone("hostile")


async def test_stop_ends_the_request_at_the_engine_and_keeps_the_text(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/playground")
    await page.get_by_label("Model").select_option("chat")
    await send(page, "[simulate tokens=100000 token_seconds=0.05]")
    said = page.locator("[data-part=chat] .assistant .turn-text")
    await expect(said).not_to_be_empty()
    figures = page.locator("dl.figures")
    await expect(figures).to_contain_text(re.compile(r"Time to first token\s*[\d.]+s"))
    await expect(figures).to_contain_text(re.compile(r"Tokens\s*\d+"))
    await expect(figures).to_contain_text(re.compile(r"Tokens per second\s*\d+\.\d"))
    assert await running(chat) == 1
    began = time.monotonic()
    await page.get_by_role("button", name="Stop").click()
    await chat.until(lambda: ended(chat), "the engine has ended it", 5)
    assert time.monotonic() - began < 1 + 0.5, "one second, and the slack of a busy machine"
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    kept = await said.inner_text()
    assert kept
    await expect(page.get_by_role("alert")).to_have_count(0)
    await page.get_by_label("Message").fill("go on")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    await expect(said).to_have_text(kept)


async def running(cluster: Cluster) -> int:
    (found,) = await counters(cluster, "chat")
    return int(found["running"])


async def ended(cluster: Cluster) -> bool:
    return await running(cluster) == 0


async def test_snippets_name_no_key_and_nothing_is_stored(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/playground?model=chat")
    await send(page, "a-secret-thought [simulate tokens=3]")
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    text = await page.locator("main").inner_text()
    assert f"curl {chat.url}/v1/chat/completions" in text
    assert f'base_url="{chat.url}/v1"' in text
    assert "$GPUWARD_API_KEY" in text
    assert not re.search(r"gpw[a-z_]*[0-9A-Za-z]{16,}", text)
    stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "a-secret-thought" not in stored
    await page.reload()
    await expect(page.locator("[data-part=chat] .turns li")).to_have_count(0)
    events = await chat.get("/events?limit=200")
    assert "a-secret-thought" not in json.dumps(events)


async def test_a_refusal_says_why_and_when_it_can_be_tried_again(admin: Seat, chat: Cluster) -> None:
    page = await admin.live("/ui/playground?model=chat")
    error = {"error": {"message": "no instance of 'chat' runs", "type": "server_error", "code": "no_instance"}}

    async def refuse(route: Any) -> None:
        await route.fulfill(status=503, json=error, headers={"Retry-After": "7"})

    await page.route("**/v1/chat/completions", refuse)
    await send(page, "hello")
    alert = page.locator("[data-part=chat]").get_by_role("alert")
    await expect(alert).to_contain_text("no instance of 'chat' runs")
    await expect(alert).to_contain_text("It can be tried again in 7s.")
    await page.unroute("**/v1/chat/completions")
    await chat.post("/deployments/chat/stop")
    await chat.until(lambda: stopped(chat), "chat is stopped", 20)
    await send(page, "again")
    await expect(alert).to_contain_text("model: 'chat' is stopped by its user", timeout=20_000)
    admin.complaints.clear()  # the browser tells of the answers 503


async def stopped(cluster: Cluster) -> bool:
    return not await cluster.instances("chat")
