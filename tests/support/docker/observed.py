"""What is seen of engines in containers: answers of the agent's proxy, and logs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from support.standins.controller import SECRET, WAIT_S, ControllerDouble


async def said(controller: ControllerDouble, path: str) -> str:
    """What the agent's proxy answers."""
    url = f"http://127.0.0.1:{controller.hellos[-1].proxy_port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Authorization": f"Bearer {SECRET}"}) as got,
    ):
        return await got.text()


def logged(folder: Path, instance: str = "i-1", rank: int = 0) -> list[str]:
    """The lines of the log of the first start."""
    log = folder / f"data/instances/{instance}/logs/1-{rank}.log"
    return log.read_text().splitlines() if log.exists() else []


async def until_logged(folder: Path, words: str, instance: str = "i-1", rank: int = 0) -> None:
    """Waits until the log of the first start has these words."""
    async with asyncio.timeout(WAIT_S):
        while not any(words in line for line in logged(folder, instance, rank)):  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.05)


async def until(condition: Callable[[], Awaitable[bool]], limit_s: float = 40.0) -> None:
    """Waits until something outside of the test is so."""
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.1)
