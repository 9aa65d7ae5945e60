"""What a reconcile step answers, as data, and the errors by which the code below it says the same. Does nothing."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until somebody hints at the key again."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look again in `after_s` seconds; no failure."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """It failed in a way that may pass; the loop waits ever longer between attempts.

    Attributes:
        error: one sentence for people.
        cls: the error's class name, for logs and conditions.
    """

    error: str
    cls: str = "RetryableError"


@dataclass(frozen=True, slots=True)
class Terminal:
    """It failed in a way that only a change of the object cures; the loop waits for a new hint."""

    error: str


Outcome: TypeAlias = Done | Requeue | Retry | Terminal


class RetryableError(Exception):
    """A failure that may pass by itself: a lost connection, a busy peer."""

    retryable = True


class TerminalError(Exception):
    """A failure that repeating cannot cure: what is asked for is wrong or gone."""

    retryable = False


class StaleError(Exception):
    """A guarded write found the world changed since it was read. No failure: read again and decide anew."""
