"""Waiting for whichever comes first, with nothing left running afterwards."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*ways: Coroutine[Any, Any, Any], limit_s: float | None = None) -> None:
    """Runs all, returns when the first has ended or `limit_s` has passed; the others are cancelled and awaited.

    `limit_s` None is for waits of which one has a limit of its own, or which last as long as the process does.

    Raises:
        Exception: what one of those that ended first raised.
    """
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
