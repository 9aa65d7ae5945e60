"""Phases and their legal edges, as data. An edge that is not here raises."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class IllegalTransitionError(Exception):
    """A phase change that the table does not know: a defect, never a state of the world."""


class InstancePhase(StrEnum):
    """Where an instance stands."""

    PENDING = "pending"
    ANALYZING = "analyzing"
    SCHEDULED = "scheduled"
    STARTING = "starting"
    RUNNING = "running"
    UNHEALTHY = "unhealthy"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    REPLACED = "replaced"
    STOPPING = "stopping"


class DeploymentPhase(StrEnum):
    """Derived from the instances."""

    PENDING = "pending"
    PROGRESSING = "progressing"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETING = "deleting"


class WorkerPhase(StrEnum):
    """Whether a worker can be relied upon. Cordoned and draining stand beside it."""

    JOINING = "joining"
    READY = "ready"
    UNREACHABLE = "unreachable"
    LOST = "lost"


P = InstancePhase
_LIVE: Final = frozenset({P.SCHEDULED, P.STARTING, P.RUNNING, P.UNHEALTHY, P.BACKOFF})

# Claims are held in these phases and in no other.
HOLDS_CLAIMS: Final = _LIVE | {P.UNREACHABLE, P.REPLACED, P.STOPPING}
FINAL: Final = frozenset({P.SUCCEEDED, P.FAILED})
# A process may exist in these phases.
LIVE: Final = _LIVE

INSTANCE_EDGES: Final[Mapping[InstancePhase, frozenset[InstancePhase]]] = {
    # pending -> scheduled: the need is known already and is not worked out again.
    P.PENDING: frozenset({P.ANALYZING, P.SCHEDULED, P.FAILED, P.STOPPING}),
    P.ANALYZING: frozenset({P.PENDING, P.SCHEDULED, P.FAILED, P.STOPPING}),
    P.SCHEDULED: frozenset({P.STARTING, P.PENDING, P.BACKOFF, P.UNREACHABLE, P.STOPPING}),
    P.STARTING: frozenset({P.RUNNING, P.BACKOFF, P.SUCCEEDED, P.FAILED, P.UNREACHABLE, P.STOPPING}),
    P.RUNNING: frozenset({P.UNHEALTHY, P.BACKOFF, P.SUCCEEDED, P.FAILED, P.UNREACHABLE, P.STOPPING}),
    # unhealthy -> succeeded|failed: a task may end while its probe fails.
    P.UNHEALTHY: frozenset({P.RUNNING, P.BACKOFF, P.SUCCEEDED, P.FAILED, P.UNREACHABLE, P.STOPPING}),
    P.BACKOFF: frozenset({P.STARTING, P.PENDING, P.FAILED, P.UNREACHABLE, P.STOPPING}),
    # back to what the returned agent reports, or replaced once its substitute is committed
    P.UNREACHABLE: frozenset(
        {P.SCHEDULED, P.STARTING, P.RUNNING, P.UNHEALTHY, P.BACKOFF, P.SUCCEEDED, P.FAILED, P.REPLACED, P.STOPPING}
    ),
    P.REPLACED: frozenset({P.STOPPING}),
    P.SUCCEEDED: frozenset({P.STOPPING}),
    P.FAILED: frozenset({P.STOPPING}),
    P.STOPPING: frozenset(),  # then the row goes
}

W = WorkerPhase
WORKER_EDGES: Final[Mapping[WorkerPhase, frozenset[WorkerPhase]]] = {
    W.JOINING: frozenset({W.READY, W.UNREACHABLE}),
    W.READY: frozenset({W.UNREACHABLE}),
    W.UNREACHABLE: frozenset({W.READY, W.LOST}),
    W.LOST: frozenset({W.READY}),
}


def check_instance_edge(instance: str, old: InstancePhase, new: InstancePhase) -> None:
    """Raises IllegalTransitionError where the table knows no edge from `old` to `new`."""
    if new not in INSTANCE_EDGES[old]:
        raise IllegalTransitionError(f"instance {instance}: {old} -> {new}")


def check_worker_edge(worker: str, old: WorkerPhase, new: WorkerPhase) -> None:
    """Raises IllegalTransitionError where the table knows no edge from `old` to `new`."""
    if new not in WORKER_EDGES[old]:
        raise IllegalTransitionError(f"worker {worker}: {old} -> {new}")
