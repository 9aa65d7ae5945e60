"""Streaming responses: cut when the client is too slow, ended when the server stops."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

SLOW_CLIENT_S: Final = 10.0


class SlowClientError(Exception):
    """The client did not read in time."""


class Streams:
    """The tasks of open streams. A stopping server cancels them instead of waiting."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None] | asyncio.Task[web.StreamResponse]] = set()
        self._closing = False

    @contextmanager
    def registered(self) -> Iterator[None]:
        """Registers the calling task for as long as the context lasts. A cancel by `end` raises no error."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("registered() was called outside a task")
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._closing:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)

    async def end(self, _app: web.Application) -> None:
        """Ends every open stream; the app's on_shutdown signal."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()


STREAMS: Final = web.AppKey("STREAMS", Streams)


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Writes to the client.

    Raises:
        SlowClientError: its buffer stayed full for `SLOW_CLIENT_S`.
    """
    try:
        async with asyncio.timeout(SLOW_CLIENT_S):
            await response.write(data)
    except TimeoutError as error:
        raise SlowClientError from error


def hang_up(request: web.Request, limit_s: float) -> None:
    """Ends the connection once all that was written has gone out, but no later than the limit. No end is written.

    The client gets everything so far, and sees that the response is incomplete.
    """
    if request.transport is not None:
        request.transport.close()
        asyncio.get_running_loop().call_later(limit_s, request.transport.abort)


def cut(request: web.Request) -> None:
    """Ends the connection at once, so that the client sees a broken response and not a short one."""
    if request.transport is not None:
        request.transport.abort()
