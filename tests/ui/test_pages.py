"""Pending, workers, GPU hours, policies, access and the playground: what they show and what they do (D20, D37, D38)."""

import re
import time

import pytest
from playwright.async_api import Browser, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
WHOLE = {"gpus": 4, "exclusive": True}


async def test_pending_is_in_order_with_the_reason(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/pending")
    await expect(page.locator("[data-part=pending]")).to_contain_text("Nothing is pending.")
    await cluster_a.apply(
        "filler",
        engine="simulated",
        replicas=3,
        resources={"gpus": 1, "exclusive": True},
        placement={"strategy": "spread"},
    )
    await cluster_a.running("filler")
    await cluster_a.apply("big", engine="simulated", replicas=2, priority=200, resources=WHOLE)
    rows = page.locator("[data-part=pending] tbody tr[data-row]")
    await expect(rows).to_have_count(2, timeout=10_000)
    await expect(rows.nth(0)).to_contain_text("1st of 2")
    await expect(rows.nth(1)).to_contain_text("2nd of 2")
    await expect(rows.nth(0)).to_contain_text("200")
    await expect(page.locator("[data-part=pending] tr.note").first).to_contain_text(re.compile(r"0/3 fit: 3 held"))
    for name in ("big", "filler"):
        await cluster_a.delete(name)
        await cluster_a.gone(name)
    await expect(page.locator("[data-part=pending]")).to_contain_text("Nothing is pending.", timeout=10_000)


async def test_a_worker_is_cordoned_and_uncordoned(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/workers/w2")
    await page.get_by_role("button", name="Cordon", exact=True).click()
    state = page.get_by_role("heading", level=1).locator("xpath=following-sibling::*[1]")
    await expect(state).to_have_text("cordoned")
    assert (await cluster_a.get("/workers/w2"))["spec"]["cordoned"]
    await page.get_by_role("button", name="Uncordon").click()
    await expect(state).to_have_text("ready")
    await page.get_by_role("button", name="Delete worker").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete worker")
    await expect(confirm).to_be_disabled()
    await page.get_by_role("dialog").get_by_role("textbox").fill("w")
    await expect(confirm).to_be_disabled()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Delete worker")).to_be_focused()


async def test_a_worker_lists_its_engines(admin: Seat, cluster_a: Cluster) -> None:
    engines = (await cluster_a.get("/workers/w1"))["status"]["engines"]
    named = [f"{one['name']} {one['version'] or ''}".strip() for one in engines]
    page = await admin.live("/ui/workers/w1")
    listed = page.locator("dl.facts dt", has_text="Engines").locator("xpath=following-sibling::dd[1]")
    await expect(listed).to_have_text(", ".join(named) or "none installed")


async def test_a_viewer_has_no_control_that_changes_anything(browser: Browser, cluster_a: Cluster) -> None:
    key, _ = await key_of(cluster_a, "viewer")
    allowed = re.compile(r"Search|Table|Map|Try again|Older events|Show more|CSV|Replay|Log out|Copy|^\w[\w ()]*[↑↓]?$")
    changing = re.compile(r"Cordon|Drain|Delete|Stop|Start|Scale|Apply|Make|Revoke|Undo|Go back|Plan", re.IGNORECASE)
    async with seat(browser, cluster_a.url, key) as taken:
        for path in (
            "/ui/",
            "/ui/deployments",
            "/ui/workers/w1",
            "/ui/policies",
            "/ui/pending",
            "/ui/hours",
            "/ui/catalog",
        ):
            page = await taken.live(path)
            await page.wait_for_timeout(500)
            names = await page.get_by_role("button").all_inner_texts()
            assert not [name for name in names if changing.search(name)], (path, names)
            assert all(allowed.search(name.strip()) for name in names if name.strip()), names


async def test_hours_are_those_of_the_report(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/hours?since=1d")
    report = await cluster_a.get("/reports/idle?since=1d")
    if not report["items"]:
        await expect(page.get_by_text("No GPU was claimed in this time.")).to_be_visible()
    else:
        await expect(page.locator("tbody tr[data-row]")).to_have_count(len(report["items"]))
    await page.get_by_label("What if below").fill("30")
    await page.get_by_label("for", exact=True).fill("10m")
    await page.get_by_role("button", name="Replay").click()
    await page.wait_for_url(re.compile("min_gpu_utilization=30&time_window=10m"))


async def test_a_key_is_shown_once_and_revoked(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/access")
    await page.get_by_role("button", name="Make a key").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("cy")
    await page.get_by_role("dialog").get_by_role("button", name="Make key").click()
    dialog = page.get_by_role("dialog", name="Key cy")
    value = await dialog.locator("code").inner_text()
    assert value.startswith("gpw_")
    await dialog.get_by_role("button", name="Done").click()
    assert value not in await page.content()
    row = page.get_by_role("row", name=re.compile("^cy "))
    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)
    keys = (await cluster_a.get("/keys"))["items"]
    assert [one["revoked_at"] is not None for one in keys if one["name"] == "cy"] == [True]


async def test_a_key_with_limits_and_a_secret(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/access")
    await page.get_by_role("button", name="Make a key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("dee")
    await expect(dialog.get_by_label("Requests per minute")).to_have_count(0)
    await dialog.get_by_label("Role").select_option("inference")
    await dialog.get_by_label("Expires in").fill("30d")
    await dialog.get_by_label("Models").fill("chat, team-*")
    await dialog.get_by_label("Requests per minute").fill("sixty")
    await expect(dialog.get_by_role("button", name="Make key")).to_be_disabled()
    await dialog.get_by_label("Requests per minute").fill("60")
    await dialog.get_by_role("button", name="Make key").click()
    await page.get_by_role("dialog", name="Key dee").get_by_role("button", name="Done").click()
    await expect(page.get_by_role("row", name=re.compile("^dee "))).to_contain_text("chat, team-*; 60 requests/min")
    (made,) = [one for one in (await cluster_a.get("/keys"))["items"] if one["name"] == "dee"]
    assert (made["role"], made["models"], made["rpm"], made["tpm"]) == ("inference", ["chat", "team-*"], 60, None)
    assert made["expires_at"] is not None
    await page.get_by_role("button", name="Set a secret").click()
    await dialog.get_by_label("Name").fill("hf")
    await dialog.get_by_label("Value").fill("never-shown")
    await dialog.get_by_role("button", name="Set secret").click()
    await expect(page.get_by_role("status").filter(has_text="Secret hf is set.")).to_be_visible()
    assert "never-shown" not in await page.content()
    row = page.get_by_role("row", name=re.compile("^hf "))
    await expect(row).to_contain_text("all deployments")
    await expect(row).to_contain_text("encrypted")
    await row.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete secret").click()
    await expect(page.get_by_role("status").filter(has_text="Secret hf is deleted.")).to_be_visible()
    await expect(row).to_have_count(0)


async def test_a_key_is_rotated_and_the_old_one_serves_a_day_more(admin: Seat, cluster_a: Cluster) -> None:
    page = await admin.live("/ui/access")
    await page.get_by_role("button", name="Make a key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("fay")
    await dialog.get_by_role("button", name="Make key").click()
    await dialog.get_by_role("button", name="Done").click()
    row = page.get_by_role("row", name=re.compile("^fay "))
    await expect(row).to_contain_text("never")
    await row.get_by_role("button", name="Rotate").click()
    await dialog.get_by_role("button", name="Rotate").click()
    value = await dialog.get_by_role("code").text_content() or ""
    assert value.startswith("gpw_")
    await dialog.get_by_role("button", name="Done").click()
    await expect(row).to_have_count(2)
    await expect(row.filter(has_text="replaced")).to_have_count(1)
    made = [one for one in (await cluster_a.get("/keys"))["items"] if one["name"] == "fay"]
    assert sorted(one["expires_at"] is None for one in made) == [False, True]


async def test_a_row_of_the_hours_leads_to_its_idle_stretches(admin: Seat, cluster_a: Cluster) -> None:
    await cluster_a.apply("lazy", engine="simulated", resources={"gpus": 1, "gpu_memory": "8GiB"})
    await cluster_a.running("lazy")

    async def reported() -> bool:
        return "lazy" in [one["deployment"] for one in (await cluster_a.get("/reports/idle?since=1d"))["items"]]

    await cluster_a.until(reported, "lazy is in the report", 90)
    page = await admin.live("/ui/hours?since=1d")
    await page.get_by_role("row", name=re.compile("^lazy")).get_by_role("link", name="idle stretches").click()
    uid = (await cluster_a.get("/deployments/lazy"))["uid"]
    await page.wait_for_url(f"**/ui/hours/lazy?uid={uid}&since=1d")
    await expect(page.get_by_text(re.compile(r"In all <?[\d.]+ GPU hours wasted"))).to_be_visible()
    await cluster_a.delete("lazy")
    await cluster_a.gone("lazy")
    await page.reload()
    await expect(page.get_by_text(re.compile(r"In all <?[\d.]+ GPU hours wasted"))).to_be_visible()


async def test_a_chat_comes_as_it_is_written_and_stops(admin: Seat, cluster_a: Cluster) -> None:
    await cluster_a.apply("chat", engine="simulated", resources={"gpus": 1, "gpu_memory": "8GiB"})
    await cluster_a.running("chat")
    page = await admin.live("/ui/playground")
    chat = page.locator("[data-part=chat]")
    await page.get_by_label("Message").fill("hello <script>alert(1)</script>")
    await page.get_by_role("button", name="Send").click()
    await expect(chat.locator(".assistant .turn-text")).not_to_be_empty(timeout=20_000)
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=60_000)
    figures = page.locator("dl.figures")
    await expect(figures).to_contain_text(re.compile(r"Time to first token\s*[\d.]+s"))
    await expect(figures).to_contain_text(re.compile(r"Tokens\s*\d+"))
    await expect(chat.locator(".user .turn-text")).to_have_text("hello <script>alert(1)</script>")
    assert not [one for one in admin.requests if not one.split()[1].startswith(admin.url)]
    await cluster_a.post("/deployments/chat/stop")
    await cluster_a.until(lambda: no_instances(cluster_a), "chat is stopped", 20)
    await page.get_by_label("Message").fill("again")
    began = time.monotonic()
    await page.get_by_role("button", name="Send").click()
    await expect(chat.get_by_role("alert")).to_be_visible(timeout=20_000)
    assert time.monotonic() - began < 20
    await cluster_a.delete("chat")
    await cluster_a.gone("chat")
    admin.complaints.clear()  # the browser tells of the answer 503


async def no_instances(cluster: Cluster) -> bool:
    return not await cluster.instances("chat")
