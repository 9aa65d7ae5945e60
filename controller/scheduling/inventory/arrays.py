"""The array types, and order statistics over arrays with a row per group and a column per GPU."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

NEVER: Final = np.iinfo(np.int64).max  # sorts after every real value


def nth_smallest(values: Ints, n: int) -> Ints:
    """The n-th smallest value of each row, counted from 1; NEVER where a row is shorter."""
    if n > values.shape[1]:
        return np.full(len(values), NEVER, dtype=np.int64)
    if n == 1:
        least: Ints = values.min(axis=1)
        return least
    nth: Ints = np.partition(values, n - 1, axis=1)[:, n - 1]
    return nth
