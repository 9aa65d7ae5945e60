"""A deployment's phase, reason and conditions."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.decide.instances.decide import decide
from controller.domain.access.grants import Grant
from support.builders.facts import NOW, deployment, instance, process, spec
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
