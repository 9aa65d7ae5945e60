"""Use of GPUs by an instance, and the verdict on it. Times are seconds of the database's clock."""

from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeAlias

from controller.domain.telemetry.series import MeanSeries, Series

Judgement: TypeAlias = Literal["idle", "busy", "unknown"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One claimed GPU."""

    uuid: str
    worker: str  # name
    series: Series
    own: bool = False  # the GPU is shared, so the samples are of the instance's own processes
    low_after: float = -inf  # by trimmed samples, its use was not always low before


@dataclass(frozen=True, slots=True)
class ClockLeaps:
    """Leaps of the database's clock.

    Attributes:
        forward: (the time after it, its seconds) each: time that did not pass.
        back: (from, until) each: times that came twice, so samples of one pass may hide a gap of the other.
    """

    forward: tuple[tuple[float, float], ...] = ()
    back: tuple[tuple[float, float], ...] = ()

    def lived_until(self, start: float, seconds: float) -> float:
        """The time at which `seconds` have passed since `start`, by the known leaps."""
        end = start + seconds
        for at, leapt_s in sorted(self.forward):
            if start < at and at - leapt_s < end:
                end += leapt_s
        return end

    def lived_since(self, end: float, seconds: float) -> float:
        """The time since which `seconds` have passed until `end`."""
        start = end - seconds
        for at, leapt_s in sorted(self.forward, reverse=True):
            if start < at:
                start -= leapt_s
        return start

    def twice_s(self, start: float, end: float) -> float:
        """An upper bound of the seconds between these times that came twice."""
        return sum(max(min(end, until) - max(start, since), 0.0) for since, until in self.back)


NO_LEAPS: Final = ClockLeaps()


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """The GPU use of one epoch of an instance."""

    phase: str
    running_since: float | None  # None: not running yet
    gpus: tuple[GpuUse, ...]
    requests: tuple[Series, ...] = ()  # of each rank that reports any; `high`: the most at once, `mean`: arrivals
    mean: MeanSeries | None = None  # of all GPUs, kept between verdicts; None: it is computed
    leaps: ClockLeaps = NO_LEAPS


@dataclass(frozen=True, slots=True)
class Verdict:
    """Idle, busy or unknown, with its reason."""

    verdict: Judgement
    reason: str
    message: str
    low_since: float | None = None  # start of the time without gaps in which all samples were low
    due_at: float | None = None  # when it will be idle if its samples stay low
