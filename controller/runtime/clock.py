"""Time as an argument: what the runtime asks instead of reading a clock by itself. Decides nothing."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

JUMP_S: Final = 2.0  # more than reading two clocks one after the other takes


class Clock(Protocol):
    """The three questions about time that the runtime asks."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, from an arbitrary start."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC: for timestamps, never for measuring a duration of our own."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The real clock; its monotonic side is the running loop's, so that timers and measurements never disagree."""

    def monotonic(self) -> float:
        """Return the running loop's time in seconds.

        Raises:
            RuntimeError: no event loop is running in this thread.
        """
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)


class ClockJumpWatch:
    """Compares somebody else's wall clock with our own counting one. After a leap its older stamps tell no durations.

    Args:
        monotonic: seconds that never go backwards.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last: tuple[float, datetime] | None = None
        self._leapt_at = -math.inf

    def steady_for_s(self, theirs: datetime) -> float:
        """Seconds since the other clock, which shows `theirs` now, was first seen to have leapt; infinite if never."""
        ours = self._monotonic()
        if self._last is not None:
            drift_s = (theirs - self._last[1]).total_seconds() - (ours - self._last[0])
            if abs(drift_s) > JUMP_S:
                self._leapt_at = ours
        self._last = (ours, theirs)
        return ours - self._leapt_at
