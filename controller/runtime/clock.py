"""Time as an argument: the runtime reads no other clock than the `Clock` that it is given."""

import asyncio
from datetime import UTC, datetime
from typing import Final, Protocol

JUMP_S: Final = 2.0  # of a wall clock; more than reading two clocks one after the other takes


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def monotonic(self) -> float:
        """Returns seconds that never go backwards, from an arbitrary origin."""

    def now(self) -> datetime:
        """Returns the wall-clock time, aware, in UTC: for timestamps, never for measuring durations."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real clock; its monotonic time is the running loop's, so that timers and measurements agree."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
