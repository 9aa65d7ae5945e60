"""Samples of one GPU, or of one instance on it, in order of time.

A sample covers the seconds that were really read: from `since` until `at`, and never time before the previous sample.
Samples may arrive in any order and repeatedly. A full series grows by half and drops trimmed samples, so it takes at
most about 1.5 times the size of its samples (28 bytes each).
"""

from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.float64]
Values: TypeAlias = NDArray[np.float32]
_SPARE: Final = 16
_ALWAYS: Final = -np.inf


class Series:
    """Samples sorted by time (seconds of the database's clock); unknown values are NaN.

    Its columns are views, valid until the next `put`, `extend` or `trim`.
    """

    __slots__ = ("_at", "_end", "_first", "_high", "_mean", "_period", "_since", "rebuilt")

    def __init__(self) -> None:
        self.rebuilt = 0  # number of changes other than samples at the end
        self._first = self._end = 0
        self._allocate(0)

    def __len__(self) -> int:
        return self._end - self._first

    @property
    def at(self) -> Times:
        """The end of each sample."""
        return self._at[self._first : self._end]

    @property
    def since(self) -> Times:
        """The start of the time that each sample covers; never before the end of the previous sample."""
        return self._since[self._first : self._end]

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

    def put(self, at: float, period_s: float, mean: float, high: float, read_s: float | None = None) -> None:
        """Adds a sample that ends at `at`. Of two samples of one time the higher values count.

        `mean`, `high`: percent; NaN: unknown. `read_s`: seconds that were read, up to `at`; None: all of the period.
        """
        if self._end == len(self._at):
            self._grow()
        n = self._end
        since = at - (period_s if read_s is None else read_s)
        if n > self._first and at <= self._at[n - 1]:
            k = self._first + int(np.searchsorted(self.at, at))
            if self._at[k] == at:
                self._merge(k, since, period_s, mean, high)
                return
            self.rebuilt += 1
            for column in self._columns:
                column[k + 1 : n + 1] = column[k:n].copy()
            self._since[k + 1] = max(self._since[k + 1], at)
            n = k
        if n > self._first:
            since = max(since, self._at[n - 1])
        self._at[n], self._since[n] = at, since
        self._period[n], self._mean[n], self._high[n] = period_s, mean, high
        self._end += 1

    def _merge(self, k: int, since: float, period_s: float, mean: float, high: float) -> None:
        before = self._at[k - 1] if k > self._first else -np.inf
        merged = (
            min(self._since[k], max(since, before)),
            max(self._period[k], np.float32(period_s)),
            np.fmax(self._mean[k], np.float32(mean)),
            np.fmax(self._high[k], np.float32(high)),
        )
        present = (self._since[k], self._period[k], self._mean[k], self._high[k])
        # A merged value is unknown only where both were.
        if any(a != b and not isnan(a) for a, b in zip(merged, present, strict=True)):
            self.rebuilt += 1
            self._since[k], self._period[k], self._mean[k], self._high[k] = merged

    def extend(self, rows: Iterable[tuple[float, float, float, float, float | None]]) -> None:
        """Adds samples: (at, period_s, mean, high, read_s) each, as `put` takes them."""
        samples = list(rows)
        if not samples:
            return
        fresh = np.array(
            [(at, p if read is None else read, p, m, h) for at, p, m, h, read in samples], dtype=np.float64
        )
        held = np.stack([self.at, self.at - self.since, self.period, self.mean, self.high], axis=1)
        together = np.concatenate([held, fresh])
        at, group = np.unique(together[:, 0], return_inverse=True)
        merged = np.full((len(at), 5), np.nan)
        for n in (1, 2, 3, 4):
            np.fmax.at(merged[:, n], group, together[:, n])
        since = at - merged[:, 1]
        since[1:] = np.maximum(since[1:], at[:-1])
        self._first = self._end = 0
        self._allocate(len(at))
        self.append(at, since, merged[:, 2], merged[:, 3], merged[:, 4])
        self.rebuilt += 1

    def append(self, at: Times, since: Times, period: Any, mean: Any, high: Any) -> None:
        """Adds samples after the last, in order of time, that cover no time before it."""
        while self._end + len(at) > len(self._at):
            self._grow(len(at))
        new = slice(self._end, self._end + len(at))
        self._at[new], self._since[new], self._period[new], self._mean[new], self._high[new] = (
            at, since, period, mean, high,
        )  # fmt: skip
        self._end += len(at)

    def trim(self, before: float) -> None:
        """Drops samples older than `before`, except the newest of them: it shows whether a gap follows."""
        if len(self) > 1 and self._at[self._first + 1] < before:
            self._first += int(np.searchsorted(self.at, before)) - 1

    @property
    def _columns(self) -> tuple[Any, ...]:
        return (self._at, self._since, self._period, self._mean, self._high)

    def _grow(self, more: int = 0) -> None:
        n, held = len(self), (self.at, self.since, self.period, self.mean, self.high)
        self._allocate(n + more)
        for column, values in zip(self._columns, held, strict=True):
            column[:n] = values
        self._first, self._end = 0, n

    def _allocate(self, live: int) -> None:
        size = live + live // 2 + _SPARE
        self._at, self._since = np.empty(size, np.float64), np.empty(size, np.float64)
        self._period, self._mean, self._high = (np.empty(size, np.float32) for _ in range(3))


