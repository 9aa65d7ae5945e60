"""The frames of one agent's connection, within a budget: however fast they come, other connections have their turn.

Pings are answered here, since aiohttp would answer all that have arrived before anything else runs. Bytes say little
about what a message costs: a megabyte of entries that are none takes half a second. So the time that a worker's
messages take to read has a budget as well, which goes on over its connections.
"""

import asyncio
import time
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from controller.hub.readings import Doubts
from controller.hub.validate import AgentMessage, parse_message
from http1.paced_socket import pace
from http1.rate import Rate
from schemas.wire import MAX_MESSAGE_BYTES

BURST: Final = 1_000  # frames at once: a host that reports all its processes after a reconnection
PER_S: Final = 500.0
UNIT_BYTES: Final = 4096  # of a frame that counts once: with the rate, 2 MiB a second
READING_BURST_S: Final = 1.0  # of this thread: a host that was away for hours takes 0.2 s
READING_SHARE: Final = 0.1  # of the loop's time, beyond that
_MOST_WORKERS: Final = 20_000  # whose time is remembered
_TURN: Final = 20  # frames, after which others have their turn
_CONTROL: Final = (WSMsgType.PING, WSMsgType.PONG)


class FrameBudget:
    """How many frames a connection may send; long ones count as several. Times are seconds, monotonic."""

    def __init__(self, now: float, *, burst: int = BURST, per_s: float = PER_S) -> None:
        self._rate = Rate(now, burst, per_s)

    def take(self, now: float, size: int = 0) -> float:
        """Takes one frame of so many bytes; returns the seconds to wait before the next."""
        return self._rate.take(now, 1.0 + size // UNIT_BYTES)


class ReadingTimes:
    """What is left of each worker's time. Times are seconds, monotonic."""

    def __init__(self) -> None:
        self._of: dict[str, Rate] = {}  # those of which a connection came last are last

    def of(self, worker: str, now: float) -> Rate:
        """The budget of a worker that connects."""
        rate = self._of.pop(worker, None) or Rate(now, READING_BURST_S, READING_SHARE)
        self._of[worker] = rate
        if len(self._of) > _MOST_WORKERS:
            del self._of[next(iter(self._of))]
        return rate


class Frames:
    """Reads a socket that does not answer pings by itself. While it waits, flow control holds the agent back.

    Args:
        socket: to read; prepared.
        request: of the socket, whose bytes get the same budget: it holds for frames that end no message, too.
        reading: the worker's time.
    """

    def __init__(self, socket: web.WebSocketResponse, request: web.Request, reading: Rate) -> None:
        self._socket = socket
        self._reading = reading
        pace(request, burst_bytes=BURST * UNIT_BYTES + MAX_MESSAGE_BYTES, bytes_per_s=PER_S * UNIT_BYTES)
        self._loop = asyncio.get_running_loop()
        self._budget = FrameBudget(self._loop.time())
        self._taken = 0

    async def next(self) -> WSMessage:
        """The next frame with data, or the end of the connection."""
        if owed_s := self._reading.take(self._loop.time(), 0.0):
            await asyncio.sleep(owed_s)
        while True:
            frame = await self._socket.receive()
            self._taken += 1
            size = len(frame.data) if isinstance(frame.data, str | bytes) else 0
            wait_s = self._budget.take(self._loop.time(), size)
            if wait_s or self._taken % _TURN == 0:
                await asyncio.sleep(wait_s)
            if frame.type not in _CONTROL:
                return frame
            if frame.type is WSMsgType.PING and not self._socket.closed:
                await self._socket.pong(frame.data)

    def parse(self, text: str, doubts: Doubts | None = None) -> AgentMessage:
        """As `parse_message`, in the worker's time.

        Raises:
            MalformedMessageError: the message violates the protocol.
        """
        began_s = time.thread_time()
        try:
            return parse_message(text, doubts)
        finally:
            self._reading.take(self._loop.time(), time.thread_time() - began_s)
