"""Pictures of every page with data, empty and failed, in each width and theme, for people to look at.

    PYTHONPATH=tests:$(echo .venv-ui/lib/python3*/site-packages) .venv/bin/python tests/ui/screenshots.py build/pictures

`--pages NAME ...`, `--widths`, `--themes` and `--states` take fewer. Each picture shows the whole page, or with
`--height` the part that a window of that height shows.
`make screenshot` makes the README's picture.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, Page, Route

from support.browser.dashboard import Seat, chromium, key_of, seat
from support.database.postgres import reachable_folder
from support.processes.cluster import Cluster

PAGES: Final = {
    "cluster": "/ui/", "deployments": "/ui/deployments", "deployment": "/ui/deployments/chat",
    "crash": "/ui/deployments/crash", "instance": "/ui/instances/{instance}", "pending": "/ui/pending",
    "waits": "/ui/instances/{waits}", "workers": "/ui/workers", "worker": "/ui/workers/w1", "gpu": "/ui/gpus/{gpu}",
    "catalog": "/ui/catalog", "hours": "/ui/hours?since=1d", "stretches": "/ui/hours/chat?since=1d",
    "policies": "/ui/policies", "policy": "/ui/policies/watch", "events": "/ui/events", "apply": "/ui/apply",
    "playground": "/ui/playground?model=chat", "access": "/ui/access", "nowhere": "/ui/nowhere",
}  # fmt: skip
WIDTHS: Final = (1440, 1024, 390)
THEMES: Final = ("light", "dark")
STATES: Final = ("data", "empty", "failed")
SMALL: Final = {"gpus": 1, "gpu_memory": "20GiB"}
MANIFEST: Final = (
    "kind: Deployment\nname: chat\nmodel: hf:Qwen/Qwen3-0.6B\nengine: simulated\npriority: 200\nreplicas: 3\n"
    "resources:\n  gpus: 1\n  gpu_memory: 24GiB\n"
)
TALK: Final = (
    r"printf '\033[32mINFO\033[0m     loaded in 3.2 s\n\033[33mWARNING\033[0m  no compiled kernels for this GPU\n';"
    " i=0; while true; do i=$((i+1)); echo request $i took $((i % 90)) ms; sleep 0.5; done"
)
SETTLES_MS: Final = 900


async def fill(cluster: Cluster) -> None:
    """Deployments that run, crash, stop and are pending; workers that are lost, cordoned and healthy."""
    for name, gpus, zone in (("w1", 4, "a"), ("w2", 4, "a"), ("w3", 8, "b"), ("w4", 2, "b")):
        await cluster.start_agent(name, gpus=gpus, memory="80GiB", host={"labels": {"zone": zone}})
    rule = {"min_gpu_utilization": 90, "time_window": "30s", "dry_run": True, "ignore_requests": True}
    await cluster.call("PUT", "/policies/watch", rule)
    await cluster.apply(
        "chat", model="hf:Qwen/Qwen3-0.6B", replicas=2, resources=SMALL, labels={"team": "search"},
        utilization_policy="watch", placement={"workers": ["w1", "w2"]},
    )  # fmt: skip
    talk = ["sh", "-c", TALK]
    await cluster.apply("talk", engine="custom", command=talk, replicas=2, resources={"gpus": 1, "gpu_memory": "8GiB"})
    await cluster.apply("whole", replicas=1, resources={"gpus": 4, "exclusive": True}, placement={"workers": ["w3"]})
    await cluster.apply("on-w4", replicas=1, resources=SMALL, placement={"workers": ["w4"]})
    await cluster.apply("stopped", replicas=1, resources=SMALL)
    for name in ("chat", "talk", "whole", "on-w4", "stopped"):
        await cluster.running(name)
    await cluster.post("/deployments/stopped/stop")
    crash = ["sh", "-c", "echo RuntimeError: CUDA out of memory; exit 3"]
    await cluster.apply("crash", engine="custom", command=crash, resources=SMALL, placement={"workers": ["w1"]})
    await cluster.apply("big", replicas=3, priority=200, resources={"gpus": 4, "exclusive": True})
    await cluster.apply("huge", replicas=1, resources={"gpus": 1, "gpu_memory": "200GiB"})
    await cluster.post("/workers/w2/cordon")
    cluster.kill("w4")
    await cluster.post("/keys", {"role": "inference", "name": "team-search", "models": ["chat"], "rpm": 60})
    await cluster.until(lambda: cluster.phase_is("crash", "degraded"), "crash crashes", 60)


async def prepare(page: Page, name: str, state: str) -> None:
    """What a reader does on a page before there is all to see."""
    if name == "apply":
        await page.get_by_role("textbox", name="Manifest").fill(MANIFEST)
        await page.wait_for_timeout(2 * SETTLES_MS)
    if state != "data":
        return
    show = page.get_by_role("button", name="Show utilization")
    if name in ("deployment", "instance") and await show.count():
        await show.click()
    if name == "playground":
        await page.get_by_label("Message").fill("Say something. [simulate tokens=60]")
        await page.get_by_role("button", name="Send").click()
        await page.wait_for_timeout(2 * SETTLES_MS)


async def fails(route: Route) -> None:
    error = {"error": {"code": "internal", "message": "the database did not answer within 5 s", "details": {}}}
    await route.fulfill(status=500, json=error, headers={"X-Request-ID": "5f0c9a3e"})


def asks(url: str) -> bool:
    """Whether a page asks for what it shows: all but who it is and the live connection."""
    return "/api/v1/" in url and not url.endswith(("/me", "/live", "/session"))


async def picture(taken: Seat, path: str, name: str, state: str, file: Path, *, full_page: bool) -> None:
    page = await taken.open(path)
    await page.wait_for_timeout(SETTLES_MS)
    await prepare(page, name, state)
    await page.wait_for_timeout(SETTLES_MS)
    await page.screenshot(path=file, full_page=full_page)


async def pictures(browser: Browser, cluster: Cluster, state: str, chosen: argparse.Namespace) -> None:
    names = await objects(cluster) if state != "empty" else {"instance": "chat-1", "waits": "big-1", "gpu": "GPU-1"}
    key, _ = await key_of(cluster, "admin", "ann")
    for theme in chosen.themes:
        for width in chosen.widths:
            size = {"width": width, "height": chosen.height or 900}
            async with seat(browser, cluster.url, key, viewport=size, color_scheme=theme) as taken:
                if state == "failed":
                    await taken.context.route(asks, fails)
                for name in chosen.pages:
                    file = chosen.folder / f"{name}-{state}-{width}-{theme}.png"
                    await picture(taken, PAGES[name].format(**names), name, state, file, full_page=not chosen.height)


async def objects(cluster: Cluster) -> dict[str, str]:
    """The names of an instance that runs, of one that is pending, and of a GPU."""
    gpus = (await cluster.get("/gpus"))["items"]
    return {
        "instance": (await cluster.instances("talk"))[0]["name"],
        "waits": next(one["name"] for one in await cluster.instances("big") if one["status"]["phase"] == "pending"),
        "gpu": next(one["name"] for one in gpus if one["status"]["claims"]),
    }


async def main(chosen: argparse.Namespace) -> None:
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with reachable_folder() as folder:
        cluster = Cluster(folder)
        cluster.use_rig()
        try:
            await cluster.start_controller()
            async with chromium() as browser:
                if "empty" in chosen.states:
                    await pictures(browser, cluster, "empty", chosen)
                if filled := [state for state in chosen.states if state != "empty"]:
                    await fill(cluster)
                    for state in filled:
                        await pictures(browser, cluster, state, chosen)
        finally:
            await cluster.aclose()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of the dashboard's pages.")
    parser.add_argument("folder", type=Path, help="folder for the pictures")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=list(PAGES))
    some: dict[str, Any] = {"nargs": "+"}
    parser.add_argument("--widths", type=int, default=WIDTHS, **some)
    parser.add_argument("--height", type=int, help="of the window, in pixels; the picture ends there")
    parser.add_argument("--themes", choices=THEMES, default=THEMES, **some)
    parser.add_argument("--states", choices=STATES, default=STATES, **some)
    return parser.parse_args(argv)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
