"""Which samples are in a window, how much of it they cover, and where its gaps are. Pure. Times in seconds.

This is the one definition of coverage: verdicts, evidence, messages and replays use it. `store/telemetry/minutes.py`
has the same in SQL, for graphs and minutes. A sample covers the seconds that were really read, `since` to `at`. Time
without a sample, or with a sample of unknown value, is uncovered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.telemetry.series import Series, Times, Values

GAP_S: Final = 2.0  # uncovered time that is longer is a gap: the agents cut their periods by the same limit
_DATED_S: Final = 0.25  # an error of a sample's time: two clocks are read over a connection to date it
_TINY_S: Final = 1e-6
_FRESH_PERIODS: Final = 2
_FRESH_AT_MOST_S: Final = 30.0
_FRESH_AT_LEAST_S: Final = 5.0  # a sample takes a second or two from the agent to its verdict


def is_fresh(at: float, period_s: float, now: float) -> bool:
    """Whether telemetry flows, with its newest sample at `at`: two periods, 30 s at most."""
    return now - at <= max(min(_FRESH_PERIODS * period_s, _FRESH_AT_MOST_S), _FRESH_AT_LEAST_S)


def silent_since(series: Sequence[Series], now: float) -> float | None:
    """The oldest of the newest known samples of series in which telemetry does not flow; None if it flows in all.

    No series may be empty.
    """
    newest = [(newest_known(s), float(s.period[-1])) for s in series]
    return min((at for at, period_s in newest if not is_fresh(at, period_s, now)), default=None)


def newest_known(series: Series) -> float:
    """The end of the newest sample of known value, else the start of the series. The series must not be empty."""
    if not np.isnan(series.high[-1]):
        return float(series.at[-1])
    known = np.flatnonzero(~np.isnan(series.high))
    return float(series.at[known[-1]]) if len(known) else float(series.since[0])


def end_of(series: Sequence[Series], now: float) -> float:
    """The end of the window: the newest samples while all are fresh, else now. No series may be empty."""
    return min(float(s.at[-1]) for s in series) if silent_since(series, now) is None else now


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of known value, of age [0, window) at `end`. `since`: the start of the time that each covers."""

    start: float
    end: float
    at: Times
    since: Times
    mean: Values
    high: Values
    before: float  # the end of the last sample before the window, else the start
    unknown: int  # samples of unknown value

    @property
    def covered_s(self) -> float:
        """Seconds of the window that samples cover. Samples that follow one another are dated with a small error."""
        begins = np.concatenate([(self.before,), self.at[:-1]])
        joined = np.where(self.since - begins <= _DATED_S, self.since - np.maximum(begins, self.start), 0.0)
        return self._read_s + float(joined.sum())

    @property
    def _read_s(self) -> float:
        return float((self.at - self.since).sum())

    def covers(self, seconds: float) -> bool:
        """Whether samples cover `seconds` of the window. Cheaper than `covered_s`."""
        needed_s = seconds - _TINY_S
        return self._read_s >= needed_s or self.covered_s >= needed_s

    def gaps(self) -> list[tuple[float, float]]:
        """The uncovered times of more than two seconds, oldest first; the first may have started before the window."""
        begins = np.concatenate([(self.start,), self.at])
        ends = np.concatenate([self.since, (self.end,)])
        long = np.flatnonzero(ends - begins > GAP_S)
        return [(float(begins[n]) if n else self.before, float(ends[n])) for n in long]


def window_of(series: Series, end: float, window_s: float) -> Window:
    """The window of `window_s` seconds that ends at `end`."""
    start = end - window_s
    first, last = (int(n) for n in np.searchsorted(series.at, (start, end), side="right"))
    at, since = series.at[first:last], np.maximum(series.since[first:last], start)
    mean, high = series.mean[first:last], series.high[first:last]
    known = ~np.isnan(high)
    unknown = len(high) - int(np.count_nonzero(known))
    if unknown:
        at, since, mean, high = at[known], since[known], mean[known], high[known]
    before = float(series.at[first - 1]) if first else start
    return Window(start, end, at, since, mean, high, before, unknown)


def requests_in(window: Window) -> int:
    """The number of requests in the window. Those that were in flight all the time are counted once."""
    if not len(window.high):
        return 0
    return int(max(np.nansum(window.mean), window.high.max()))


def low_after(series: Series, minimum: float, before: float) -> float:
    """The end of the last use or gap among the samples that end before that time; infinitely long ago if none."""
    n = int(np.searchsorted(series.at, before))
    at, since, high = series.at[:n], series.since[:n], series.high[:n]
    used = np.flatnonzero(~(high < minimum))  # what is unknown is not known to be low
    gaps = np.flatnonzero(since[1:] - at[:-1] > GAP_S)
    return float(max(at[used[-1]] if len(used) else -np.inf, since[gaps[-1] + 1] if len(gaps) else -np.inf))


def covered_since(series: Series, after: float) -> float:
    """The end of the last gap after that time, up to the newest sample; the time itself if there is none.

    What came before the first sample is not known here: it counts as covered.
    """
    first = max(int(np.searchsorted(series.at, after, side="right")), 1)
    at, since, high = series.at, series.since[first:], series.high[first:]
    known = ~np.isnan(high)
    if bool(known.all()):
        begins = at[first - 1 : -1]
    else:
        at, since = at[first:][known], since[known]
        begins = np.concatenate([series.at[first - 1 : first], at[:-1]])
    gaps = np.flatnonzero(since - np.maximum(begins, after) > GAP_S)
    return float(since[gaps[-1]]) if len(gaps) else after
