"""Waits until the first of several coroutines ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def wait_first(*coroutines: Coroutine[Any, Any, Any], limit_s: float | None = None) -> None:
    """Runs all; returns when the first has ended or `limit_s` has passed. The others are cancelled and awaited.

    `limit_s` may be None if one of the coroutines has a limit of its own, or if the wait lasts as long as a process.

    Raises:
        Exception: what one of those that ended first raised.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
