"""Time as an argument: what the runtime asks instead of reading a clock by itself. Decides nothing."""

import asyncio
from datetime import UTC, datetime
from typing import Protocol


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
