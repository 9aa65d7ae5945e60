"""The stretches of time in which a deployment wasted GPU seconds, from its wasted minutes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class WastedMinute:
    """A minute in which a deployment wasted GPU seconds, on how many GPUs."""

    minute: datetime
    gpus: int
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Wasted minutes without a gap. `gpus`: the most of one minute."""

    since: datetime
    until: datetime
    gpus: int
    gpu_s: float


def stretches_of(minutes: Iterable[WastedMinute], since: datetime, until: datetime) -> list[Stretch]:
    """The stretches of these minutes, which are in order, cut to `since` .. `until`."""
    found: list[Stretch] = []
    for one in minutes:
        begin, end = max(one.minute, since), min(one.minute + _MINUTE, until)
        if found and found[-1].until >= begin:
            last = found.pop()
            found.append(Stretch(last.since, end, max(last.gpus, one.gpus), last.gpu_s + one.gpu_s))
        else:
            found.append(Stretch(begin, end, one.gpus, one.gpu_s))
    return found
