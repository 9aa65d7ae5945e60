"""Limits of time and memory around one reading of untrusted input."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# What small inputs may cost: a hundred times what they do cost.
MOST_S: Final = 2.0
MOST_BYTES: Final = 64 * 2**20


@contextmanager
def bounded() -> Iterator[None]:
    """The body may take `MOST_S` of CPU time and `MOST_BYTES` more memory than the process has.

    Raises:
        AssertionError: the body took longer.
        MemoryError: the body allocated more.
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
