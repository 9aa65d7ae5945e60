"""Ending tasks for good: cancelled, awaited, and nothing left behind. Starts none."""

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, limit_s: float) -> bool:
    """Cancel `tasks` and wait until they have ended, at most `limit_s` seconds.

    A cancel of the caller does not cut this short, because a task left behind would go on with work that the caller has
    given up; it is raised when the tasks are gone or the limit has passed.

    Returns:
        Whether all have ended.

    Raises:
        asyncio.CancelledError: the caller was cancelled meanwhile.
    """
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limit_s
    cancelled: asyncio.CancelledError | None = None
    while left and loop.time() < give_up:
        try:
            _, left = await asyncio.wait(left, timeout=give_up - loop.time())
        except asyncio.CancelledError as error:
            cancelled = error
            left = {task for task in left if not task.done()}
    if cancelled is not None:
        raise cancelled
    return not left
