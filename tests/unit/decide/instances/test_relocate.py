"""Relocations: the replacement starts first; whatever fails, as many instances run as are wanted."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceFacts, RelocationFacts
from controller.domain.restart_delays import RestartSettings
from support.builders.facts import NOW, deployment, instance, process, spec

OLD = instance("old", "running", processes=(process("running"),))
BEGUN = RelocationFacts(1, "old", 1, "w2", replacement="new")


def replacement_in(phase: str, **fields: Any) -> InstanceFacts:
    processes = (process("running" if phase == "running" else "starting"),)
    return instance(
        "new", phase, age_s=5, processes=processes if phase not in ("pending", "scheduled") else (), **fields
    )


def effects_of(*instances: InstanceFacts, relocation: RelocationFacts = BEGUN, **fields: Any) -> DeploymentEffects:
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
def test_a_failed_replacement_stops(new: InstanceFacts) -> None:
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
