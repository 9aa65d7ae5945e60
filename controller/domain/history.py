"""The past of instances: their claims, and the minutes of the GPUs that they claimed."""

from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.domain.series import Times, Values

MINUTE_S: Final = 60.0


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
        """Those that begin at `begin` or later and end at `end` or earlier."""
        first = int(np.searchsorted(self.at, begin + MINUTE_S))
        last = int(np.searchsorted(self.at, end, side="right"))
        return Minutes(self.at[first:last], self.high[first:last], self.covered_s[first:last])


class MinuteColumns(NamedTuple):
    """The minutes of a track, oldest first, as they are stored. `minute`: since 1970; `mean`, `high` in percent."""

    minute: NDArray[np.int64]
    mean: Values
    high: Values
    covered_s: Values

    def begin_within(self, begin: float, end: float) -> "MinuteColumns":
        """Those that begin at `begin` or later, and before `end`."""
        first, last = (int(np.searchsorted(self.minute, ceil(time / MINUTE_S))) for time in (begin, end))
        part = slice(first, last)
        return MinuteColumns(self.minute[part], self.mean[part], self.high[part], self.covered_s[part])

    def peaks(self) -> Minutes:
        """Without the means, by their ends in seconds."""
        return Minutes((self.minute * MINUTE_S + MINUTE_S).astype(np.float64), self.high, self.covered_s)


NO_MINUTES: Final = Minutes(np.empty(0), np.empty(0, np.float32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class PastClaim:
    """A claim on a GPU. Times in seconds. `running_since` None: that epoch never ran, as far as is known."""

    track: Track
    worker: str
    epoch: int
    share: float  # of the GPU
    began: float
    ended: float
    running_since: float | None
    model: str = ""  # of the GPU
