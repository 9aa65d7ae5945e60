"""An answer that a coroutine writes piece by piece, as fast as the client takes it; it ends with the client."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from http1.protocol.server_connection import ServerConnection


class SlowClientError(Exception):
    """The client took nothing for too long."""


class StreamedAnswer:
    """Handles one request: `produce` is called with it, in a task that ends when the client is gone.

    Args:
        failed: answers for an error of `produce`; an answer that has started is cut afterwards.
        stall_s: how long a client may take nothing.
    """

    def __init__(
        self,
        connection: ServerConnection,
        produce: Callable[["StreamedAnswer"], Awaitable[None]],
        *,
        failed: Callable[[ServerConnection, Exception], object],
        stall_s: float,
    ) -> None:
        self._connection = connection
        self._produce = produce
        self._failed = failed
        self._stall_s = stall_s
        self._ready = asyncio.Event()
        self._ready.set()
        self._task = asyncio.create_task(self._run(), name="streamed-answer")

    def start(self, status: int, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self._connection.start(status, fields, length=None)

    async def send(self, data: bytes) -> None:
        """Sends a piece and waits until the client takes more.

        Raises:
            SlowClientError: it takes nothing.
        """
        self._connection.send(data)
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._ready.wait()
            except TimeoutError as error:
                raise SlowClientError from error

    async def _run(self) -> None:
        try:
            await self._produce(self)
        except SlowClientError:
            self._connection.abort()
        except Exception as error:  # noqa: BLE001 - the server's own way to answer it
            if not self._connection.started:
                self._failed(self._connection, error)
            else:
                self._connection.abort()
        else:
            self._connection.finish()

    # What the connection calls

    def body(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def gone(self) -> None:
        self._task.cancel()

    def writable(self, *, ready: bool) -> None:
        (self._ready.set if ready else self._ready.clear)()
