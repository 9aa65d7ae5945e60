"""Polling, for conditions without an event, such as the state of other processes."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 20.0) -> None:
    """Returns as soon as the condition holds.

    Raises:
        TimeoutError: it did not within the given seconds.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - see the module
            await asyncio.sleep(0.002)
