"""The mean of several GPUs at each moment, as one series. In memory; no clock, no verdicts.

It is kept as samples arrive: only the time since the last look is computed, unless an older sample came in between.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from controller.domain.series import Series, Times

_ALWAYS: Final = -np.inf


class MeanSeries:
    """The mean of the highest values of some series. Uncovered wherever one of them is, and then without a sample.

    Args:
        sources: the series, which may grow.
    """

    __slots__ = ("_rebuilt", "_series", "_upto", "sources")

    def __init__(self, sources: Sequence[Series]) -> None:
        self.sources = tuple(sources)
        self._series = Series()
        self._upto: float = _ALWAYS
        self._rebuilt: list[int] = [s.rebuilt for s in self.sources]

    def read(self) -> Series:
        """The mean up to the newest sample of the series that is furthest behind. Valid until the next change."""
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
    """The samples that speak for any of the time; the last one may end after it."""
    at = series.at
    first = int(np.searchsorted(at, after, side="right"))
    last = min(int(np.searchsorted(at, upto, side="left")) + 1, len(at))
    return at[first:last], series.since[first:last], series.high[first:last]


def _by_timeline(parts: Sequence[_Part]) -> list[_Part]:
    """The sums of parts that speak for the same times: GPUs of one host are read together."""
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
    """The sum of step functions over the time between any two edges; NaN where one of them is uncovered."""
    edges = np.unique(np.concatenate([(upto,), *(part[n] for part in parts for n in (0, 1))]))
    edges = np.concatenate([[after] if after > _ALWAYS else [], edges[(edges > after) & (edges <= upto)]])
    total = np.zeros(max(len(edges) - 1, 0))
    for at, since, value in parts:
        n = np.searchsorted(at, edges[1:])
        sample = np.minimum(n, len(at) - 1)
        covered = (n < len(at)) & (edges[:-1] >= since[sample])
        total += np.where(covered, value[sample], np.nan)
    return edges[1:], edges[:-1], total
