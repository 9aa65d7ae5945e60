"""Bounds of time and memory around one reading of something that nobody vouches for."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# What small inputs may cost, a hundred times what they do.
MOST_S: Final = 2.0
MOST_BYTES: Final = 64 * 2**20


@contextmanager
def bounded() -> Iterator[None]:
    """What is inside may take `MOST_S` of this process's time and `MOST_BYTES` beyond what it has.

    Raises:
        AssertionError: it took longer.
        MemoryError: it asked for more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    began = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - began < MOST_S
