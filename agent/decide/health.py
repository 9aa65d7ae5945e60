"""Whether a process is starting, running or unhealthy, and when it must be killed. Pure."""

from dataclasses import dataclass, replace
from typing import Final, Literal

# Lines of its log are progress for so many start timeouts after the spawn: an engine that only repeats itself ends.
MOST_START_TIMEOUTS: Final = 12


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """`failures` in a row make a process unhealthy; a timeout kills it. Times in seconds."""

    failures: int
    start_timeout_s: float
    liveness_timeout_s: float


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """The health of one process."""

    state: Literal["starting", "running", "unhealthy"]  # as it is reported
    progress_s: float  # when it last logged, or was spawned
    ready: bool = False  # whether it has answered a probe
    failures: int = 0  # failed probes in a row
    unhealthy_s: float | None = None  # when it became unhealthy; None while it is not
    # it takes requests and generates nothing. Only a sign that it generates ends this, no answered probe
    stalled: bool = False
    spawned_s: float | None = None  # when its process began; None: unknown


def after_probe(health: ProcessHealth, limits: HealthLimits, *, answered: bool | None, now_s: float) -> ProcessHealth:
    """The health after one probe. A failure before the first answer changes nothing: the process is still starting.

    A probe that could not be made (`answered` None) changes nothing either.
    """
    if answered is None:
        return health
    if answered and health.stalled:
        return replace(health, failures=0)
    if answered:
        return replace(health, state="running", ready=True, failures=0, unhealthy_s=None)
    if not health.ready:
        return health
    failures = health.failures + 1
    if failures < limits.failures:
        return replace(health, failures=failures)
    since = now_s if health.unhealthy_s is None else health.unhealthy_s
    return replace(health, state="unhealthy", failures=failures, unhealthy_s=since)


def after_stall(health: ProcessHealth, *, now_s: float) -> ProcessHealth:
    """The health of a process that generates nothing. While it starts, this says nothing."""
    if not health.ready or health.stalled:
        return health
    since = now_s if health.unhealthy_s is None else health.unhealthy_s
    return replace(health, state="unhealthy", stalled=True, unhealthy_s=since)


def after_progress(health: ProcessHealth, limits: HealthLimits) -> ProcessHealth:
    """The health of a process that was seen to generate. A failing probe stands."""
    if not health.stalled:
        return health
    if health.failures >= limits.failures:
        return replace(health, stalled=False)
    return replace(health, state="running", stalled=False, unhealthy_s=None)


def kill_reason(
    health: ProcessHealth, limits: HealthLimits, now_s: float
) -> Literal["start_timeout", "liveness"] | None:
    """Why the process must be killed now; None: it need not be."""
    if not health.ready and now_s - health.progress_s > limits.start_timeout_s:
        return "start_timeout"
    if not health.ready and only_logs(health, limits, now_s):
        return "start_timeout"
    if health.unhealthy_s is not None and now_s - health.unhealthy_s > limits.liveness_timeout_s:
        return "liveness"
    return None


def only_logs(health: ProcessHealth, limits: HealthLimits, now_s: float) -> bool:
    """Whether a process that has never answered has logged for longer than that counts as progress."""
    return health.spawned_s is not None and now_s - health.spawned_s > MOST_START_TIMEOUTS * limits.start_timeout_s
