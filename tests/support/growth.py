"""Whether a cost grows in line with its cause. The process's own time counts, so that others' load says little."""

import gc
import time
from collections.abc import Callable

import pytest


def seconds(work: Callable[[], object]) -> float:
    """The least of three tries, of this process alone."""
    return min(_seconds(work) for _ in range(3))


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def assert_in_line(of: Callable[[int], Callable[[], object]], few: int, *, times: int = 4, slack: float = 2.0) -> None:
    """`times` as much takes less than `slack * times` as long. What is quadratic takes `times` squared.

    The larger work is measured again only where it took too long, up to three times.

    Args:
        of: prepares the work for a number.
        few: a number whose work takes some milliseconds at least.
        times: how many times as much is tried as well.
        slack: for caches and a loaded machine.
    """
    little, work = seconds(of(few)), of(few * times)
    took = []
    for _ in range(3):
        took.append(_seconds(work))
        if took[-1] < slack * times * little:
            return
    pytest.fail(f"{times} times as much took {min(took) / little:.1f} times as long")
