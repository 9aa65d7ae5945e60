"""Seconds of one GPU's minutes that fall into a claim: covered by samples, used, and wasted. Pure.

A minute counts with the seconds that samples cover, and at most with the seconds that were claimed.
"""

from typing import Final, NamedTuple

import numpy as np

from controller.domain.history import MinuteColumns

_MINUTE_US: Final = 60_000_000
_US: Final = 1e6


class ClaimedSeconds(NamedTuple):
    """Of one claim, not weighted by its share."""

    known: float
    used: float
    wasted: float


class MinuteSums:
    """Sums over parts of the minutes.

    Args:
        minutes: of one GPU, or of one instance's use of it.
    """

    def __init__(self, minutes: MinuteColumns) -> None:
        self._at_us = minutes.minute * _MINUTE_US
        self._mean = minutes.mean
        self._high = minutes.high
        self._covered_s = minutes.covered_s.astype(np.float64)

    def of_claim(self, began_us: int, ended_us: int, minimum: float) -> ClaimedSeconds:
        """The seconds from `began_us` to `ended_us`, in microseconds since 1970.

        Args:
            began_us: inclusive.
            ended_us: exclusive.
            minimum: percent below which a minute is wasted.
        """
        first = int(np.searchsorted(self._at_us, began_us - _MINUTE_US, side="right"))
        last = int(np.searchsorted(self._at_us, ended_us, side="left"))
        if first >= last:
            return ClaimedSeconds(0.0, 0.0, 0.0)
        seconds = self._covered_s[first:last].copy()
        for edge in {0, last - first - 1}:  # no other minute is claimed in part
            at_us = int(self._at_us[first + edge])
            claimed_us = min(ended_us, at_us + _MINUTE_US) - max(began_us, at_us)
            seconds[edge] = min(float(seconds[edge]), claimed_us / _US)
        wasted = seconds[self._high[first:last] < minimum]
        return ClaimedSeconds(
            float(seconds.sum()), float((seconds * self._mean[first:last]).sum() / 100), float(wasted.sum())
        )
