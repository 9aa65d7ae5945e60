"""Garbage collection for a process that lives for weeks and must not pause."""

import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 10, 20)  # new objects; collections of generation 0; collections of generation 1


def tune_gc() -> None:
    """Excludes the objects loaded so far from collection, and collects the rest less often than Python's default.

    A full collection of all objects held the event loop for a tenth of a second. Thousands of long-lived agent
    sessions made full collections frequent.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
