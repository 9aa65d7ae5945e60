"""Admission of connections: hellos queue for a few of the database's connections.

The pace is measured. An agent whose turn would come too late is refused before anything of it is read, with the time
after which to retry. So agents that return together reconnect one after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

AT_ONCE: Final = 4  # of the database's connections
WAIT_S: Final = 8.0  # an agent waits for its welcome for 15 s, and a slow database needs the rest
MOST: Final = 1_024  # hellos that wait at once: each holds a message
LEAST: Final = 16  # that may wait, however slow the database is
LATEST_S: Final = 30.0
_EARLY: Final = 0.6  # of the pace: refused agents return faster than measured, so that the queue does not run dry
_FIRST_PACE_S: Final = 0.02
_WEIGHT: Final = 0.05  # of the latest hello in the pace


class HelloQueue:
    """The turns of all agents' hellos. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._inside = 0  # waiting or being written
        self._pace_s = _FIRST_PACE_S  # between two ends of hellos while others wait
        self._ended_at: float | None = None  # of the last hello, if others waited then
        self._booked_until = 0.0  # by refused agents
        self._refused_at = float("-inf")

    @property
    def room(self) -> int:
        """Number of further hellos whose turns come in time."""
        return min(max(int(WAIT_S / self._pace_s), LEAST), MOST) - self._inside

    @property
    def open_for_s(self) -> float:
        """Seconds since the last refusal; infinite without one."""
        return self._now() - self._refused_at

    def later_s(self) -> float:
        """Books a turn for an agent that is refused now; returns the seconds after which it shall retry."""
        now = self._refused_at = self._now()
        first = now + self._inside * self._pace_s
        self._booked_until = max(self._booked_until, first) + _EARLY * self._pace_s
        # Beyond the latest time, turns start again at the first. So agents do not return all at that time, and the
        # queue stays full if the database becomes faster than assumed.
        if self._booked_until > now + LATEST_S:
            self._booked_until = min(first, now + LATEST_S)
        return max(self._booked_until - now - WAIT_S / 2, 1.0)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Counts an agent while its hello is awaited or written."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for the turn of a hello, first come, first served. The caller bounds the time."""
        async with self._slots:
            try:
                yield
            finally:  # also after a failure, because a database that hangs has a slow pace
                self._note_end()

    def _note_end(self) -> None:
        now = self._now()
        if self._ended_at is not None:
            self._pace_s += _WEIGHT * (now - self._ended_at - self._pace_s)
        self._ended_at = now if self._inside > AT_ONCE else None
