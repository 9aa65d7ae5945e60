"""The agent's clock: seconds since boot, the suspended time included."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boot_clock() -> float:
    """Seconds since boot.

    Not the loop's monotonic clock: that one stands still while the host sleeps, and a fence must not. It holds across
    processes, so that the journal's times mean something to the next agent.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
