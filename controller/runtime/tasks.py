"""Tasks with an owner: ended for good, or one at a time beside it. Nothing is left behind."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Generic, Self, TypeVar

_END_S: Final = 10.0

T = TypeVar("T")


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


class OneBehind(Generic[T]):
    """Work that goes on while its owner prepares the next piece of it: one piece at a time, in order.

    As a context manager it waits for the last piece; if the owner fails, the piece that runs is cancelled.

    Attributes:
        results: of the pieces that are done, in order.
    """

    def __init__(self) -> None:
        self.results: list[T] = []
        self._running: asyncio.Task[T] | None = None

    async def begin(self, piece: Coroutine[Any, Any, T]) -> None:
        """Waits for the piece before, and begins this one.

        Raises:
            Exception: what the piece before raised; this one is not begun then.
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
        """Nothing runs yet."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the last piece, and raises what it raised; or cancels it, where the owner has failed."""
        if kind is None:
            await self._wait()
        elif self._running is not None:
            await end_tasks([self._running], limit_s=_END_S)
            if self._running.done() and not self._running.cancelled():
                self._running.exception()  # what the owner raised goes before
