"""Whether a process is starting, running or unhealthy, and when it has to be killed for it. Pure."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """When patience ends. `failures` in a row make it unhealthy; times in seconds."""

    failures: int
    start_timeout_s: float
    liveness_timeout_s: float


@dataclass(frozen=True, slots=True)
class Vital:
    """How one process is. `progress_s`: when it last logged or was spawned; `unhealthy_s`: since when it is so."""

    state: Literal["starting", "running", "unhealthy"]
    progress_s: float
    ready: bool = False
    failures: int = 0
    unhealthy_s: float | None = None


def observed(vital: Vital, limits: Limits, *, answered: bool, now_s: float) -> Vital:
    """After one probe. Before the first answer a failure means nothing: it is still starting."""
    if answered:
        return replace(vital, state="running", ready=True, failures=0, unhealthy_s=None)
    if not vital.ready:
        return vital
    failures = vital.failures + 1
    if failures < limits.failures:
        return replace(vital, failures=failures)
    since = now_s if vital.unhealthy_s is None else vital.unhealthy_s
    return replace(vital, state="unhealthy", failures=failures, unhealthy_s=since)


def progressed(vital: Vital, now_s: float) -> Vital:
    """After its log has grown."""
    return replace(vital, progress_s=now_s)


def sentence(vital: Vital, limits: Limits, now_s: float) -> Literal["start_timeout", "liveness"] | None:
    """Why it has to be killed now, or None."""
    if not vital.ready and now_s - vital.progress_s > limits.start_timeout_s:
        return "start_timeout"
    if vital.unhealthy_s is not None and now_s - vital.unhealthy_s > limits.liveness_timeout_s:
        return "liveness"
    return None
