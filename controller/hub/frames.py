"""The frames of one agent's connection, within a budget: however fast they come, other connections have their turn.

Pings are answered here, since aiohttp would answer all that have arrived before anything else runs.
"""

import asyncio
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from controller.hub.worker_budget import WorkerTime
from http1.paced_socket import pace
from http1.rate import Rate
from schemas.wire import MAX_MESSAGE_BYTES

BURST: Final = 1_000  # frames at once: a host that reports all its processes after a reconnection
PER_S: Final = 100.0  # an honest host sends some ten
UNIT_BYTES: Final = 20 * 1024  # of a frame that counts once: with the rate, 2 MiB a second
BURST_BYTES: Final = 4 * 2**20 + MAX_MESSAGE_BYTES
_TURN: Final = 20  # frames, after which others have their turn
_CONTROL: Final = (WSMsgType.PING, WSMsgType.PONG)


class FrameBudget:
    """How many frames a connection may send; long ones count as several. Times are seconds, monotonic."""

    def __init__(self, now: float, *, burst: int = BURST, per_s: float = PER_S) -> None:
        self._rate = Rate(now, burst, per_s)

    def take(self, now: float, size: int = 0) -> float:
        """Takes one frame of so many bytes; returns the seconds to wait before the next."""
        return self._rate.take(now, 1.0 + size // UNIT_BYTES)


class Frames:
    """Reads a socket that does not answer pings by itself. While it waits, flow control holds the agent back.

    Args:
        socket: to read; prepared.
        request: of the socket, whose bytes get the same budget: it holds for frames that end no message, too.
        time: the worker's, of which messages are read while it has some.
    """

    def __init__(self, socket: web.WebSocketResponse, request: web.Request, time: WorkerTime) -> None:
        self.time = time
        self._socket = socket
        pace(request, burst_bytes=BURST_BYTES, bytes_per_s=PER_S * UNIT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._budget = FrameBudget(self._loop.time())
        self._taken = 0

    async def next(self) -> WSMessage:
        """The next frame with data, or the end of the connection."""
        while True:
            frame = await self._socket.receive()
            self._taken += 1
            size = len(frame.data) if isinstance(frame.data, str | bytes) else 0
            wait_s = self._budget.take(self._loop.time(), size)
            if wait_s or self._taken % _TURN == 0:
                await asyncio.sleep(wait_s)
            if frame.type not in _CONTROL:
                await self.time.wait()
                return frame
            if frame.type is WSMsgType.PING and not self._socket.closed:
                await self._socket.pong(frame.data)
