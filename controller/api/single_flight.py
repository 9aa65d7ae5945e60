"""Shared runs of a computation: at most one at a time. Requests that arrive during a run share the next one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

from aiohttp import web

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Shares runs of `make`.

    Each caller gets a run that started after its call, so that it sees its own earlier writes. A run continues after
    its callers are gone: its thread could not be ended, and the next run would run in parallel.

    Args:
        make: one run. It must leave no thread behind, so only its reads may have a time limit.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """The result of a run that starts after the call; raises its error. The caller limits the wait."""
        if self._next is None:
            # Not in the first caller's context, because several callers share the run.
            self._next = asyncio.create_task(self._run_after(self._running), name="single-flight", context=Context())
            self._next.add_done_callback(_note_failure)
        return await asyncio.shield(self._next)

    async def _run_after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait({before})
        self._running, self._next = self._next, None
        return await self._make()

    async def close(self) -> None:
        if tasks := {task for task in (self._running, self._next) if task is not None and not task.done()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1.0)


def shared_context(
    key: web.AppKey[SingleFlight[T]], make_of: Callable[[web.Application], Callable[[], Awaitable[T]]]
) -> Callable[[web.Application], AsyncIterator[None]]:
    """A context of an application that shares runs of `make_of(app)` under a key."""

    async def context(app: web.Application) -> AsyncIterator[None]:
        shared = app[key] = SingleFlight(make_of(app))
        try:
            yield
        finally:
            await shared.close()

    return context


def _note_failure(task: asyncio.Task[T]) -> None:
    """Retrieves a failure that no caller waits for, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
