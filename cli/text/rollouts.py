"""A deployment's rollout as text. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from cli.text.formatting import DASH, age, when
from cli.waiting.states import HALTED, WaitState
from schemas.api.deployments import DeploymentStatus, DeploymentView, RevisionView, RolloutStatus

Fields = Sequence[tuple[str, str]]
_GO_BACK: Final = "go back: gpuward rollout undo"
HISTORY_TITLES: Final = ["REVISION", "APPLIED", "BY", "INSTANCES", "STATE", "MODEL"]


def rollout_state(view: DeploymentView, uid: str) -> tuple[WaitState, str]:
    """The state of a wait for the newest revision, and a line about it. `uid`: of the deployment at the start."""
    status, rollout = view.status, view.status.rollout
    if view.uid != uid or view.deleted_at is not None:
        state, line = WaitState.FAILED, "was deleted"
    elif status.observed_generation < view.generation:
        state, line = WaitState.WAITING, "not observed yet"
    elif rollout is not None and rollout.revision == status.revision and rollout.state in HALTED:
        state, line = WaitState.FAILED, f"{rollout.reason} - {rollout.message}\n{_GO_BACK} {view.name}"
    elif status.wanted == 0 and status.phase in ("asleep", "stopped"):
        state, line = WaitState.DONE, f"{status.phase}; its next replica runs revision {status.revision}"
    elif rollout is not None:
        state, line = _of_rolling(status, rollout)
    else:
        state, line = _of_recreate(status)
    return state, f"{view.name}: {line}"


def _of_rolling(status: DeploymentStatus, rollout: RolloutStatus) -> tuple[WaitState, str]:
    if rollout.revision == status.revision and rollout.state == "complete":
        return WaitState.DONE, f"revision {rollout.revision} is rolled out"
    # the reason of the deployment first: it explains why an instance is pending
    pending = status.message if status.reason != rollout.reason else ""
    return WaitState.WAITING, pending or rollout.message or rollout.state


def _of_recreate(status: DeploymentStatus) -> tuple[WaitState, str]:
    reason = status.message or status.reason
    if status.phase == "failed":
        return WaitState.FAILED, f"failed - {reason}"
    current = any(c.type == "UpToDate" and c.status == "true" for c in status.conditions)
    if current and status.phase in ("running", "succeeded"):
        return WaitState.DONE, f"revision {status.revision} is rolled out"
    return WaitState.WAITING, f"{status.phase} {status.ready}/{status.wanted}" + (f" - {reason}" if reason else "")


def rollout_fields(view: DeploymentView, now: datetime) -> Fields:
    """Titles and values of a rollout's progress; empty once it is complete."""
    rollout = view.status.rollout
    if rollout is None or (rollout.state == "complete" and not rollout.paused):
        return ()
    paused = ", paused" if rollout.paused else ""
    before = f", before it {rollout.stable}" if rollout.stable not in (None, rollout.revision) else ""
    fields = [
        ("State", f"{rollout.state}{paused}, for {age(rollout.since, now)}"),
        ("Revision", f"{rollout.revision}{before}"),
        ("Replicas", f"{rollout.updated} of the new revision, {rollout.available} available"),
        ("Message", rollout.message or DASH),
    ]
    if rollout.weight is not None:
        fields.append(("Requests", f"{rollout.weight} % to revision {rollout.revision}"))
    if rollout.requests:
        fields.append(("Errors", f"{rollout.errors} of {rollout.requests} requests"))
    if rollout.canary_until is not None:
        fields.append(("Canary until", when(rollout.canary_until, now)))
    return fields


def history_rows(revisions: Iterable[RevisionView], now: datetime) -> list[list[str]]:
    return [
        [
            str(view.revision),
            age(view.applied_at, now),
            view.actor or DASH,
            str(view.instances),
            "newest" if view.newest else "stable" if view.stable else DASH,
            view.spec.model or DASH,
        ]
        for view in revisions
    ]
