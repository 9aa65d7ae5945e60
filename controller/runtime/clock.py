"""Time as an argument: the runtime asks a `Clock` and reads no other."""

import asyncio
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

JUMP_S: Final = 2.0  # more than reading two clocks one after the other takes


class Clock(Protocol):
    """What the runtime asks of time."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, from an arbitrary origin."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC: for timestamps, never for measuring durations."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""


class SystemClock:
    """The real clock; its monotonic time is the running loop's, so that timers and measurements agree."""

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
    """Detects jumps of another machine's wall clock, against our monotonic one.

    After a jump, older timestamps of that clock must not be used for durations.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last: tuple[float, datetime] | None = None
        self._jumped_at = -math.inf

    def steady_for_s(self, theirs: datetime) -> float:
        """Seconds since the last detected jump of the other clock, which shows `theirs` now; infinite if none."""
        ours = self._monotonic()
        if self._last is not None:
            drift_s = (theirs - self._last[1]).total_seconds() - (ours - self._last[0])
            if abs(drift_s) > JUMP_S:
                self._jumped_at = ours
        self._last = (ours, theirs)
        return ours - self._jumped_at
