"""The goals of waits, and when they are over. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # slow to import
    from schemas.api.deployments import DeploymentView
    from schemas.api.instances import InstanceView

HALTED: Final = ("failed", "aborted")  # states of a rollout that stays until a user acts
_ENDED: Final = ("succeeded", "failed")


class Goal(StrEnum):
    """The goal of a wait."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    GONE = "gone"


class WaitState(Enum):
    """The state of a wait."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Target:
    """An applied deployment to wait for."""

    name: str
    uid: str
    generation: int


_OF_PHASE: Final = {
    Goal.RUNNING: {
        "running": WaitState.DONE,
        "succeeded": WaitState.DONE,
        "asleep": WaitState.DONE,  # a request wakes it
        "stopped": WaitState.DONE,  # with 0 wanted replicas; `wait_state` handles other cases
        "failed": WaitState.FAILED,
    },
    Goal.SUCCEEDED: {
        "succeeded": WaitState.DONE,
        "stopped": WaitState.FAILED,
        "failed": WaitState.FAILED,
    },
}


def wait_state(target: Target, view: "DeploymentView | None", goal: Goal = Goal.RUNNING) -> tuple[WaitState, str]:
    """The state of a wait for `running` or `succeeded`, and a line about the deployment's phase."""
    if view is None or view.uid != target.uid or view.deleted_at is not None:
        return WaitState.FAILED, f"{target.name}: was deleted"
    status = view.status
    if status.observed_generation < target.generation:
        return WaitState.WAITING, f"{target.name}: not observed yet"
    reason = status.message or status.reason
    line = f"{target.name}: {status.phase} {status.ready}/{status.wanted}" + (f" - {reason}" if reason else "")
    if goal is Goal.SUCCEEDED and view.spec.restart == "always":
        line = f"{target.name}: never succeeds with `restart: always`; write `restart: never`, or wait for running"
        return WaitState.FAILED, line
    if status.phase == "stopped" and view.spec.replica_bounds[1] > 0:
        line += f"\nit is stopped until you run: gpuward start {target.name}"
        return WaitState.FAILED, line
    rollout = status.rollout
    if rollout is not None and rollout.revision == status.revision and rollout.state in HALTED:
        return WaitState.FAILED, f"{line}\ngo back: gpuward rollout undo {target.name}"
    return _OF_PHASE[goal].get(status.phase, WaitState.WAITING), line


def stopped_line(view: "DeploymentView", instances: "Iterable[InstanceView]") -> str:
    """Why a deployment is not stopped yet; empty: it is stopped."""
    own = (instance for instance in instances if instance.spec.deployment_uid == view.uid)
    left = [instance.name for instance in own if instance.status.phase not in _ENDED]
    if view.status.phase != "stopped":
        return f"{view.name}: {view.status.phase} {view.status.ready}/{view.status.wanted}"
    return f"{view.name}: waiting for the end of {', '.join(sorted(left))}" if left else ""
