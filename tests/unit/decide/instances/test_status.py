"""A deployment's phase, reason and conditions."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide, derive_status
from controller.domain.access.grants import Grant
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import Intent
from controller.domain.rollouts import RolloutRecord, RolloutState
from support.builders.facts import NOW, deployment, instance, intent, process, spec
from support.decisions import RUNNING, SETTINGS, effects_of, running


def test_running_instances_of_an_old_revision_are_not_up_to_date() -> None:
    arriving = instance("a", "starting", revision=2, processes=RUNNING)
    effects = effects_of(arriving, running("b"), spec=spec(replicas=2), revision=2, phase="unset")
    assert effects.status is not None
    assert effects.status.ready == 2
    assert effects.status.phase == "progressing"


def test_the_status_gives_the_reason_at_once() -> None:
    effects = effects_of(instance("a", "running", processes=(process("exited", "exit", 3),)))
    assert effects.status is not None
    assert effects.status.phase == "degraded"
    assert effects.status.message == "exited with code 3; restarts in 10 s"
    over = instance("a", "backoff", reason="exit", message="exited with code 3", processes=(process("exited"),))
    effects = effects_of(over)
    assert [r.instance for r in effects.restarts] == ["a"]
    assert effects.status is not None
    assert (effects.status.phase, effects.status.message) == ("progressing", "")


@pytest.mark.parametrize(
    ("phases", "replicas", "restart", "expected"),
    [
        ([], 1, "always", "pending"),
        ([], 0, "always", "stopped"),
        (["pending"], 1, "always", "pending"),
        (["starting"], 1, "always", "progressing"),
        (["running"], 1, "always", "running"),
        (["running", "pending"], 2, "always", "degraded"),
        (["running", "starting"], 2, "always", "progressing"),
        (["running", "backoff"], 2, "always", "degraded"),
        (["succeeded"], 1, "never", "succeeded"),
        (["failed"], 1, "never", "failed"),
        (["failed", "running"], 2, "never", "degraded"),
        (["running", "succeeded"], 2, "never", "running"),
        (["running", "stopping"], 1, "always", "progressing"),  # until it is gone
        (["succeeded", "stopping"], 1, "never", "succeeded"),
        (["failed", "stopping"], 1, "never", "failed"),
        (["starting", "stopping"], 1, "always", "progressing"),
        (["backoff", "stopping"], 1, "always", "degraded"),
        (["pending", "stopping"], 1, "always", "progressing"),
        (["unhealthy"], 1, "always", "degraded"),
        (["analyzing"], 1, "always", "progressing"),
        (["scheduled", "pending"], 2, "always", "progressing"),
        (["succeeded", "failed"], 2, "never", "failed"),
        (["running"], 0, "always", "progressing"),  # they stop
    ],
)
def test_the_deployments_phase(phases, replicas, restart, expected) -> None:
    far = NOW + timedelta(minutes=5)
    some = [
        instance(f"i{n}", p, processes=RUNNING if p == "running" else (), not_before=far if p == "backoff" else None)
        for n, p in enumerate(phases)
    ]
    effects = effects_of(*some, spec=spec(replicas=replicas, restart=restart), phase="unset")
    assert effects.status is not None
    assert effects.status.phase == expected


def test_an_unchanged_status_writes_nothing() -> None:
    first = deployment(running("a"))
    update = decide(first, SETTINGS).status
    assert update is not None
    settled = replace(
        first,
        phase=update.phase,
        ready=update.ready,
        conditions=update.conditions,
        reason=update.reason,
        message=update.message,
    )
    assert not decide(settled, SETTINGS).writes


def test_what_an_earlier_version_took_runs_on_with_a_condition_that_names_the_grant() -> None:
    held = spec(command=(), engine="vllm", model="hf:org/name", env={"LESSOPEN": "|x"})
    facts = deployment(running("a"), spec=held, phase="unset")

    def conditions(granted: frozenset[Grant]) -> dict[str, tuple[str, str, str]]:
        effects = decide(facts, SETTINGS, operators_may=granted)
        assert effects.status is not None
        assert not effects.phase_changes, "nothing is stopped"
        return {one["type"]: (one["status"], one["reason"], one["message"]) for one in effects.status.conditions}

    status, reason, message = conditions(frozenset())["OperatorsMayChange"]
    assert (status, reason) == ("false", "grant_needed")
    assert "env.LESSOPEN" in message
    assert "environment" in message
    assert "OperatorsMayChange" not in conditions(frozenset({Grant.ENVIRONMENT}))


FAILED_ROLLOUT = RolloutRecord(2, 1, RolloutState.FAILED, reason="rollout_failed", message="it did not start")


@pytest.mark.parametrize(
    ("record", "found", "shown"),
    [
        (None, ("no_free_gpus", "full"), ("no_free_gpus", "full")),
        (FAILED_ROLLOUT, ("no_free_gpus", "full"), ("rollout_failed", "it did not start")),
        (replace(FAILED_ROLLOUT, stable=None), ("no_free_gpus", "full"), ("no_free_gpus", "full")),
        (replace(FAILED_ROLLOUT, state=RolloutState.COMPLETE), ("no_free_gpus", "full"), ("no_free_gpus", "full")),
        (replace(FAILED_ROLLOUT, state=RolloutState.PROGRESSING, reason="rolling_out"), ("x", "y"), ("x", "y")),
        (
            replace(FAILED_ROLLOUT, state=RolloutState.PROGRESSING, reason="rolling_out"),
            ("", ""),
            ("rolling_out", "it did not start"),
        ),
        (
            replace(FAILED_ROLLOUT, state=RolloutState.PROGRESSING, reason="rollout_paused"),
            ("x", "y"),
            ("rollout_paused", "it did not start"),
        ),
        (
            replace(FAILED_ROLLOUT, state=RolloutState.PROGRESSING, reason="rollout_blocked"),
            ("x", "y"),
            ("x", "y; it did not start"),
        ),
        (
            replace(FAILED_ROLLOUT, state=RolloutState.PROGRESSING, reason="rollout_blocked"),
            ("x", ""),
            ("x", "it did not start"),
        ),
    ],
)
def test_the_reason_is_an_instances_or_the_rollouts(
    record: RolloutRecord | None, found: tuple[str, str], shown: tuple[str, str]
) -> None:
    some = (running("a", revision=1), instance("b", "pending", revision=2, reason=found[0], message=found[1]))
    facts, effects = deployment(*some, revision=2, spec=spec(replicas=2)), DeploymentEffects()
    derive_status(facts, 2, effects, record)
    assert effects.status is not None
    assert (effects.status.reason, effects.status.message) == shown


@pytest.mark.parametrize(
    ("record", "phase", "reason"),
    [(FAILED_ROLLOUT, "degraded", "rollout_failed"), (None, "progressing", "")],
)
def test_old_replicas_that_all_run_are_not_all_as_applied(
    record: RolloutRecord | None, phase: str, reason: str
) -> None:
    effects = DeploymentEffects()
    derive_status(deployment(running("a"), revision=2), 1, effects, record)
    assert effects.status is not None
    assert (effects.status.phase, effects.status.reason) == (phase, reason)
    current = DeploymentEffects()
    derive_status(deployment(running("a")), 1, current, FAILED_ROLLOUT)
    assert current.status is not None
    assert (current.status.phase, current.status.reason) == ("running", "")


def test_the_status_has_what_this_step_reports() -> None:
    waits = replace(process("starting"), message="downloads 3 of 9 GiB")
    status = effects_of(instance("a", "starting", processes=(waits,))).status
    assert status is not None
    assert (status.phase, status.reason, status.message) == ("progressing", "fetching", "downloads 3 of 9 GiB")


def test_created_instances_count_as_pending() -> None:
    status = effects_of(instance("a", "failed"), spec=spec(replicas=2, restart="never"), phase="unset").status
    assert status is not None
    assert status.phase == "degraded", "one is still to come"
    status = effects_of(instance("a", "succeeded"), spec=spec(replicas=2, restart="never"), phase="unset").status
    assert status is not None
    assert status.phase == "pending"


@pytest.mark.parametrize(
    ("intents", "fields", "shown"),
    [
        ((), {"replicas": 0}, ("stopped", "", "no replicas are wanted")),
        ((intent(),), {}, ("stopped", "stopped", "stopped by user")),
        ((intent("policy", 0, "policy_idle"),), {}, ("stopped", "policy_idle", "stopped by policy")),
        ((intent("user", 1, "limited"), intent("policy", 0, "idle")), {}, ("stopped", "idle", "stopped by policy")),
    ],
)
def test_a_stopped_deployment_has_the_reason_of_its_limit(
    intents: tuple[Intent, ...], fields: dict[str, int], shown: tuple[str, str, str]
) -> None:
    status = effects_of(intents=intents, spec=spec(**fields), phase="unset").status
    assert status is not None
    assert (status.phase, status.reason, status.message) == shown
    stopping = effects_of(instance("a", "stopping", processes=RUNNING), intents=(intent(),), phase="unset").status
    assert stopping is not None
    assert stopping.phase == "progressing"


def test_a_deleted_deployment_counts_what_still_stops() -> None:
    status = effects_of(running("a"), running("b"), deleted_at=NOW, phase="unset").status
    assert status is not None
    assert (status.phase, status.reason, status.message) == ("deleting", "deleted", "2 instances are still stopping")


def test_conditions_keep_the_time_of_their_last_change() -> None:
    earlier = {"type": "Available", "status": "true", "since": "before"}
    other = {"type": "UpToDate", "status": "false", "since": "before"}
    status = effects_of(running("a"), conditions=(earlier, other), phase="unset").status
    assert status is not None
    found = {one["type"]: (one["status"], one["since"], one["reason"]) for one in status.conditions}
    assert found["Available"] == ("true", "before", "")
    assert found["UpToDate"] == ("true", NOW.isoformat(), "")
    assert found["Complete"][0] == "true"
    status = effects_of(instance("a", "pending", revision=1), revision=2, phase="unset").status
    assert status is not None
    reasons = {one["type"]: (one["status"], one["reason"]) for one in status.conditions}
    assert reasons["Available"] == ("false", "no_instance_runs")
    assert reasons["Complete"] == ("false", "0 of 1 run")


@pytest.mark.parametrize(
    ("intents", "reason"),
    [
        ((Intent("autoscaler", 0, "idle_after"),), "asleep"),
        ((Intent("autoscaler", 0, "idle_after"), Intent("policy", 0, "policy_idle")), "policy_idle"),
    ],
)
def test_a_sleeping_deployment_has_the_reason_of_a_policy(intents: tuple[Intent, ...], reason: str) -> None:
    status = effects_of(intents=intents, spec=spec(replicas={"min": 0, "max": 2}), phase="unset").status
    assert status is not None
    assert (status.phase, status.reason, status.message) == ("asleep", reason, "asleep; a request wakes it")
    assert {one["type"]: one["status"] for one in status.conditions}["Complete"] == "true"


def test_a_deletion_without_instances_waits_for_none() -> None:
    effects = effects_of(deleted_at=NOW)
    assert effects.status is not None
    assert (effects.status.phase, effects.status.message) == ("deleting", "")
