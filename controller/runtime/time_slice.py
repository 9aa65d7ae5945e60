"""Cooperative scheduling for long computations on the event loop."""

import asyncio
import time
from typing import Final

_SLICE_S: Final = 0.005


class TimeSlice:
    """Lets one long computation hold the event loop for a few milliseconds at a time.

    Measured by the machine's clock: the loop's own clock stands still while the loop is held.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def yield_if_over(self) -> None:
        """Yields to the event loop if the slice is used up."""
        if time.monotonic() - self._since >= _SLICE_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()
