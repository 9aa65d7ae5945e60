"""How an instance uses its GPUs, and the verdict on it. Times are seconds of the database's clock."""

from dataclasses import dataclass
from math import inf
from typing import Final, Literal, TypeAlias

from controller.domain.telemetry.series import MeanSeries, Series

Judgement: TypeAlias = Literal["idle", "busy", "unknown"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One claimed GPU.

    Attributes:
        uuid: of the GPU.
        worker: its name.
        series: its samples.
        own: it is shared, so the samples are of the instance's own processes.
        low_after: it was not low all the time before, by samples that are no longer in `series`.
    """

    uuid: str
    worker: str
    series: Series
    own: bool = False
    low_after: float = -inf


@dataclass(frozen=True, slots=True)
class ClockLeaps:
    """How the database's clock has leapt.

    Attributes:
        forward: (the time after it, its seconds) each: time that did not pass.
        back: (from, until) each: times that came twice, so that a sample of one may hide a gap of the other.
    """

    forward: tuple[tuple[float, float], ...] = ()
    back: tuple[tuple[float, float], ...] = ()

    def lived_until(self, start: float, seconds: float) -> float:
        """The time after `start` until which so many seconds pass, by the leaps that are known now."""
        end = start + seconds
        for at, leapt_s in sorted(self.forward):
            if start < at and at - leapt_s < end:
                end += leapt_s
        return end

    def lived_since(self, end: float, seconds: float) -> float:
        """The time before `end` since which so many seconds have passed."""
        start = end - seconds
        for at, leapt_s in sorted(self.forward, reverse=True):
            if start < at:
                start -= leapt_s
        return start

    def twice_s(self, start: float, end: float) -> float:
        """The seconds between these times that came twice, at most."""
        return sum(max(min(end, until) - max(start, since), 0.0) for since, until in self.back)


NO_LEAPS: Final = ClockLeaps()


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """How one epoch of an instance uses its GPUs.

    Attributes:
        phase: of the instance.
        running_since: None if it is not running yet.
        gpus: its claimed GPUs.
        requests: of each rank that reports any: `high` is the most requests at once, `mean` the number that came.
        mean: the mean of all GPUs, as kept from look to look; None if it is computed anew.
        leaps: of the database's clock.
    """

    phase: str
    running_since: float | None
    gpus: tuple[GpuUse, ...]
    requests: tuple[Series, ...] = ()
    mean: MeanSeries | None = None
    leaps: ClockLeaps = NO_LEAPS


@dataclass(frozen=True, slots=True)
class Verdict:
    """Idle, busy or unknown, with its reason.

    Attributes:
        low_since: since when everything was read and low; never before the end of a gap.
        due_at: when it will be idle if its samples stay low.
    """

    verdict: Judgement
    reason: str
    message: str
    low_since: float | None = None
    due_at: float | None = None
