"""Time as an argument: the runtime asks a `Clock` and reads no other."""

import asyncio
from datetime import UTC, datetime
from typing import Final, Protocol

JUMP_S: Final = 2.0  # of a wall clock; more than reading two clocks one after the other takes


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
