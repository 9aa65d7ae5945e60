"""The budget of one worker's credential over all its connections, in seconds of the controller's loop.

The time to read its messages is measured. Frames, bytes, handshakes and changes of the host have a price, since bytes
alone mean little: a handshake of a hundred bytes takes 20 ms. When a worker has used up its budget, nothing more is
read of its connections, and flow control holds its agent back.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import WSMessage, WSMsgType, web

from http1.rate import Rate

BURST_S: Final = 3.0  # a host with 16 GPUs that was away until its backlog was full takes 2.3 s
SHARE: Final = 0.1  # of the loop's time, beyond that
MAX_OWED_S: Final = 1.5  # more is forgiven: its agent waits for 15 s, but not until it counts as silent
CONNECTION_S: Final = 0.02  # of a handshake, besides its reading
ENTRY_S: Final = 1e-4  # of a handshake, for each GPU, process and receipt that it names
CHANGE_S: Final = 0.05  # of the host's inventory or GPUs, which wakes the leader: 2 a second
FRAME_S: Final = 0.001  # 100 a second; an honest host sends some ten
MIB_S: Final = 0.05  # 2 MiB a second
MAX_HANDSHAKES: Final = 3  # at once: an agent that connects again while an older attempt has not ended
MAX_UNSENT: Final = 4_096  # messages of one connection
MAX_UNWRITTEN_SAMPLES: Final = 50_000  # of one connection, which sends few hundred KiB before an acknowledgement
_TURN_S: Final = 0.005  # of reading, after which other workers get the same time
_TURN_FRAMES: Final = 20
_MAX_WORKERS: Final = 20_000  # whose budgets are kept
_CONTROL: Final = (WSMsgType.PING, WSMsgType.PONG)


class WorkerBudget:
    """The budget of one worker. It belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rate = Rate(self._loop.time(), BURST_S, SHARE, most_owed=MAX_OWED_S)
        self._unshared_s = 0.0
        self._handshakes = 0

    @property
    def owed_s(self) -> float:
        """Seconds until the next message of the worker is read."""
        return self._rate.take(self._loop.time(), 0.0)

    @property
    def crowded(self) -> bool:
        """Whether another handshake must wait."""
        return self._handshakes >= MAX_HANDSHAKES

    @contextmanager
    def handshake(self) -> Iterator[None]:
        self._handshakes += 1
        self.charge(CONNECTION_S)
        try:
            yield
        finally:
            self._handshakes -= 1

    async def wait(self) -> None:
        """Waits until more may be read. Meanwhile other connections of the worker may use its budget."""
        if (shared_s := self._unshared_s) >= _TURN_S:  # also within the burst, other workers get the same time
            self._unshared_s = 0.0
            await asyncio.sleep(shared_s)
        while owed_s := self.owed_s:  # noqa: ASYNC110 - time passes, and there is no event for it
            await asyncio.sleep(owed_s)

    def charge(self, seconds: float) -> None:
        self._rate.take(self._loop.time(), seconds)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Charges the CPU time of this thread within the block, which must not await."""
        started_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - started_s
            self._unshared_s += took_s
            self.charge(took_s)


class WorkerBudgets:
    """The budgets of all workers, by their ids."""

    def __init__(self) -> None:
        self._of: dict[str, WorkerBudget] = {}  # in the order of the last connections

    def of(self, worker: str) -> WorkerBudget:
        budget = self._of.pop(worker, None) or WorkerBudget()
        self._of[worker] = budget
        if len(self._of) > _MAX_WORKERS:
            del self._of[next(iter(self._of))]
        return budget


class Frames:
    """The frames of one connection, within its worker's budget.

    Pings are answered here, since aiohttp would answer all arrived pings before anything else runs. So `socket` must
    send no pongs of its own.
    """

    def __init__(self, socket: web.WebSocketResponse, budget: WorkerBudget) -> None:
        self.budget = budget
        self._socket = socket
        self._taken = 0

    async def next(self) -> WSMessage:
        """The next frame with data, or the end of the connection."""
        while True:
            frame = await self._socket.receive()
            self._taken += 1
            size = len(frame.data) if isinstance(frame.data, str | bytes) else 0
            self.budget.charge(FRAME_S + size / 2**20 * MIB_S)
            if self._taken % _TURN_FRAMES == 0:
                await asyncio.sleep(0)
            await self.budget.wait()
            if frame.type not in _CONTROL:
                return frame
            if frame.type is WSMsgType.PING and not self._socket.closed:
                await self._socket.pong(frame.data)
