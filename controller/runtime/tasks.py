"""Tasks with an owner: cancelled and awaited, or run one at a time beside it. None outlives its owner."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Generic, Self, TypeVar

_END_S: Final = 10.0
T = TypeVar("T")
_SLICE_S: Final = 0.005


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], *, limit_s: float) -> bool:
    """Cancel `tasks` and wait until they have ended, at most `limit_s` seconds.

    A cancel of the caller does not cut this short, because a task left running would continue work that the caller has
    given up. It is raised once the tasks have ended or the limit has passed.

    Returns:
        Whether all have ended.

    Raises:
        asyncio.CancelledError: the caller was cancelled in the meantime.
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
    """At most one piece of work in flight while its owner prepares the next one; pieces run in order.

    As a context manager it waits for the last piece. If the owner fails, the running piece is cancelled.

    Attributes:
        results: of the finished pieces, in order.
    """

    def __init__(self) -> None:
        self.results: list[T] = []
        self._running: asyncio.Task[T] | None = None

    async def start(self, piece: Coroutine[Any, Any, T]) -> None:
        """Waits for the previous piece, then starts this one.

        Raises:
            Exception: what the previous piece raised; this one is not started then.
        """
        try:
            await self._wait()
        except BaseException:
            piece.close()
            raise
        self._running = asyncio.create_task(piece)

    async def _wait(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        try:
            self.results.append(await running)
        finally:
            await end_tasks([running], limit_s=_END_S)

    async def __aenter__(self) -> Self:
        """No piece runs yet."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the last piece and raises what it raised; cancels it if the owner has failed."""
        if kind is None:
            await self._wait()
        elif self._running is not None:
            await end_tasks([self._running], limit_s=_END_S)
            if self._running.done() and not self._running.cancelled():
                self._running.exception()  # the owner's exception takes precedence


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T], *, limit_s: float) -> T | None:
    """What `work` returns; None if `stop` is set first. Then the work is cancelled and may take `limit_s` to end.

    Raises:
        Exception: what the work raised.
    """
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return None if stop.is_set() and not working.done() else await working
    finally:
        await end_tasks([working, stopped], limit_s=limit_s)


class TimeSlice:
    """Lets one long computation hold the event loop for a few milliseconds at a time.

    Measured by the machine's clock: the loop's own clock stops while the loop is held.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def yield_if_over(self) -> None:
        """Yields to the event loop if the slice is used up."""
        if time.monotonic() - self._since >= _SLICE_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()
