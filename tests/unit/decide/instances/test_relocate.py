"""Relocations: the replacement starts first; whatever fails, as many instances run as are wanted."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceState, StoredRelocation
from controller.domain.restart_delays import RestartSettings
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot, RolloutState
from support.builders.facts import NOW, deployment, host, instance, process, spec

SOON_S = 0.01
OLD = instance("old", "running", processes=(process("running"),))
BEGUN = StoredRelocation(1, "old", 1, "w2", replacement="new")


def replacement_in(phase: str, **fields: Any) -> InstanceState:
    processes = (process("running" if phase == "running" else "starting"),)
    return instance(
        "new", phase, age_s=5, processes=processes if phase not in ("pending", "scheduled") else (), **fields
    )


def effects_of(*instances: InstanceState, relocation: StoredRelocation = BEGUN, **fields: Any) -> DeploymentEffects:
    return decide(deployment(*instances, relocations=(relocation,), **fields), RestartSettings())


def stopped(effects: DeploymentEffects) -> set[str]:
    return {s.instance for s in effects.stops} | {r.instance for r in effects.removals}


def test_a_replacement_is_created_first() -> None:
    effects = effects_of(OLD, relocation=replace(BEGUN, replacement=""))
    assert [c.relocation for c in effects.creates] == [1]
    assert (stopped(effects), effects.relocation_ends, effects.wake_placement) == (set(), [], True)
    assert [f.reason for f in effects.events] == ["relocating"]


@pytest.mark.parametrize("phase", ["pending", "scheduled", "starting"])
def test_both_stay_while_the_replacement_starts(phase: str) -> None:
    effects = effects_of(OLD, replacement_in(phase))
    assert (effects.creates, stopped(effects), effects.relocation_ends) == ([], set(), [])
    assert effects.requeue_after_s is not None


def test_the_old_one_stops_when_the_replacement_runs() -> None:
    effects = effects_of(OLD, replacement_in("running"))
    assert (stopped(effects), effects.creates) == ({"old"}, [])
    assert [(e.id, e.state) for e in effects.relocation_ends] == [(1, "moved")]
    assert {f.reason for f in effects.events} == {"relocated", "stopping"}
    old = replace(OLD, phase=effects.phase_changes[0].to, stop_reason="relocated")
    after = decide(deployment(old, replacement_in("running")), RestartSettings())
    assert after.creates == [], "the replacement is the replica now"


@pytest.mark.parametrize(
    "new",
    [
        replacement_in("backoff"),
        replacement_in("unhealthy"),
        replacement_in("failed"),
        replace(replacement_in("pending"), created_at=NOW - timedelta(seconds=61)),
    ],
    ids=["exits", "not healthy", "failed", "its place is taken"],
)
def test_a_failed_replacement_stops(new: InstanceState) -> None:
    effects = effects_of(OLD, new)
    assert (stopped(effects), effects.creates) == ({"new"}, [])
    assert [e.state for e in effects.relocation_ends] == ["abandoned"]


def test_a_missing_replacement_ends_the_relocation() -> None:
    effects = effects_of(OLD)
    assert (effects.creates, stopped(effects)) == ([], set())
    assert [e.state for e in effects.relocation_ends] == ["abandoned"]


@pytest.mark.parametrize("fields", [{"spec": spec(movable=False)}, {"revision": 2, "spec": spec(env={"A": "b"})}])
def test_a_changed_deployment_keeps_its_instances(fields: dict[str, Any]) -> None:
    effects = effects_of(OLD, replacement_in("starting"), **fields)
    assert "new" in stopped(effects)
    assert [e.state for e in effects.relocation_ends] == ["abandoned"]


def test_a_replacement_becomes_a_replica_when_the_old_one_is_gone() -> None:
    for old in ((), (replace(OLD, epoch=2, claims=()),)):
        effects = effects_of(*old, replacement_in("starting"))
        assert [e.state for e in effects.relocation_ends] == ["abandoned"]
    effects = effects_of(replacement_in("starting"))
    assert (stopped(effects), effects.creates) == (set(), [])


def test_a_deletion_stops_both() -> None:
    assert stopped(effects_of(OLD, replacement_in("starting"), deleted_at=NOW)) == {"old", "new"}


def test_scaling_down_meanwhile_leaves_no_surplus() -> None:
    effects = effects_of(OLD, replacement_in("starting"), spec=spec(replicas=0))
    assert stopped(effects) >= {"old"}


@pytest.mark.parametrize(
    ("purpose", "age_s", "state"),
    [
        ("restart", 30, "moved"),
        ("restart", 29, None),
        ("restart", 0, None),
        ("restart", -9, None),  # the clock was set back
        ("drain", 1, "moved"),
        ("plan", 1, "moved"),
    ],
)
def test_a_restart_replaces_as_a_rollout_does(purpose: Any, age_s: float, state: str | None) -> None:
    new = replace(replacement_in("running"), phase_since=NOW - timedelta(seconds=age_s))
    settled = RolloutSnapshot(RolloutRecord(1, 1, RolloutState.COMPLETE))
    fields: dict[str, Any] = {"spec": spec(update="rolling", rollout={"ready_for": 30}), "rollout": settled}
    drained = host(draining=True, drain_until=NOW + timedelta(seconds=99)) if purpose == "drain" else host()
    effects = effects_of(OLD, new, relocation=replace(BEGUN, purpose=purpose), hosts=(drained,), **fields)
    assert [end.state for end in effects.relocation_ends] == ([state] if state else [])
    if state is None:
        assert effects.requeue_after_s == 30 - max(age_s, 0)


@pytest.mark.parametrize(
    ("phase", "age_s", "ends"),
    [("pending", 59, False), ("pending", 60, True), ("analyzing", 59, False), ("analyzing", 60, True)],
)
def test_a_planned_replacement_has_a_minute_to_be_placed(phase: str, age_s: float, ends: bool) -> None:
    new = replace(replacement_in(phase), created_at=NOW - timedelta(seconds=age_s))
    effects = effects_of(OLD, new)
    assert bool(effects.relocation_ends) is ends
    assert effects.requeue_after_s == (None if ends else 30)


@pytest.mark.parametrize("phase", ["stopping", "unreachable", "replaced"])
def test_a_replacement_that_leaves_frees_the_way_for_another(phase: str) -> None:
    drained = host(draining=True, drain_until=NOW + timedelta(seconds=99))
    effects = effects_of(OLD, replacement_in(phase), relocation=replace(BEGUN, purpose="drain"), hosts=(drained,))
    assert [end.state for end in effects.relocation_ends] == ["abandoned"]
    assert f"its replacement is {phase}" in effects.relocation_ends[0].message
    assert effects.requeue_after_s == SOON_S


def test_a_drain_that_ends_keeps_the_old_one() -> None:
    effects = effects_of(OLD, replacement_in("starting"), relocation=replace(BEGUN, purpose="drain"))
    assert [(end.state, end.message) for end in effects.relocation_ends] == [
        ("abandoned", "old stays: its worker is no longer drained")
    ]
    assert stopped(effects) == {"new"}
    assert "relocation_abandoned" in {event.reason for event in effects.events}


def test_a_relocation_of_an_earlier_start_is_over() -> None:
    effects = effects_of(OLD, relocation=replace(BEGUN, epoch=2, replacement=""))
    assert [(end.state, end.message) for end in effects.relocation_ends] == [
        ("abandoned", "old no longer runs as it did when its relocation was planned")
    ]
    assert effects.creates == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"message": "full"}, " (full)"),
        ({"reason": "exit"}, " (exit)"),
        ({"message": "full", "reason": "exit"}, " (full)"),
        ({}, ""),
    ],
)
def test_a_failed_replacement_gives_its_cause(fields: dict[str, str], text: str) -> None:
    new = replace(replacement_in("failed"), **fields)
    assert effects_of(OLD, new).relocation_ends[0].message == f"old stays: its replacement is failed{text}"
