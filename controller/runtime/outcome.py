"""Outcomes of a reconcile step as data, and the errors by which deeper code reports the same outcomes."""

import random
from dataclasses import dataclass
from typing import TypeAlias

# 2.0 ** 1024 overflows a float; every sensible maximum is reached before this.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until the next hint for the key."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Runs the key again in `after_s` seconds; not a failure."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """The step failed in a way that may pass; the loop retries with a growing backoff."""

    error: str  # a sentence for people
    cls: str = "RetryableError"  # the error's class name, for logs and conditions
    counts: bool = True  # it may be the key's own fault, so that repeated failures quarantine the key


@dataclass(frozen=True, slots=True)
class Terminal:
    """The step failed until the object changes; the loop waits for a new hint."""

    error: str


Outcome: TypeAlias = Done | Requeue | Retry | Terminal


class RetryableError(Exception):
    """A failure that may pass by itself: a lost connection, a busy peer."""

    retryable = True


class TerminalError(Exception):
    """A failure that no retry can repair: the request is invalid, or its object is gone."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `base_s` up to `max_s`, in seconds."""

    base_s: float
    max_s: float

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.max_s:
            raise ValueError(f"backoff: must have 0 < base_s <= max_s, got base_s={self.base_s}, max_s={self.max_s}")

    def delay_s(self, attempt: int, rng: random.Random) -> float:
        """Returns the delay after the `attempt`-th failure in a row (1 is the first): between 0 and the full step."""
        # Full jitter, because keys that failed together must not be retried together.
        return rng.uniform(0.0, min(self.max_s, self.base_s * 2.0 ** min(max(attempt, 1) - 1, _MAX_DOUBLINGS)))
