"""One run at a time of what many ask for at once: those that ask while one runs share the next one."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs something for all that ask.

    Each gets a run that began after it asked, so that it sees what it wrote before. At most one runs and one waits,
    however many ask. A run goes on when those that asked are gone: its thread could not be ended, and the next run
    would stand beside it.

    Args:
        make: one run. It must not leave a thread behind: a time limit belongs around its reads alone.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The outcome of a run that began after the call; raises what it raises. The caller limits the wait."""
        if self._next is None:
            # In a context of its own: it is not the first caller's alone.
            self._next = asyncio.create_task(self._run_after(self._running), name="single-flight", context=Context())
            self._next.add_done_callback(_note_failure)
        return await asyncio.shield(self._next)

    async def _run_after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait({before})
        self._running, self._next = self._next, None
        return await self._make()

    async def close(self) -> None:
        """Ends what runs."""
        if tasks := {task for task in (self._running, self._next) if task is not None and not task.done()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)


def _note_failure(task: asyncio.Task[T]) -> None:
    """Takes a failure that no caller waits for any longer."""
    if not task.cancelled():
        task.exception()
