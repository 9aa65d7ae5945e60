"""Tasks that never outlive their owner: it cancels and awaits them, or runs one at a time in parallel."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Generic, Self, TypeVar

_END_S: Final = 10.0
T = TypeVar("T")
_SLICE_S: Final = 0.005


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, limit_s: float) -> bool:
    """Cancels `tasks` and waits at most `limit_s` seconds for their end; returns whether all have ended.

    Raises:
        asyncio.CancelledError: the caller was cancelled. It is raised once the tasks have ended or the limit has
            passed, because a task left running would continue work that the caller has given up.
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


class OneInFlight(Generic[T]):
    """Runs work in order, at most one coroutine at a time, while its owner prepares the next one.

    As a context manager it waits for the last coroutine. If the owner fails, the running one is cancelled.
    """

    def __init__(self) -> None:
        self.results: list[T] = []  # in order
        self._running: asyncio.Task[T] | None = None

    async def start(self, work: Coroutine[Any, Any, T]) -> None:
        """Waits for the previous coroutine, then starts `work`; raises the previous error in place of starting it."""
        try:
            await self._wait()
        except BaseException:
            work.close()
            raise
        self._running = asyncio.create_task(work)

    async def _wait(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            self.results.append(await running)
        finally:
            await end_tasks([running], limit_s=_END_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._wait()
        elif self._running is not None:
            await end_tasks([self._running], limit_s=_END_S)
            if self._running.done() and not self._running.cancelled():
                self._running.exception()  # the owner's exception takes precedence


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T], *, limit_s: float) -> T | None:
    """Returns the result of `work`; None if `stop` is set first. Then `work` is cancelled and has `limit_s` to end."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return None if stop.is_set() and not working.done() else await working
    finally:
        await end_tasks([working, stopped], limit_s=limit_s)


class TimeSlice:
    """Lets a long computation hold the event loop for a few milliseconds at a time."""

    def __init__(self) -> None:
        self._since = time.monotonic()  # not the loop's clock, which stops while the loop is held

    async def yield_if_over(self) -> None:
        if time.monotonic() - self._since >= _SLICE_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()
