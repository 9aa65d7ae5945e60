"""The map of 1,000 workers with 8 GPUs each: quick to come, quick to draw, few elements (D15)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from controller.store.core.database import Database
from support.browser.dashboard import seat
from support.database.ledger import add_host
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer
from support.leading.served_api import ServedApi, served

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORKERS, GPUS = 1000, 8
# The case says 1.5 s and 16 ms on a machine of one's own. Here two cores run the database, the API and the browser.
SHOWN_WITHIN_MS, DRAWN_WITHIN_MS = 6000.0, 32.0
MOST_NODES = 3000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large(postgres: PostgresServer) -> AsyncIterator[ServedApi]:
    """The API on a database with all these workers."""
    async with migrated_database(postgres, migrated_template(postgres)) as database:
        await fill(database)
        async with served(database) as api:
            yield api


async def fill(database: Database) -> None:
    for n in range(WORKERS):
        await add_host(database, f"w{n:04}", gpus=GPUS, gib=80)


async def drawings(page: Page, more_than: int = 0) -> list[dict[str, Any]]:
    """All drawings of the map, once there are more than so many. Polled: see the CSP.

    Each says when it was done, how long it took, how many cells it had, and whether the layout was a new one.
    """
    async with asyncio.timeout(30):
        while True:
            found: list[dict[str, Any]] = await page.evaluate(
                "performance.getEntriesByName('map-draw').map(one =>"
                " ({done: one.startTime + one.duration, took: one.duration,"
                " cells: one.detail.cells, isLaidOut: one.detail.isLaidOut}))"
            )
            if len(found) > more_than:
                return found
            await asyncio.sleep(0.05)


async def test_forced_colours_leave_the_legend_its_patterns(browser: Browser, large: ServedApi) -> None:
    async with seat(browser, large.url, large.keys["viewer"], forced_colors="active") as taken:
        page = await taken.live()
        swatches = page.get_by_role("list", name="Legend").locator(".swatch")
        await expect(swatches).to_have_count(3)
        looks = await swatches.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundImage)")
        assert len(set(looks)) == len(looks)
        assert "none" not in looks


async def test_the_map_comes_and_is_drawn_quickly(browser: Browser, large: ServedApi) -> None:
    shown: list[float] = []
    drawn: list[dict[str, Any]] = []
    async with seat(browser, large.url, large.keys["admin"]) as taken:
        for _ in range(3):
            page = await taken.live()
            drawn += (now := await drawings(page))
            shown.append(now[0]["done"])
        full = [one["took"] for one in drawn if one["cells"] == WORKERS * GPUS]
        assert min(full) <= DRAWN_WITHIN_MS, drawn
        assert min(shown) <= SHOWN_WITHIN_MS, shown
        assert await page.evaluate("document.querySelectorAll('*').length") <= MOST_NODES
        print(f"shown after {sorted(shown)} ms, full draw {sorted(full)} ms")  # noqa: T201 - figures for the reader


async def test_a_live_change_draws_its_cells_alone(browser: Browser, large: ServedApi) -> None:
    """Pointing draws nothing, a cordon its worker's cells, another theme all. The layout stays through all of it."""
    async with seat(browser, large.url, large.keys["admin"]) as taken:
        page = await taken.live()
        first = await settled(page)
        await page.route("**/api/v1/map", lambda _: None)  # no answer: another read of the map is not what draws here
        box = await page.locator(".pixels canvas").bounding_box()
        assert box is not None
        for step in range(1, 9):
            await page.mouse.move(box["x"] + 2, box["y"] + step * box["height"] / 10)
        assert await settled(page) == first

        status, answer = await large.call("POST", "/api/v1/workers/w0007/cordon")
        assert status == 200, answer
        large.changes.publish("worker", answer["uid"])
        cordoned = await settled(page, len(first))
        assert [(one["cells"], one["isLaidOut"]) for one in cordoned[len(first) :]] == [(GPUS, False)]

        await page.emulate_media(color_scheme="dark")
        dark = await settled(page, len(cordoned))
        assert [(one["cells"], one["isLaidOut"]) for one in dark[len(cordoned) :]] == [(WORKERS * GPUS, False)]


async def settled(page: Page, more_than: int = 0) -> list[dict[str, Any]]:
    """All drawings, once there are more than so many and none has come for a second."""
    found = await drawings(page, more_than)
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(1)
            before, found = found, await drawings(page)
            if before == found:
                return found
