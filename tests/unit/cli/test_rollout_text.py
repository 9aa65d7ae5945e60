"""When a wait for a rollout is over, and what is told of it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cli.text.rollouts import history_rows, rollout_fields, rollout_state
from cli.waiting.states import Target, WaitState, wait_state
from schemas.api.deployments import DeploymentView, RevisionView
from schemas.api.view import from_plain

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
W = WaitState


def view(rollout: dict[str, Any] | None = None, **status: Any) -> DeploymentView:
    base: dict[str, Any] = {
        "phase": "progressing", "ready": 4, "wanted": 4, "observed_generation": 2, "revision": 2,
        "conditions": [{"type": "UpToDate", "status": "true"}],
    }  # fmt: skip
    if rollout is not None:
        base["rollout"] = {"state": "progressing", "revision": 2, "stable": 1, "since": NOW, **rollout}
    return from_plain(DeploymentView, {
        "name": "chat", "uid": "u", "generation": 2, "created_at": NOW, "spec": {"engine": "simulated"},
        "status": base | status,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        (view({"message": "1 of 4 replicas run revision 2"}), W.WAITING, "1 of 4 replicas run revision 2"),
        (view({"state": "complete", "stable": 2}), W.DONE, "revision 2 is rolled out"),
        (view({"state": "complete", "revision": 1}), W.WAITING, ""),
        (view({"state": "failed", "reason": "rollout_failed", "message": "why"}), W.FAILED, "rollout undo chat"),
        (view({"state": "aborted", "reason": "rollout_aborted"}), W.FAILED, "rollout_aborted"),
        (view({"state": "failed", "revision": 1}), W.WAITING, ""),
        (view({}, reason="no_free_gpus", message="no GPU is free"), W.WAITING, "no GPU is free"),
        (view({}, phase="asleep", wanted=0), W.DONE, "its next replica runs revision 2"),
        (view({}, observed_generation=1), W.WAITING, "not observed yet"),
        (view(phase="running"), W.DONE, "revision 2 is rolled out"),
        (view(phase="running", conditions=[{"type": "UpToDate", "status": "false"}]), W.WAITING, "running 4/4"),
        (view(phase="failed", message="why"), W.FAILED, "failed - why"),
    ],
)
def test_the_state_of_a_rollout(given: DeploymentView, state: WaitState, words: str) -> None:
    found, line = rollout_state(given, "u")
    assert (found, words in line) == (state, True), line


def test_another_deployment_of_the_name_ends_the_wait() -> None:
    assert rollout_state(view({}), "before") == (W.FAILED, "chat: was deleted")


@pytest.mark.parametrize("state", ["failed", "aborted"])
def test_a_wait_for_an_apply_ends_where_its_rollout_stands(state: str) -> None:
    found, line = wait_state(Target("chat", "u", 2), view({"state": state}, phase="degraded"))
    assert (found, "gpuward rollout undo chat" in line) == (W.FAILED, True)


def test_describe_tells_of_a_rollout_under_way_alone() -> None:
    fields = dict(rollout_fields(view({"weight": 10, "requests": 50, "errors": 1, "paused": True}), NOW))
    assert fields["Revision"] == "2, before it 1"
    assert fields["Requests"] == "10 % to revision 2"
    assert fields["Errors"] == "1 of 50 requests"
    assert "paused" in fields["State"]
    assert rollout_fields(view({"state": "complete"}), NOW) == ()
    assert rollout_fields(view(), NOW) == ()


def test_history_is_a_row_for_each_revision() -> None:
    one = RevisionView(revision=2, created_at=NOW, applied_at=NOW, actor="key:ops", newest=True, instances=3,
                       spec=view().spec)  # fmt: skip
    ((number, _, actor, instances, state, _),) = history_rows([one], NOW)
    assert (number, actor, instances, state) == ("2", "key:ops", "3", "newest")


def test_a_plan_tells_how_instances_would_be_replaced(gpuward, api):
    way = "a new revision: at most 3 instances, at least 2 available; the oldest go first"
    api.canned["plan"] = {"items": [], "changes": {"chat": "replace"}, "rollouts": {"chat": way}}
    manifest = "kind: Deployment\nname: chat\nengine: simulated\n"
    assert f"deployment/chat: {way}" in gpuward("plan", "-f", "-", stdin=manifest).stdout.splitlines()
