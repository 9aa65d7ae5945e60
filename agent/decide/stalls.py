"""Whether an engine has stopped generating while its port answers. Pure.

A slow engine is not stalled. So its own counters of tokens must not move, and its GPUs must be known to be idle, which
excludes a long prefill. Unknown values count in favour of the engine, and so does time without a waiting request.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_COUNTED: Final = 4  # a request counts once it has waited for this part of `after_s`: others are too recent


class Wait(NamedTuple):
    """A complete request without an answer, or without more of it. Start and end in seconds ago.

    `ended` 0: it still waits. Else its caller has left.
    """

    started: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class StallLimits:
    """The least number of unanswered requests and the least time without progress. `requests` 0: never stalled."""

    requests: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Observations of one engine. Times are ages in seconds; None: unknown, or never."""

    waits: Sequence[Wait]
    answered: float | None  # since the last byte of any answer
    counters_still: float | None  # time without a change of its counters of tokens, up to a fresh scrape
    gpus_idle: float | None  # idle time of all its GPUs; None: unknown for one of them, or it has none
    counters_moved: float | None = None  # since the last observed change


def unanswered(evidence: Evidence, limits: StallLimits) -> list[Wait]:
    """The waits since its last activity that are long enough to count."""
    ages = [age for age in (evidence.answered, evidence.counters_still) if age is not None]
    since = min(ages, default=float("inf"))
    waits = (Wait(min(wait.started, since), wait.ended) for wait in evidence.waits)
    return [wait for wait in waits if wait.started - wait.ended >= limits.after_s / _COUNTED]


def is_stalled(evidence: Evidence, limits: StallLimits) -> bool:
    """Whether requests wait, and nothing shows that the engine works on any of them."""
    if not limits.requests or evidence.counters_still is None or evidence.gpus_idle is None:
        return False
    counted = unanswered(evidence, limits)
    if len(counted) < limits.requests or all(wait.ended for wait in counted):
        return False
    return min(_waited(counted), evidence.counters_still, evidence.gpus_idle) >= limits.after_s


def _waited(waits: Iterable[Wait]) -> float:
    """Total time in which at least one of them waited."""
    total, reached = 0.0, float("inf")
    for started, ended in sorted(waits, reverse=True):
        total += max(min(started, reached) - ended, 0.0)
        reached = min(reached, ended)
    return total
