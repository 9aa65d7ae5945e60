"""What waits to be sent on a socket, in order and bounded: topics wait for room, and a client that stalls is cut."""

import asyncio
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from controller.api import streams
from controller.api.streams import SlowClientError

MAX_WAITING: Final = 64  # messages; topics wait for room, each behind a bounded stream of its own


class Outbox:
    """The way out of one socket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)

    async def put(self, id_: int | None, message: bytes) -> None:
        """Queues a JSON object as the message of a topic; waits for room, which is there or the socket ends."""
        await self._waiting.put(b'{"id":%b,%b' % (b"null" if id_ is None else b"%d" % id_, message[1:]))

    async def put_form(self, id_: int | None, **form: Any) -> None:
        """As `put`."""
        await self.put(id_, orjson.dumps(form))

    async def send_all(self) -> None:
        """Sends until cancelled.

        Raises:
            SlowClientError: the client has not read for `SLOW_CLIENT_S`.
        """
        while True:
            message = await self._waiting.get()
            try:
                async with asyncio.timeout(streams.SLOW_CLIENT_S):
                    await self._socket.send_frame(message, WSMsgType.TEXT)
            except TimeoutError as error:
                raise SlowClientError from error
