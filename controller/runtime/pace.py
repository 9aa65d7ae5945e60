"""Long computations on the event loop that let everything else have its turn."""

import asyncio
import time
from typing import Final

_HOLD_S: Final = 0.005


class Pace:
    """Of one computation: it holds the loop for some milliseconds at a time.

    Measured by the machine's clock: that of the loop stands still while the loop is held.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    async def rest(self) -> None:
        """Lets the others have their turn, where it is time for that."""
        if time.monotonic() - self._since >= _HOLD_S:
            await asyncio.sleep(0)
            self._since = time.monotonic()
