"""Every page, light and dark, wide and narrow: nothing that axe-core finds, and no sideways scrolling (D6, D39)."""

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, expect

from support.browser.dashboard import Seat, key_of, seat
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
PAGES = [
    "/ui/", "/ui/deployments", "/ui/deployments/chat", "/ui/deployments/gone", "/ui/pending", "/ui/workers",
    "/ui/workers/w1", "/ui/workers/gone", "/ui/gpus/{gpu}", "/ui/gpus/gone",
    "/ui/instances/{instance}", "/ui/events", "/ui/apply", "/ui/hours", "/ui/policies",
    "/ui/hours/chat", "/ui/policies/watch", "/ui/policies/gone", "/ui/access", "/ui/playground",
    "/ui/catalog", "/ui/nowhere",
]  # fmt: skip
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
THEMES = ("light", "dark")
NARROW = {"width": 320, "height": 640}
ZOOMED = {"width": 360, "height": 225}  # 1440 x 900 at 400 %
SETTLE_MS = 200


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(cluster_a: Cluster) -> Cluster:
    """Cluster A with deployments that run, crash and are pending."""
    small = {"gpus": 1, "gpu_memory": "20GiB"}
    await cluster_a.apply("chat", engine="simulated", replicas=2, resources=small)
    await cluster_a.apply("crash", engine="custom", command=["sh", "-c", "echo bad; exit 3"], resources=small)
    await cluster_a.apply("huge", engine="simulated", resources={"gpus": 8, "exclusive": True})
    status, _ = await cluster_a.call(
        "PUT", "/policies/watch", {"min_gpu_utilization": 50, "time_window": 60, "dry_run": True}
    )
    assert status in (200, 201)
    await cluster_a.post("/workers/w3/cordon")
    await cluster_a.running("chat")
    return cluster_a


async def pages_of(cluster: Cluster) -> list[str]:
    gpu = (await cluster.get("/gpus"))["items"][0]["name"]
    instance = (await cluster.instances("chat"))[0]["name"]
    return [page.format(gpu=gpu, instance=instance) for page in PAGES]


async def settled(taken: Seat, path: str) -> Page:
    """The page once it shows what it has read."""
    page = await taken.live(path)
    await page.get_by_role("heading", level=1).first.wait_for(state="attached")
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await page.wait_for_timeout(SETTLE_MS)
    return page


async def check(taken: Seat, path: str) -> list[str]:
    """What axe finds on a page, as `rule: element`."""
    page = await settled(taken, path)
    found = await Axe().run(page, options=RULES)
    return [f"{path} {one['id']}: {node['target']}" for one in found.response["violations"] for node in one["nodes"]]


@pytest.mark.parametrize("theme", THEMES)
async def test_axe_finds_nothing(browser: Browser, filled: Cluster, theme: str) -> None:
    key, _ = await key_of(filled, "admin")
    found: list[str] = []
    async with seat(browser, filled.url, key, color_scheme=theme, bypass_csp=False) as taken:
        for path in await pages_of(filled):
            found += await check(taken, path)
        assert found == []
        assert [one for one in taken.complaints if "404" not in one] == []


async def test_axe_finds_nothing_at_the_login(browser: Browser, filled: Cluster) -> None:
    async with seat(browser, filled.url) as taken:
        page = await taken.open()
        found = await Axe().run(page, options=RULES)
        assert [one["id"] for one in found.response["violations"]] == []


@pytest.mark.parametrize("size", [NARROW, ZOOMED], ids=["320px", "400%"])
async def test_nothing_scrolls_sideways_but_tables_map_and_logs(
    browser: Browser, filled: Cluster, size: dict[str, int]
) -> None:
    key, _ = await key_of(filled, "admin")
    wide: list[str] = []
    async with seat(browser, filled.url, key, viewport=size) as taken:
        for path in await pages_of(filled):
            page = await settled(taken, path)
            if await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide.append(path)
        await page.get_by_role("button", name="Search").click()
        await expect(page.get_by_role("combobox")).to_be_in_viewport()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Pages").click()
        await page.get_by_role("link", name="Workers", exact=True).click()
        await page.wait_for_url("**/ui/workers")
        await expect(page.get_by_role("button", name="Pages")).to_have_attribute("aria-expanded", "false")
    assert wide == []


async def test_axe_finds_nothing_where_the_api_fails(browser: Browser, filled: Cluster) -> None:
    """Each page says what failed; none of them shows 0 for what it could not read."""
    key, _ = await key_of(filled, "admin")
    found: list[str] = []

    async def fail(route: Route) -> None:
        error = {"error": {"code": "internal", "message": "the database did not answer", "details": {}}}
        await route.fulfill(status=500, json=error, headers={"X-Request-ID": "abc123"})

    def is_read(url: str) -> bool:
        return "/api/v1/" in url and not url.endswith(("/me", "/live", "/session"))

    async with seat(browser, filled.url, key, bypass_csp=False) as taken:
        await taken.context.route(is_read, fail)
        for path in await pages_of(filled):
            found += await check(taken, path)
        page = await settled(taken, "/ui/")
        await expect(page.get_by_role("alert")).to_have_count(3)
        for title in ("GPUs held", "GPU memory claimed", "Mean utilization"):
            figure = page.locator(".figure", has_text=title).locator(".figure-value")
            await expect(figure).to_have_text("\N{EN DASH}")
    assert found == []
