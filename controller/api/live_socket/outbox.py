"""What waits to be sent on a socket, in order and bounded: topics wait for room, and a client that stalls is cut."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import orjson
from aiohttp import WSMsgType, web

from controller.api.streams import while_taken

MAX_WAITING: Final = 64  # messages; topics wait for room, each behind a bounded stream of its own
MAX_WAITING_BYTES: Final = 4 * 2**20  # and one message more, of whatever size


class Outbox:
    """The way out of one socket.

    Args:
        socket: to send on.
        transport: of its connection.
    """

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None) -> None:
        self._socket, self._transport = socket, transport
        self._waiting: deque[tuple[int | None, bytes]] = deque()  # with the topic by which they are dropped
        self._bytes = 0  # of those, and of the one under way
        self._door = asyncio.Lock()  # topics come in in the order in which they asked
        self._room = asyncio.Event()
        self._some = asyncio.Event()

    async def put(self, id_: int, message: bytes | Callable[[], bytes]) -> None:
        """Queues a JSON object as the message of a topic, once there is room: it comes, or the socket ends.

        Args:
            id_: of the topic.
            message: or what makes it. A large one is made when there is room for it, so that none wait for it.
        """
        await self._put(id_, message, of=id_)

    async def put_form(self, id_: int | None, **form: Any) -> None:
        """As `put`; stays in the queue when its topic is dropped: an end, an error, an answer."""
        await self._put(id_, orjson.dumps(form), of=None)

    async def _put(self, id_: int | None, message: bytes | Callable[[], bytes], *, of: int | None) -> None:
        async with self._door:
            while len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
                self._room.clear()
                await self._room.wait()
            body = message if isinstance(message, bytes) else message()
            whole = b'{"id":%b,%b' % (b"null" if id_ is None else b"%d" % id_, body[1:])
            self._waiting.append((of, whole))
            self._bytes += len(whole)
        self._some.set()

    def drop(self, id_: int) -> None:
        """Forgets what waits of a topic. A message that is under way goes on."""
        self._bytes -= sum(len(message) for of, message in self._waiting if of == id_)
        self._waiting = deque((of, message) for of, message in self._waiting if of != id_)
        self._room.set()

    async def send_all(self) -> None:
        """Sends until cancelled.

        Raises:
            SlowClientError: as `while_taken`.
        """
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            _, message = self._waiting.popleft()
            await while_taken(self._transport, self._socket.send_frame(message, WSMsgType.TEXT))
            self._bytes -= len(message)  # not before: one that is under way takes room
            self._room.set()
