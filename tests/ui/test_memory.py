"""A dashboard that stays open: its memory does not grow with what has changed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, CDPSession, Page

from controller.store.core.database import Database
from support.browser.dashboard import seat
from support.database.ledger import add_host
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.served_api import ServedApi, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKERS, GPUS = 200, 2
FIRST, ALL = 2000, 10_000  # changes of objects
MOST_GROWTH = 2 << 20  # bytes
POLL_S, POLLS = 0.02, 1000
# Counts the changes that the page takes, before the page sees them, and holds none of them.
COUNTS = """
    window.changes = 0;
    const Real = WebSocket;
    window.WebSocket = class extends Real {
        constructor(...given) {
            super(...given);
            this.addEventListener("message", ({data}) => (window.changes += /"type": ?"changed"/.test(data) ? 1 : 0));
        }
    };
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def followed(postgres: PostgresServer) -> AsyncIterator[tuple[Database, ServedApi]]:
    """The API on a database with workers that change."""
    async with migrated_database(postgres, migrated_template(postgres)) as database:
        for n in range(WORKERS):
            await add_host(database, f"w{n:03}", gpus=GPUS, gib=80)
        async with served(database) as api:
            yield database, api


async def change(database: Database, api: ServedApi) -> None:
    """Changes every worker, in one transaction."""
    async with database.transaction() as connection:
        changed = await connection.fetch("update workers set cordoned = not cordoned returning id")
    for row in changed:
        api.changes.publish("worker", str(row["id"]))


async def told(page: Page) -> int:
    """How many changes have come to the page."""
    return int(await page.evaluate("window.changes"))


async def come(page: Page, wanted: int) -> None:
    """Waits until so many changes have come. Polled: see the CSP."""
    for _ in range(POLLS):
        if await told(page) >= wanted:
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"{await told(page)} of {wanted} changes have come")


async def heap(page: Page, cdp: CDPSession) -> int:
    """Bytes in use after a collection, once what is due has been drawn."""
    await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    for _ in range(2):
        await cdp.send("HeapProfiler.collectGarbage")
    return int((await cdp.send("Runtime.getHeapUsage"))["usedSize"])


async def test_the_heap_is_flat_over_ten_thousand_changes(
    browser: Browser, followed: tuple[Database, ServedApi]
) -> None:
    database, api = followed
    async with seat(browser, api.url, api.keys["admin"]) as taken:
        await taken.context.add_init_script(COUNTS)
        page = await taken.live()
        await page.locator("[data-part=map]").wait_for()
        cdp = await taken.context.new_cdp_session(page)
        sizes: list[int] = []
        for wanted in (FIRST, ALL):
            while (seen := await told(page)) < wanted:
                await change(database, api)
                await come(page, seen + WORKERS)
            sizes.append(await heap(page, cdp))
        assert taken.complaints == []
    early, late = sizes
    assert late - early <= MOST_GROWTH, f"{early} bytes after {FIRST} changes, {late} after {ALL}"
