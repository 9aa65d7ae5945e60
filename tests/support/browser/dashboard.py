"""The dashboard in a real Chromium: pages that are logged in, and what the browser complains of."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.async_api import Browser, BrowserContext, Page, async_playwright

from controller.live.key_ring import SESSION_COOKIES
from support.processes.cluster import Cluster

SIZE: Final = {"width": 1440, "height": 900}
LIMIT_MS: Final = 10_000.0
_QUIET: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@dataclass
class Seat:
    """A browser of one user: its page, what the browser complained of, and the requests that it sent.

    Attributes:
        complaints: errors and violations of the Content-Security-Policy on the console, and uncaught errors.
        requests: method and URL of each.
    """

    page: Page
    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def open(self, path: str = "/ui/") -> Page:
        """Opens a page of the dashboard and waits until it is live, or the login is shown."""
        await self.page.goto(self.url + path)
        await self.page.locator("[data-part=live], #key").first.wait_for()
        return self.page

    async def live(self, path: str = "/ui/") -> Page:
        """Opens a page and waits until the connection is live."""
        await self.open(path)
        await self.page.locator("[data-part=live]", has_text="live").wait_for()
        return self.page


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A headless browser: Debian's, or the one that `CHROMIUM` names."""
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=list(_QUIET)
        )
        yield found
        await found.close()


@asynccontextmanager
async def seat(browser: Browser, url: str, key: str = "", **options: Any) -> AsyncIterator[Seat]:
    """A fresh browser profile; with a key it is logged in. `options` are those of Playwright's contexts.

    Where `BROWSER_SLOWED` is set, pages run so many times slower: a test that does not wait for what it reads fails.
    """
    context = await browser.new_context(**{"viewport": SIZE, **options})
    context.set_default_timeout(LIMIT_MS)
    page = await context.new_page()
    taken = Seat(page, context, url)
    if slowed := os.environ.get("BROWSER_SLOWED"):
        session = await context.new_cdp_session(page)
        await session.send("Emulation.setCPUThrottlingRate", {"rate": float(slowed)})
    page.on("console", lambda said: taken.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: taken.complaints.append(str(error)))
    context.on("request", lambda request: taken.requests.append(f"{request.method} {request.url}"))
    if key:
        answer = await context.request.post(f"{url}/api/v1/session", data={"key": key})
        assert answer.ok, await answer.text()
    yield taken
    await context.close()


async def key_of(cluster: Cluster, role: str, name: str = "") -> tuple[str, str]:
    """A new key of this role, and its id."""
    made = await cluster.post("/keys", {"role": role, "name": name or role})
    return made["key"], made["id"]


async def cookie_of(seat: Seat) -> dict[str, Any]:
    """The session's cookie as the browser keeps it; empty without one."""
    found = [dict(cookie) for cookie in await seat.context.cookies() if cookie.get("name") in SESSION_COOKIES]
    return found[0] if found else {}
