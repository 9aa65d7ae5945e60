"""The garbage collector of a process that lives for weeks and must not pause."""

import gc
from typing import Final

_COLLECT_AFTER: Final = (20_000, 10, 20)  # objects more than before; rounds of the young; rounds of the middle-aged


def collect_seldom() -> None:
    """Leaves alone what is loaded by now, and looks through the rest less often than Python would.

    A full collection that looked through all of it held the loop for a tenth of a second, and made them frequent that
    thousands of agents' sessions are long-lived, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
