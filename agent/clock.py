"""The agent's clock: seconds since boot, suspended time included."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boot_clock() -> float:
    # Not the loop's clock, which stops while the host sleeps: a fence must not. All processes share this clock, so the
    # journal's times are valid for the next agent.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
