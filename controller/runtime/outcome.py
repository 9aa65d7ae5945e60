"""Outcomes of a reconcile step as data, and the errors that stand for the same outcomes below it."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until the next hint for the key."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Run the key again in `after_s` seconds; not a failure."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """The step failed in a way that may pass; the loop retries with a growing backoff.

    Attributes:
        error: one sentence for people.
        cls: the error's class name, for logs and conditions.
        counts: whether it may be the key's own fault, so that repeated ones quarantine the key.
    """

    error: str
    cls: str = "RetryableError"
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Terminal:
    """The step failed in a way that only a change of the object cures; the loop waits for a new hint."""

    error: str


Outcome: TypeAlias = Done | Requeue | Retry | Terminal


class RetryableError(Exception):
    """A failure that may pass by itself: a lost connection, a busy peer."""

    retryable = True


class TerminalError(Exception):
    """A failure that repeating cannot cure: the request is invalid, or its object is gone."""

    retryable = False


class StaleError(Exception):
    """A guarded write found rows changed since they were read. Not a failure: read again and decide again."""
