"""Whether a cost grows in line with its cause. The process's own time counts, so that others' load says little."""

import gc
import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """The least of three tries, of this process alone."""
    took = []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def assert_in_line(of: Callable[[int], Callable[[], object]], few: int, *, times: int = 4, slack: float = 2.0) -> None:
    """`times` as much takes less than `slack * times` as long. What is quadratic takes `times` squared.

    Args:
        of: prepares the work for a number.
        few: a number whose work takes some milliseconds at least.
        times: how many times as much is tried as well.
        slack: for caches and a loaded machine.
    """
    little, much = seconds(of(few)), seconds(of(few * times))
    assert much < slack * times * little, f"{times} times as much took {much / little:.1f} times as long"
