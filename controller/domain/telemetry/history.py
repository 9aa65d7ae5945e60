"""The past of instances: their claims, and the minutes of the GPUs that they claimed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.domain.telemetry.series import Times, Values

MINUTE_S: Final = 60.0
_MINUTE_US: Final = 60_000_000
_US: Final = 1e6
_MINUTE = timedelta(minutes=1)


class Track(NamedTuple):
    """A GPU. `own`: the instance shares it, so the figures are of the instance's processes alone."""

    device: str
    own: bool


class Minutes(NamedTuple):
    """The minutes of a track, oldest first, as columns. `at`: their ends in seconds; `high` in percent."""

    at: Times
    high: Values
    covered_s: Values

    def between(self, begin: float, end: float) -> "Minutes":
        """Minutes that start at `begin` or later and end at `end` or earlier."""
        first = int(np.searchsorted(self.at, begin + MINUTE_S))
        last = int(np.searchsorted(self.at, end, side="right"))
        return Minutes(self.at[first:last], self.high[first:last], self.covered_s[first:last])


class MinuteColumns(NamedTuple):
    """The stored minutes of a track, oldest first. `minute`: since 1970; `mean`, `high` in percent."""

    minute: NDArray[np.int64]
    mean: Values
    high: Values
    covered_s: Values

    def begin_within(self, begin: float, end: float) -> "MinuteColumns":
        """Minutes that start at `begin` or later, and before `end`."""
        first, last = (int(np.searchsorted(self.minute, ceil(time / MINUTE_S))) for time in (begin, end))
        part = slice(first, last)
        return MinuteColumns(self.minute[part], self.mean[part], self.high[part], self.covered_s[part])

    def peaks(self) -> Minutes:
        """The minutes without their means."""
        return Minutes((self.minute * MINUTE_S + MINUTE_S).astype(np.float64), self.high, self.covered_s)


NO_MINUTES: Final = Minutes(np.empty(0), np.empty(0, np.float32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class PastClaim:
    """A claim on a GPU. Times in seconds. `running_since` None: the epoch is not known to have run."""

    track: Track
    worker: str
    epoch: int
    share: float  # of the GPU
    started: float
    ended: float
    running_since: float | None
    model: str = ""  # of the GPU


class ClaimedSeconds(NamedTuple):
    """The seconds of one claim, not weighted by its share."""

    known: float
    used: float
    wasted: float


class MinuteSums:
    """Sums over ranges of minutes. A minute counts with its covered seconds, and at most with its claimed seconds."""

    def __init__(self, minutes: MinuteColumns) -> None:
        self._at_us = minutes.minute * _MINUTE_US
        self._mean = minutes.mean
        self._high = minutes.high
        self._covered_s = minutes.covered_s.astype(np.float64)

    def of_claim(self, started_us: int, ended_us: int, minimum: float) -> ClaimedSeconds:
        """The seconds in a range of microseconds since 1970. Minutes below `minimum` percent are wasted."""
        first = int(np.searchsorted(self._at_us, started_us - _MINUTE_US, side="right"))
        last = int(np.searchsorted(self._at_us, ended_us, side="left"))
        if first >= last:
            return ClaimedSeconds(0.0, 0.0, 0.0)
        seconds = self._covered_s[first:last].copy()
        for edge in {0, last - first - 1}:  # only these minutes may be claimed in part
            at_us = int(self._at_us[first + edge])
            claimed_us = min(ended_us, at_us + _MINUTE_US) - max(started_us, at_us)
            seconds[edge] = min(float(seconds[edge]), claimed_us / _US)
        wasted = seconds[self._high[first:last] < minimum]
        return ClaimedSeconds(
            float(seconds.sum()), float((seconds * self._mean[first:last]).sum() / 100), float(wasted.sum())
        )


@dataclass(frozen=True, slots=True)
class WastedMinute:
    """A minute in which a deployment wasted GPU seconds, on how many GPUs."""

    minute: datetime
    gpus: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Wasted minutes without a gap. `gpus`: the maximum of its minutes."""

    since: datetime
    until: datetime
    gpus: int
    gpu_s: float


def stretches_of(minutes: Iterable[WastedMinute], since: datetime, until: datetime) -> list[Stretch]:
    """The stretches of ordered minutes, cut to `since` .. `until`."""
    stretches: list[Stretch] = []
    for wasted in minutes:
        begin, end = max(wasted.minute, since), min(wasted.minute + _MINUTE, until)
        if stretches and stretches[-1].until >= begin:
            last = stretches.pop()
            stretches.append(Stretch(last.since, end, max(last.gpus, wasted.gpus), last.gpu_s + wasted.gpu_s))
        else:
            stretches.append(Stretch(begin, end, wasted.gpus, wasted.gpu_s))
    return stretches
