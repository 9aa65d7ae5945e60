"""The health of a process (starting, running, unhealthy), and when it must be killed. Pure."""

from dataclasses import dataclass, replace
from typing import Final, Literal

# Output counts as progress for this many start timeouts after the spawn: an engine that only repeats itself ends.
MOST_START_TIMEOUTS: Final = 12


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """`failures` in a row make a process unhealthy; a timeout kills it."""

    failures: int
    start_timeout_s: float
    liveness_timeout_s: float


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """The health of one process. Times are on the agent's clock."""

    state: Literal["starting", "running", "unhealthy"]  # as reported
    progress_s: float  # its last output, or its spawn
    ready: bool = False  # it has answered a probe
    failures: int = 0  # failed probes in a row
    unhealthy_s: float | None = None  # since when it is unhealthy
    # it takes requests and generates nothing. Only generated tokens end this, no answered probe
    stalled: bool = False
    spawned_s: float | None = None  # None: unknown


def after_probe(health: ProcessHealth, limits: HealthLimits, *, answered: bool | None, now_s: float) -> ProcessHealth:
    """A failure before the first answer changes nothing, and neither does an impossible probe (`answered` None)."""
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
    """A process that is not ready yet is not expected to generate."""
    if not health.ready or health.stalled:
        return health
    since = now_s if health.unhealthy_s is None else health.unhealthy_s
    return replace(health, state="unhealthy", stalled=True, unhealthy_s=since)


def after_progress(health: ProcessHealth, limits: HealthLimits) -> ProcessHealth:
    """The process generates. Failing probes still count."""
    if not health.stalled:
        return health
    if health.failures >= limits.failures:
        return replace(health, stalled=False)
    return replace(health, state="running", stalled=False, unhealthy_s=None)


def kill_reason(
    health: ProcessHealth, limits: HealthLimits, now_s: float
) -> Literal["start_timeout", "liveness"] | None:
    """Why the process must be killed now; None if it need not be."""
    if not health.ready and now_s - health.progress_s > limits.start_timeout_s:
        return "start_timeout"
    if not health.ready and only_logs(health, limits, now_s):
        return "start_timeout"
    if health.unhealthy_s is not None and now_s - health.unhealthy_s > limits.liveness_timeout_s:
        return "liveness"
    return None


def only_logs(health: ProcessHealth, limits: HealthLimits, now_s: float) -> bool:
    """Whether a process that has never answered logs for longer than output counts as progress."""
    return health.spawned_s is not None and now_s - health.spawned_s > MOST_START_TIMEOUTS * limits.start_timeout_s
