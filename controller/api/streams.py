"""Streaming responses: cut when the client is too slow or its key is revoked, ended when the server stops."""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiohttp import WSCloseCode, web

from http1.protocol.peer_state import taken_bytes

SLOW_CLIENT_S: Final = 10.0
_POLLS: Final = 8  # of the client's progress, within that time
_CLOSE_LIMIT_S: Final = 2.0
UNAUTHENTICATED: Final = 4401  # closes a WebSocket whose key is revoked, or has another role now


class SlowClientError(Exception):
    """The client did not read in time."""


Why = Literal["revoked", "stopping"]


class StreamEndedError(Exception):
    """The server ended the stream: its key is revoked, or the server stops."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why = why


@dataclass(slots=True)
class _Stream:
    """An open stream. `why`: the reason for which the server ended it."""

    credential: str
    why: Why | None = None


class Streams:
    """The tasks of open streams. They end with the key that opened them, and a stopping server does not await them."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Task[Any], _Stream] = {}

    @contextmanager
    def registered(self, credential: str) -> Iterator[None]:
        """Registers the calling task until the context ends.

        Raises:
            StreamEndedError: instead of the cancellation by `end_of` or `end`.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("registered() was called outside a task")
        stream = self._open[task] = _Stream(credential)
        try:
            yield
        except asyncio.CancelledError as cancel:
            if stream.why is None or task.uncancel() > 0:
                raise
            raise StreamEndedError(stream.why) from cancel
        finally:
            del self._open[task]

    def end_of(self, credentials: Collection[str]) -> None:
        """Ends the streams that these keys and sessions opened."""
        self._end([task for task, stream in self._open.items() if stream.credential in credentials], "revoked")

    async def end(self, _app: web.Application) -> None:
        """The app's on_shutdown signal."""
        self._end(list(self._open), "stopping")

    def _end(self, tasks: Iterable[asyncio.Task[Any]], why: Why) -> None:
        for task in tasks:
            if self._open[task].why is None:
                self._open[task].why = why
                task.cancel()


STREAMS: Final = web.AppKey("STREAMS", Streams)


async def write(response: web.StreamResponse, data: bytes, transport: asyncio.BaseTransport | None) -> None:
    """Writes data. Raises `SlowClientError` if the client takes too long to read."""
    await while_taken(transport, response.write(data))


async def while_taken(transport: asyncio.BaseTransport | None, writing: Awaitable[None]) -> None:
    """Awaits a write while the client makes progress: a slow link is served, a stalled client is not.

    Where the system does not report the client's progress, the write has `SLOW_CLIENT_S` in all.

    Raises:
        SlowClientError: no progress for `SLOW_CLIENT_S`.
    """
    try:
        async with asyncio.timeout(SLOW_CLIENT_S) as deadline:
            progress = _Progress(transport, deadline)
            try:
                await writing
            finally:
                progress.end()
    except TimeoutError as error:
        raise SlowClientError from error


class _Progress:
    """Extends a deadline each time that the client has taken bytes."""

    def __init__(self, transport: asyncio.BaseTransport | None, deadline: asyncio.Timeout) -> None:
        self._transport, self._deadline = transport, deadline
        self._taken: int | None = None
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(SLOW_CLIENT_S / _POLLS, self._poll)

    def end(self) -> None:
        self._next.cancel()

    def _poll(self) -> None:
        before, self._taken = self._taken, None if self._transport is None else taken_bytes(self._transport)
        grown = before is not None and self._taken is not None and self._taken > before
        if grown and not self._deadline.expired():
            self._deadline.reschedule(self._loop.time() + SLOW_CLIENT_S)
        self._next = self._loop.call_later(SLOW_CLIENT_S / _POLLS, self._poll)


def cut(request: web.Request) -> None:
    """Ends the connection at once, so that the client sees a broken response, not a short one."""
    if request.transport is not None:
        request.transport.abort()


async def close_socket(socket: web.WebSocketResponse, why: Why) -> None:
    revoked = why == "revoked"
    code, text = (UNAUTHENTICATED, b"the key counts no longer") if revoked else (WSCloseCode.GOING_AWAY, b"stopping")
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(_CLOSE_LIMIT_S):
            await socket.close(code=code, message=text)