class MeanSeries:
    """The mean of the highest values of some series. Time that one of them does not cover has no sample.

    Incremental: only the time since the last call is computed, unless an older sample arrived since.
    """

    __slots__ = ("_rebuilt", "_series", "_upto", "sources")

    def __init__(self, sources: Sequence[Series]) -> None:
        self.sources = tuple(sources)
        self._series = Series()
        self._upto: float = _ALWAYS
        self._rebuilt: list[int] = [s.rebuilt for s in self.sources]

    def read(self) -> Series:
        """The mean up to the earliest of the newest samples of all series. Valid until the next change."""
        if not all(len(s) for s in self.sources):
            return Series()
        rebuilt = [s.rebuilt for s in self.sources]
        if rebuilt != self._rebuilt:
            self._series, self._upto, self._rebuilt = Series(), _ALWAYS, rebuilt
        upto = min(float(s.at[-1]) for s in self.sources)
        if upto > self._upto:
            self._add(self._upto, upto)
            self._upto = upto
        self._series.trim(max(float(s.at[0]) for s in self.sources))
        return self._series

    def _add(self, after: float, upto: float) -> None:
        parts = _by_timeline([_part(s, after, upto) for s in self.sources])
        period = max(float(s.period[-1]) for s in self.sources)
        if len(parts) == 1:
            at, since, total = parts[0]
            since = np.maximum(since, after)
        else:
            at, since, total = _sum(parts, after, upto)
        known = ~np.isnan(total)
        mean = total[known] / len(self.sources)
        self._series.append(at[known], since[known], period, mean, mean)


_Part: TypeAlias = tuple[Times, Times, Any]  # at, since, sum of the values


def _part(series: Series, after: float, upto: float) -> _Part:
    """The samples that cover any of the time; the last may end after it."""
    at = series.at
    first = int(np.searchsorted(at, after, side="right"))
    last = min(int(np.searchsorted(at, upto, side="left")) + 1, len(at))
    return at[first:last], series.since[first:last], series.high[first:last]


def _by_timeline(parts: Sequence[_Part]) -> list[_Part]:
    """The sums of parts that cover the same times: GPUs of one host are read together."""
    sums: list[_Part] = []
    for at, since, value in parts:
        for n, (at_n, since_n, total) in enumerate(sums):
            if np.array_equal(at, at_n) and np.array_equal(since, since_n):
                sums[n] = at_n, since_n, total + value
                break
        else:
            sums.append((at, since, value.astype(np.float64)))
    return sums


def _sum(parts: Sequence[_Part], after: float, upto: float) -> _Part:
    """The sum of step functions over the time between any two edges; NaN if a part does not cover it."""
    edges = np.unique(np.concatenate([(upto,), *(part[n] for part in parts for n in (0, 1))]))
    edges = np.concatenate([[after] if after > _ALWAYS else [], edges[(edges > after) & (edges <= upto)]])
    total = np.zeros(max(len(edges) - 1, 0))
    for at, since, value in parts:
        n = np.searchsorted(at, edges[1:])
        sample = np.minimum(n, len(at) - 1)
        covered = (n < len(at)) & (edges[:-1] >= since[sample])
        total += np.where(covered, value[sample], np.nan)
    return edges[1:], edges[:-1], total
