"""Counts and order statistics over the GPUs of each worker, whose rows lie side by side; a worker may have none."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).max  # sorts behind every real value


def count_true(mask: Bools, first: Ints) -> Ints:
    """How many are true in each segment; segment i is `mask[first[i]:first[i + 1]]`."""
    running = np.zeros(len(mask) + 1, dtype=np.int64)
    np.cumsum(mask, out=running[1:])
    return running[first[1:]] - running[first[:-1]]


def nth_smallest(values: Ints, first: Ints, n: int) -> Ints:
    """The n-th smallest value (from 1) of each segment, NEVER where a segment is shorter."""
    lengths = first[1:] - first[:-1]
    long_enough = lengths >= n
    result = np.full(len(lengths), NEVER, dtype=np.int64)
    if not long_enough.any():
        return result
    if n == 1:  # empty segments hold nothing, so leaving their starts out changes no other segment
        result[long_enough] = np.minimum.reduceat(values, first[:-1][long_enough])
        return result
    segment = np.repeat(np.arange(len(lengths)), lengths)
    ordered = values[np.lexsort((values, segment))]
    result[long_enough] = ordered[first[:-1][long_enough] + n - 1]
    return result
