"""Threads for passes in memory, such as plans: few, so that they hold up neither the loop nor one another's neighbours.

The threads that all else shares stay free: `GET /attention` does not wait for plans. Viewers have a thread of their
own: a pass that its asker has left goes on, and would hold up the plans of operators.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from aiohttp import web

from controller.api.errors import unavailable

AT_ONCE: Final = 2  # more would only share the interpreter
OF_VIEWERS_AT_ONCE: Final = 1
MOST_WAITING: Final = 32
P = ParamSpec("P")
T = TypeVar("T")


class Passes:
    """Runs passes, `at_once` of them at a time."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="dry-run")
        self._most_asked = at_once + MOST_WAITING
        self._asked = 0

    async def run(self, one_pass: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What one pass returns. The request's deadline ends the wait; a pass that runs already goes on to its end.

        Raises:
            ApiError: 503, too many wait.
        """
        if self._asked >= self._most_asked:
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
PASSES_OF_VIEWERS: Final = web.AppKey("PASSES_OF_VIEWERS", Passes)


async def passes_context(app: web.Application) -> AsyncIterator[None]:
    """Holds the threads, and ends them with the app."""
    passes, of_viewers = app[PASSES], app[PASSES_OF_VIEWERS] = Passes(), Passes(OF_VIEWERS_AT_ONCE)
    try:
        yield
    finally:
        passes.close()
        of_viewers.close()
