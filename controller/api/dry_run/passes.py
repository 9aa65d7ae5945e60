"""Threads for passes in memory, such as plans: few, so that they hold up neither the loop nor one another's neighbours.

The threads that all else shares stay free: `GET /attention` does not wait for plans.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from controller.api.errors import unavailable

AT_ONCE: Final = 2  # more would only share the interpreter
MOST_WAITING: Final = 32
P = ParamSpec("P")
T = TypeVar("T")


class Passes:
    """Runs passes, `AT_ONCE` of them at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="dry-run")
        self._asked = 0

    async def run(self, one_pass: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What one pass returns. The request's deadline ends the wait; a pass that runs already goes on to its end.

        Raises:
            ApiError: 503, too many wait.
        """
        if self._asked >= AT_ONCE + MOST_WAITING:
            raise unavailable("overloaded", "too many plans are being computed; try again in a moment")
        self._asked += 1
        try:
            asked = self._threads.submit(one_pass, *args, **named)
            return await asyncio.wrap_future(asked)
        finally:
            self._asked -= 1

    def close(self) -> None:
        """Ends the threads, each with its pass."""
        self._threads.shutdown(wait=False, cancel_futures=True)


PASSES: Final = web.AppKey("PASSES", Passes)


async def passes_context(app: web.Application) -> AsyncIterator[None]:
    """Holds the threads, and ends them with the app."""
    passes = app[PASSES] = Passes()
    try:
        yield
    finally:
        passes.close()
