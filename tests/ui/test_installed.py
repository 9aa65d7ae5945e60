"""The dashboard of an installed wheel: no Node, no other server, little to fetch, all of it cached (D1).

The wheel is built from the committed files and installed in a new environment. Its dependencies come from the
environment of the tests: nothing is fetched.
"""

import asyncio
import os
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Request

from support.browser.dashboard import seat
from support.database.postgres import quick_folder
from support.processes.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).parents[2]
MOST_BYTES = 150 * 1024
NO_CONFIG = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
PAGES = (
    "/ui/", "/ui/deployments", "/ui/deployments/chat", "/ui/instances/{instance}", "/ui/pending", "/ui/workers",
    "/ui/workers/w1", "/ui/gpus/{gpu}", "/ui/catalog", "/ui/hours", "/ui/hours/chat", "/ui/policies",
    "/ui/policies/watch", "/ui/events", "/ui/playground", "/ui/apply", "/ui/access",
)  # fmt: skip


def run(*argv: str, cwd: Path, env: Mapping[str, str] = os.environ) -> str:
    env = {**env, **NO_CONFIG}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(folder: Path) -> Path:
    """The environment's folder of packages, with a wheel of what is committed."""
    sources, home = folder / "sources", folder / "env"
    run("git", "clone", "--quiet", "--no-hardlinks", "--depth", "1", f"file://{ROOT}", str(sources), cwd=folder)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=sources)
    (wheel,) = folder.glob("*.whl")
    venv.create(home)
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install", "--quiet", "--no-deps")
    run(*pip, str(wheel), cwd=folder)
    (site,) = (home / "lib").glob("python3*/site-packages")
    return site


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wheel(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Cluster, Path]]:
    """A cluster of the installed package, with one deployment, and where the package lies."""
    site = await asyncio.to_thread(installed, tmp_path_factory.mktemp("wheel"))
    with quick_folder() as folder:
        cluster = Cluster(folder)
        cluster.run_code(source=site)
        try:
            no_node = {"PATH": str(site.parents[2] / "bin")}
            await cluster.start_controller(**no_node)
            await cluster.start_agent("w1", gpus=2, memory="80GiB", **no_node)
            await cluster.apply("chat", resources={"gpus": 1, "gpu_memory": "20GiB"})
            await cluster.running("chat")
            rule = {"min_gpu_utilization": 10, "time_window": "30m", "dry_run": True}
            await cluster.call("PUT", "/policies/watch", rule)
            yield cluster, site
        finally:
            await cluster.aclose()


async def test_a_walk_through_every_page_of_an_installed_wheel(browser: Browser, wheel: tuple[Cluster, Path]) -> None:
    cluster, site = wheel
    code = "import controller.api.dashboard as found; print(found.__file__)"
    env = {**os.environ, "PYTHONPATH": str(site)}
    where = await asyncio.to_thread(run, sys.executable, "-P", "-c", code, cwd=site, env=env)
    assert where.startswith(str(site))
    key = (await cluster.post("/keys", {"role": "admin", "name": "ann"}))["key"]
    names = {
        "instance": (await cluster.instances("chat"))[0]["name"],
        "gpu": (await cluster.get("/gpus"))["items"][0]["name"],
    }
    asked: list[Request] = []
    sockets: list[str] = []
    async with seat(browser, cluster.url, key) as taken:
        page = taken.page
        taken.context.on("request", lambda request: asked.append(request))  # noqa: PLW0108 - Playwright marks what it calls
        page.on("websocket", lambda socket: sockets.append(socket.url))
        await page.goto(cluster.url + "/")
        await page.wait_for_url("**/ui/")
        for path in PAGES:
            await taken.live(path.format(**names))
            await page.locator("main h1").first.wait_for(state="attached")
        assert taken.complaints == []
    assert {"/".join(one.url.split("/")[:3]) for one in asked} == {cluster.url}
    assert {"/".join(one.split("/")[:3]) for one in sockets} == {cluster.url.replace("http", "ws", 1)}
    folder = site / "controller/dashboard/files"
    files = {f"{cluster.url}/ui/{one.relative_to(folder)}" for one in folder.rglob("*") if one.is_file()}
    assert {one.url for one in asked if "/ui/assets/" in one.url} <= files
    assert sum([await compressed(url) for url in sorted(files)]) <= MOST_BYTES


async def compressed(url: str) -> int:
    """Bytes of the answer to a browser, which is compressed and has an ETag."""
    async with (
        aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "gzip, deflate, br"}) as client,
        client.get(url) as answer,
    ):
        body = await answer.read()
        assert answer.status == 200, url
        assert answer.headers.get("ETag"), url
        assert answer.headers.get("Content-Encoding") == "gzip", url
        return len(body)
