"""Samples of one GPU, or of one instance on it, in order of time. In memory; no clock, no verdicts.

The order and the repetition of arriving samples make no difference. A full series grows by half and drops trimmed
samples, so it takes at most about 1.5 times the size of its samples (20 bytes each).
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.float64]
Values: TypeAlias = NDArray[np.float32]

_SPARE: Final = 16


class Series:
    """Samples sorted by time (seconds of the database's clock); unknown values are NaN.

    Its columns are views, valid until the next `put`, `extend` or `trim`.
    """

    __slots__ = ("_at", "_end", "_first", "_high", "_mean", "_period")

    def __init__(self) -> None:
        self._first = self._end = 0
        self._allocate(0)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def at(self) -> Times:
        """The end of each sampling period."""
        return self._at[self._first : self._end]

    @property
    def period(self) -> Values:
        """Length of each sampling period in seconds."""
        return self._period[self._first : self._end]

    @property
    def mean(self) -> Values:
        """Mean utilization in percent."""
        return self._mean[self._first : self._end]

    @property
    def high(self) -> Values:
        """Highest utilization in percent."""
        return self._high[self._first : self._end]

    def put(self, at: float, period_s: float, mean: float, high: float) -> None:
        """Adds one sample. Of two at the same time the higher values count, so that neither hides use."""
        if self._end == len(self._at):
            self._grow()
        n = self._end
        if n > self._first and at <= self._at[n - 1]:
            k = self._first + int(np.searchsorted(self.at, at))
            if self._at[k] == at:
                self._period[k] = max(self._period[k], period_s)
                self._mean[k] = np.fmax(self._mean[k], mean)
                self._high[k] = np.fmax(self._high[k], high)
                return
            for column in (self._at, self._period, self._mean, self._high):
                column[k + 1 : n + 1] = column[k:n].copy()
            n = k
        self._at[n], self._period[n], self._mean[n], self._high[n] = at, period_s, mean, high
        self._end += 1

    def extend(self, rows: Iterable[tuple[float, float, float, float]]) -> None:
        """Adds many samples at once: (at, period_s, mean, high) each."""
        fresh = np.array(list(rows), dtype=np.float64).reshape(-1, 4)
        held = np.stack([self.at, self.period, self.mean, self.high], axis=1)
        together = np.concatenate([held, fresh])
        if not len(together):
            return
        at, group = np.unique(together[:, 0], return_inverse=True)
        merged = np.full((len(at), 4), np.nan)
        for n in (1, 2, 3):
            np.fmax.at(merged[:, n], group, together[:, n])
        self._allocate(len(at))
        self._first, self._end = 0, len(at)
        self._at[: self._end] = at
        self._period[: self._end], self._mean[: self._end], self._high[: self._end] = merged[:, 1:].T

    def trim(self, before: float) -> None:
        """Drops samples older than that."""
        if len(self) and self._at[self._first] < before:
            self._first += int(np.searchsorted(self.at, before))

    def _grow(self) -> None:
        n, (at, period, mean, high) = len(self), (self.at, self.period, self.mean, self.high)
        self._allocate(n)
        self._at[:n], self._period[:n], self._mean[:n], self._high[:n] = at, period, mean, high
        self._first, self._end = 0, n

    def _allocate(self, live: int) -> None:
        size = live + live // 2 + _SPARE
        self._at = np.empty(size, np.float64)
        self._period, self._mean, self._high = (np.empty(size, np.float32) for _ in range(3))
