"""Whether an engine has stopped generating while its port answers. Pure.

A slow engine is not a stalled one. So the engine's own word is needed: its counters of tokens stand still. And its GPUs
must be known to do nothing, which excludes a long prefill. What is not known speaks for the engine, and so does time in
which no request waited.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

_COUNTED: Final = 4  # a request counts once it has waited for this part of the time: others have only just come


class Wait(NamedTuple):
    """A request that the engine has wholly and did not answer, or not continue with. Its begin and end, in seconds ago.

    `ended` 0: it still waits. Else its caller has left.
    """

    began: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class StallLimits:
    """So many requests without an answer, and so long without progress, are needed. `requests` 0: never stalled."""

    requests: int
    after_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one engine. Times are ages in seconds; None: unknown, or never."""

    waits: Sequence[Wait]  # of its requests
    answered: float | None  # since it last gave a byte of any answer
    counters_still: float | None  # for how long its counters of tokens have stood still, up to a fresh look
    # for how long all its GPUs were seen to do nothing; None: one of them is unknown, or it has none
    gpus_idle: float | None
    counters_moved: float | None = None  # since they were seen to have moved


def unanswered(evidence: Evidence, limits: StallLimits) -> list[Wait]:
    """The waits since its last sign that are long enough to count."""
    signs = [age for age in (evidence.answered, evidence.counters_still) if age is not None]
    since = min(signs, default=float("inf"))
    waits = (Wait(min(wait.began, since), wait.ended) for wait in evidence.waits)
    return [wait for wait in waits if wait.began - wait.ended >= limits.after_s / _COUNTED]


def is_stalled(evidence: Evidence, limits: StallLimits) -> bool:
    """Whether requests wait, and nothing at all shows that the engine works on one of them."""
    if not limits.requests or evidence.counters_still is None or evidence.gpus_idle is None:
        return False
    counted = unanswered(evidence, limits)
    if len(counted) < limits.requests or all(wait.ended for wait in counted):
        return False
    return min(_waited(counted), evidence.counters_still, evidence.gpus_idle) >= limits.after_s


def _waited(waits: Iterable[Wait]) -> float:
    """For how long at least one of them waited, in all."""
    total, reached = 0.0, float("inf")
    for began, ended in sorted(waits, reverse=True):
        total += max(min(began, reached) - ended, 0.0)
        reached = min(reached, ended)
    return total
