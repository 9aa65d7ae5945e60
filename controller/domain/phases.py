"""Phases and their legal edges as data: the reconciler that takes each edge, and the cause.

`docs/states.md` is generated from these tables. An edge that is missing here raises.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final


class IllegalTransitionError(Exception):
    """A phase change that the table lacks: a defect in the code, never a state of the world."""


class InstancePhase(StrEnum):
    """The state of one instance."""

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
    """The state of a deployment, derived from its instances."""

    PENDING = "pending"
    PROGRESSING = "progressing"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPED = "stopped"
    ASLEEP = "asleep"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DELETING = "deleting"


class WorkerPhase(StrEnum):
    """Whether a worker can be used. The operator's `cordoned` and `draining` are separate flags."""

    JOINING = "joining"
    READY = "ready"
    UNREACHABLE = "unreachable"
    LOST = "lost"


P = InstancePhase
# A process may exist in these phases.
LIVE: Final = frozenset({P.SCHEDULED, P.STARTING, P.RUNNING, P.UNHEALTHY, P.BACKOFF})

# An instance holds claims in exactly these phases.
HOLDS_CLAIMS: Final = LIVE | {P.UNREACHABLE, P.REPLACED, P.STOPPING}
FINAL: Final = frozenset({P.SUCCEEDED, P.FAILED})
# The phase that follows from a live process's state.
PHASE_OF_STATE: Final = {"starting": P.STARTING, "running": P.RUNNING, "unhealthy": P.UNHEALTHY}


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two phases."""

    by: str  # the reconciler that takes it
    on: str  # the cause


_instances = partial(Edge, "instances")
_workers = partial(Edge, "workers")
_COMMITTED: Final = Edge("placement", "the placement pass commits its claims")
_NO_NEED: Final = _instances("the analysis fails for good; a changed spec tries again")
_EXIT: Final = _instances("its process ends and is restarted, after a delay if that was its fault or repeats")
_COMPLETED: Final = _instances("its process exits with code 0 and `restart` is `never` or `on_failure`")
_OUT_OF_RETRIES: Final = _instances(
    "its process fails and `restart` allows no further attempt, or its engine refuses its arguments again"
)
_SILENT: Final = _instances("its worker is unreachable, lost or deleted")
_STOP: Final = _instances("delete, stop, scale-down, policy, drain, preemption, relocation or a new revision")
_STOP_WITHOUT_CLAIMS: Final = _instances("a stop; an instance without claims is removed at once instead")

INSTANCE_EDGES: Final[Mapping[InstancePhase, Mapping[InstancePhase, Edge]]] = {
    P.PENDING: {
        P.ANALYZING: _instances("the need of its revision is not known yet"),
        P.SCHEDULED: _COMMITTED,  # the need is known already
        P.FAILED: _NO_NEED,
        P.STOPPING: _STOP_WITHOUT_CLAIMS,
    },
    P.ANALYZING: {
        P.PENDING: Edge("instances, placement", "the analysis is retried later, or the instance fits nowhere now"),
        P.SCHEDULED: _COMMITTED,
        P.FAILED: _NO_NEED,
        P.STOPPING: _STOP_WITHOUT_CLAIMS,
    },
    P.SCHEDULED: {
        P.STARTING: _instances("the agent reports its process"),
        P.PENDING: _instances("the agent refuses to start it"),
        P.UNREACHABLE: _SILENT,
        P.STOPPING: _STOP,
    },
    P.STARTING: {
        P.RUNNING: _instances("its probe succeeds"),
        P.BACKOFF: _instances("its process ends, makes no progress, or the agent refuses the restart"),
        P.SUCCEEDED: _COMPLETED,
        P.FAILED: _OUT_OF_RETRIES,
        P.UNREACHABLE: _SILENT,
        P.STOPPING: _STOP,
    },
    P.RUNNING: {
        P.UNHEALTHY: _instances("its probe fails, it generates nothing for its requests, or its GPU is lost"),
        P.BACKOFF: _EXIT,
        P.SUCCEEDED: _COMPLETED,
        P.FAILED: _OUT_OF_RETRIES,
        P.UNREACHABLE: _SILENT,
        P.STOPPING: _STOP,
    },
    P.UNHEALTHY: {
        P.RUNNING: _instances("its probe succeeds again, it generates again, or its lost GPU is back"),
        P.BACKOFF: _instances("its process ends, or is killed because its probe keeps failing"),
        P.SUCCEEDED: _COMPLETED,  # a task may end while its probe fails
        P.FAILED: _OUT_OF_RETRIES,
        P.UNREACHABLE: _SILENT,
        P.STOPPING: _STOP,
    },
    P.BACKOFF: {
        P.STARTING: _instances("its delay is over: the next epoch starts on the same worker"),
        P.PENDING: _instances("its delay is over after every third failure, or its worker cannot be used"),
        P.UNREACHABLE: _SILENT,
        P.STOPPING: _STOP,
    },
    P.UNREACHABLE: {
        P.SCHEDULED: _instances("its worker returns and its start command is still on the way"),
        P.STARTING: _instances("its worker returns and reports the process as starting"),
        P.RUNNING: _instances("its worker returns and reports the process as running"),
        P.UNHEALTHY: _instances("its worker returns and reports a failing probe"),
        P.BACKOFF: _instances("its worker returns and reports that the process ended"),
        P.SUCCEEDED: _COMPLETED,
        P.FAILED: _instances("no retry is left, or its worker is dead and `restart` is `never`"),
        P.REPLACED: _instances("its worker is lost and its substitute is committed"),
        P.STOPPING: _STOP,
    },
    P.REPLACED: {P.STOPPING: _instances("its worker returns")},
    P.SUCCEEDED: {P.STOPPING: _STOP_WITHOUT_CLAIMS},
    P.FAILED: {P.STOPPING: _STOP_WITHOUT_CLAIMS},
    P.STOPPING: {
        P.SUCCEEDED: _instances("it is a task that is drained or preempted, and its process exits with code 0"),
    },
}

# The end of every instance's row, from any phase.
REMOVED: Final = _instances("it must stop and none of its processes can still run; claims and row go together")

W = WorkerPhase
WORKER_EDGES: Final[Mapping[WorkerPhase, Mapping[WorkerPhase, Edge]]] = {
    W.JOINING: {
        W.READY: _workers("its first full report"),
        W.UNREACHABLE: _workers("it falls silent after its first report, or the operator confirms it dead"),
    },
    W.READY: {
        W.UNREACHABLE: _workers("silent for 15 s (5 s after a dropped connection, at once when its agent shuts down)"),
    },
    W.UNREACHABLE: {
        W.READY: _workers("it is connected and reports again"),
        W.LOST: _workers("silent for 60 s while the breaker is closed, or the operator confirms it dead"),
    },
    W.LOST: {W.READY: _workers("it is connected and reports again")},
}

# When a deployment is in a phase: the first condition that holds, in this order.
DEPLOYMENT_PHASES: Final[Mapping[DeploymentPhase, str]] = {
    DeploymentPhase.DELETING: "it was deleted and instances are still stopping",
    DeploymentPhase.ASLEEP: "`replicas.min` is 0, no request wants it, and no instance is left; a request wakes it",
    DeploymentPhase.STOPPED: "no replica is wanted and no instance is left",
    DeploymentPhase.SUCCEEDED: "every instance has succeeded",
    DeploymentPhase.RUNNING: "as many instances as wanted run the newest revision, and none is stopping",
    DeploymentPhase.FAILED: "every instance has failed or succeeded, and at least one has failed",
    DeploymentPhase.DEGRADED: "an instance is unhealthy, in backoff, unreachable or failed, too few of them run, "
    "or the rollout of the newest revision has failed or was aborted",
    DeploymentPhase.PROGRESSING: "instances are analyzing, scheduled, starting, stopping or being replaced",
    DeploymentPhase.PENDING: "its instances are pending and none runs",
}


def check_instance_edge(instance: str, old: InstancePhase, new: InstancePhase) -> None:
    """Raises IllegalTransitionError where the table has no edge from `old` to `new`."""
    if new not in INSTANCE_EDGES[old]:
        raise IllegalTransitionError(f"instance {instance}: {old} -> {new}")


def check_worker_edge(worker: str, old: WorkerPhase, new: WorkerPhase) -> None:
    """Raises IllegalTransitionError where the table has no edge from `old` to `new`."""
    if new not in WORKER_EDGES[old]:
        raise IllegalTransitionError(f"worker {worker}: {old} -> {new}")
