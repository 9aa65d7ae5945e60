"""Getting in: login, roles, the end of a session, and what strangers' pages may not (D1 to D8)."""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from support.browser.dashboard import Seat, cookie_of, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
REFUSED = "This key is not known here."


async def log_in(taken: Seat, key: str) -> None:
    await taken.page.get_by_label("API key").fill(key)
    await taken.page.get_by_role("button", name="Log in").click()


async def test_a_browser_without_session_is_led_to_the_login(stranger: Seat) -> None:
    await stranger.page.goto(stranger.url + "/")
    await expect(stranger.page.get_by_label("API key")).to_be_focused()
    assert stranger.page.url.endswith("/ui/")
    assert all(request.split()[1].startswith(stranger.url) for request in stranger.requests)


async def test_the_key_is_kept_nowhere(stranger: Seat, cluster_a: Cluster) -> None:
    key, _ = await key_of(cluster_a, "admin", "key-nowhere")
    page = await stranger.open()
    await log_in(stranger, key)
    await page.get_by_text("key-nowhere (admin)").wait_for()
    cookie = await cookie_of(stranger)
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"], cookie["secure"]) == (True, "Strict", "/", False)
    later = len(stranger.requests)
    await page.reload()
    await page.get_by_text("key-nowhere (admin)").wait_for()
    kept = await page.evaluate("[...Object.values(localStorage), ...Object.values(sessionStorage), document.cookie]")
    assert key not in str(kept) + await page.content() + page.url + str(stranger.requests[later:])


async def test_a_revoked_key_leaves_nothing_of_the_cluster(browser: Browser, cluster_a: Cluster) -> None:
    key, key_id = await key_of(cluster_a, "operator", "leaver")
    async with seat(browser, cluster_a.url, key) as taken:
        page = await taken.live()
        await page.get_by_text("w1").first.wait_for()
        status, _ = await cluster_a.call("DELETE", f"/keys/{key_id}")
        assert status == 200
        await page.get_by_label("API key").wait_for(timeout=5000)
        # The names of built files are not the cluster's: one may end in w2.
        text = await page.locator("body").inner_html() + await page.title() + page.url
        assert not re.search(r"\bw[123]\b|leaver", text), text


async def test_another_origin_changes_nothing(admin: Seat, tmp_path: Path) -> None:
    other = await admin.context.new_page()
    (tmp_path / "evil.html").write_text("<title>evil</title>")
    await other.goto(f"file://{tmp_path}/evil.html")
    tried = await other.evaluate(
        """async url => {
            const post = await fetch(url + "/api/v1/deployments/chat/stop", {method: "POST", mode: "no-cors",
                credentials: "include"}).then(a => a.type, e => "failed");
            const socket = await new Promise(done => {
                const one = new WebSocket(url.replace("http", "ws") + "/api/v1/live");
                one.onopen = () => done("open"); one.onerror = () => done("refused");
            });
            return [post, socket];
        }""",
        admin.url,
    )
    assert tried[1] == "refused"
    await other.close()


async def test_strict_headers_and_no_violation(admin: Seat) -> None:
    answer = await admin.page.goto(admin.url + "/ui/")
    assert answer is not None
    policy = await answer.header_value("content-security-policy") or ""
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    await admin.live()


@pytest.mark.parametrize(
    ("role", "absent"),
    [("viewer", ["Playground", "Apply", "Access"]), ("operator", ["Access"]), ("admin", [])],
)
async def test_what_a_role_may_not_do_is_absent(
    browser: Browser, cluster_a: Cluster, role: str, absent: list[str]
) -> None:
    key, _ = await key_of(cluster_a, role)
    async with seat(browser, cluster_a.url, key) as taken:
        page = await taken.live()
        links = await page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
        assert not set(absent) & set(links)
        assert {"Playground", "Apply", "Access"} - set(absent) <= set(links)
        assert taken.complaints == []


async def test_a_key_for_models_gets_no_session(stranger: Seat, cluster_a: Cluster) -> None:
    key, _ = await key_of(cluster_a, "inference")
    page = await stranger.open()
    await log_in(stranger, key)
    await expect(page.get_by_role("alert")).to_have_text("This key may only send requests to models.")


# The last one: from then on this address may not log in.
async def test_wrong_keys_then_too_many(browser: Browser, cluster_a: Cluster) -> None:
    async with seat(browser, cluster_a.url) as taken:
        page = await taken.open()
        for _ in range(10):
            await log_in(taken, "gpw_wrong")
            await expect(page.get_by_role("alert")).to_have_text(REFUSED)
            await expect(page.get_by_label("API key")).to_be_focused()
            await expect(page.get_by_role("button", name="Log in")).to_be_enabled()
        await log_in(taken, "gpw_wrong")
        await expect(page.get_by_role("alert")).to_have_text(re.compile(r"Try again in \d+ seconds?\."))
        assert await cookie_of(taken) == {}
        await expect(page.get_by_role("button", name="Log in")).to_be_disabled()
