"""The time that each worker's messages take of the controller's loop, and its budget, which goes on over connections.

Bytes say little about what a message costs: a megabyte of entries that are none takes half a second to read, and a
handshake of a hundred bytes takes 20 ms. So a worker whose agent takes more than its share waits.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from http1.rate import Rate

BURST_S: Final = 3.0  # a host with 16 GPUs that was away until its backlog was full takes 2.3 s
SHARE: Final = 0.1  # of the loop's time, beyond that
MOST_OWED_S: Final = 1.5  # what takes longer is forgiven: its agent waits for 15 s, and not until it counts as silent
CONNECTION_S: Final = 0.02  # what a handshake takes beside its reading
ENTRY_S: Final = 1e-4  # the same, for each GPU, process and receipt that it names
_TURN_S: Final = 0.005  # of reading, after which others have as long
_MOST_WORKERS: Final = 20_000  # whose time is remembered


class WorkerTime:
    """One worker's. It belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rate = Rate(self._loop.time(), BURST_S, SHARE, most_owed=MOST_OWED_S)
        self._unshared_s = 0.0

    @property
    def owed_s(self) -> float:
        """Seconds to wait before more is read of it."""
        return self._rate.take(self._loop.time(), 0.0)

    async def wait(self) -> None:
        """Returns when more may be read. Other connections of the worker may use its time meanwhile."""
        if (shared_s := self._unshared_s) >= _TURN_S:  # also within the burst others have as long
            self._unshared_s = 0.0
            await asyncio.sleep(shared_s)
        while owed_s := self.owed_s:  # noqa: ASYNC110 - time passes, and nothing tells of it
            await asyncio.sleep(owed_s)

    def charge(self, seconds: float) -> None:
        """Counts what is not measured."""
        self._rate.take(self._loop.time(), seconds)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Counts what this thread computes within it. Nothing is awaited there."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - began_s
            self._unshared_s += took_s
            self.charge(took_s)


class WorkerTimes:
    """Those of all workers, by their ids."""

    def __init__(self) -> None:
        self._of: dict[str, WorkerTime] = {}  # the one that connected last is last

    def of(self, worker: str) -> WorkerTime:
        """That of a worker that connects."""
        found = self._of.pop(worker, None) or WorkerTime()
        self._of[worker] = found
        if len(self._of) > _MOST_WORKERS:
            del self._of[next(iter(self._of))]
        return found
