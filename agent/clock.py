"""The agent's clock: seconds since boot, suspended time included."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boot_clock() -> float:
    """Seconds since boot.

    The loop's monotonic clock would stand still while the host sleeps; a fence must not. The clock is the same in
    every process, so the journal's times are valid for the next agent.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
