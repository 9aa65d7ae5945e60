"""Hellos wait for their turn: as many are written at once as leave the database's connections to everything else.

Its pace is measured. An agent whose turn would come too late is sent away before anything is read of it, with the time
at which its turn comes. So agents that return together come back one after the other.
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
_EARLY: Final = 0.6  # of the pace, by which those that are sent away come back: the queue must not run dry
_FIRST_PACE_S: Final = 0.02
_WEIGHT: Final = 0.05  # of the latest hello in the pace


class HelloQueue:
    """The turns of all agents' hellos.

    Args:
        now: seconds that never go backwards.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._inside = 0  # waiting or being written
        self._pace_s = _FIRST_PACE_S  # between two ends of hellos while others wait
        self._ended_at: float | None = None  # of the last hello, if others waited then
        self._booked_until = 0.0  # by those that were sent away
        self._sent_away_at = float("-inf")

    @property
    def room(self) -> int:
        """How many more may come in: their turns come in time."""
        return min(max(int(WAIT_S / self._pace_s), LEAST), MOST) - self._inside

    @property
    def open_for_s(self) -> float:
        """Seconds since an agent was sent away last; infinite: none was."""
        return self._now() - self._sent_away_at

    def later_s(self) -> float:
        """Seconds until the turn of one more agent that is sent away now."""
        now = self._sent_away_at = self._now()
        first = now + self._inside * self._pace_s
        self._booked_until = max(self._booked_until, first) + _EARLY * self._pace_s
        # Beyond the latest time the turns begin again at the first one. So agents never come back in one lump with
        # nothing before it, and the queue stays full when the database becomes quicker than the turns assumed.
        if self._booked_until > now + LATEST_S:
            self._booked_until = min(first, now + LATEST_S)
        return max(self._booked_until - now - WAIT_S / 2, 1.0)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Counts an agent whose hello is awaited or written."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for the turn of a hello, which the caller bounds. First come, first served."""
        async with self._slots:
            try:
                yield
            finally:  # one that fails has taken its time too: a database that hangs has a slow pace
                self._note_end()

    def _note_end(self) -> None:
        now = self._now()
        if self._ended_at is not None:
            self._pace_s += _WEIGHT * (now - self._ended_at - self._pace_s)
        self._ended_at = now if self._inside > AT_ONCE else None
