"""Which samples are in a window, and how much of it they cover. Pure. Times in seconds.

A sample covers the time since the previous one, up to three sampling periods (at least 30 s). The very first sample
covers its own period. Time without a sample, or with a sample of unknown value, is uncovered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.series import Series, Times, Values

_PERIODS: Final = 3
_AT_LEAST_S: Final = 30.0


def max_covered_s(period_s: float) -> float:
    """The longest time that one sample covers; the newest sample cannot be older while telemetry flows."""
    return max(_PERIODS * period_s, _AT_LEAST_S)


def is_fresh(at: float, period_s: float, now: float) -> bool:
    """Whether telemetry flows, with its newest sample at `at`."""
    return now - at <= max_covered_s(period_s)


def end_of(series: Sequence[Series], now: float) -> float:
    """The end of the window: the newest samples while all are fresh, else now. No series may be empty."""
    newest = [(float(s.at[-1]), float(s.period[-1])) for s in series]
    return min(at for at, _ in newest) if all(is_fresh(at, p, now) for at, p in newest) else now


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of age [0, window) at `end`. `since`: where the time that each covers begins."""

    start: float
    end: float
    at: Times
    since: Times
    mean: Values
    high: Values

    @property
    def covered_s(self) -> float:
        """Seconds of the window that known samples cover."""
        covered = self.at - np.maximum(self.since, self.start)
        return float(covered[~np.isnan(self.high)].sum())


def window_of(series: Series, end: float, window_s: float) -> Window:
    """The window of `window_s` seconds that ends at `end`."""
    start = end - window_s
    first, last = (int(n) for n in np.searchsorted(series.at, (start, end), side="right"))
    at, since = series.at[first:last], _since(series, first, last)
    return Window(start, end, at, since, series.mean[first:last], series.high[first:last])


def _since(series: Series, first: int, last: int) -> Times:
    at = series.at
    before = np.empty(last - first)
    if last > first:
        before[1:] = at[first : last - 1]
        before[0] = at[first - 1] if first else at[0] - series.period[0]
    longest = np.maximum(series.period[first:last] * _PERIODS, _AT_LEAST_S)
    return np.maximum(before, at[first:last] - longest)


@dataclass(frozen=True, slots=True)
class Steps:
    """The mean of several GPUs as a step function: `value` from `since` until `until`, NaN where uncovered."""

    since: Times
    until: Times
    value: Times

    @property
    def covered_s(self) -> float:
        """Seconds in which all GPUs are covered."""
        return float((self.until - self.since)[~np.isnan(self.value)].sum())


def mean_steps(series: Sequence[Series], end: float, window_s: float) -> Steps:
    """The mean of the GPUs' highest values, at each moment of the window."""
    start = end - window_s
    functions = [_function(s, start, end) for s in series]
    edges = np.unique(np.concatenate([(start, end), *(np.concatenate((at, since)) for at, since, _ in functions)]))
    edges = edges[(edges >= start) & (edges <= end)]
    total = np.zeros(len(edges) - 1)
    for at, since, high in functions:
        if not len(at):
            total += np.nan
            continue
        n = np.searchsorted(at, edges[1:])
        sample = np.minimum(n, len(at) - 1)
        covered = (n < len(at)) & (edges[:-1] >= since[sample])
        total += np.where(covered, high[sample], np.nan)
    return Steps(edges[:-1], edges[1:], total / len(series))


def _function(series: Series, start: float, end: float) -> tuple[Times, Times, Values]:
    """The samples that cover any of the window; the last one may have been taken after its end."""
    first = int(np.searchsorted(series.at, start, side="right"))
    last = min(int(np.searchsorted(series.at, end, side="left")) + 1, len(series))
    return series.at[first:last], _since(series, first, last), series.high[first:last]
