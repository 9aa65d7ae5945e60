"""Moving what runs: the copy first, then the old one; and whatever goes wrong, as many run as are wanted."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceFacts, RelocationFacts
from controller.domain.restarts import RestartSettings
from support.facts import NOW, deployment, instance, process, spec

OLD = instance("old", "running", processes=(process("running"),))
BEGUN = RelocationFacts(1, "old", 1, "w2", replacement="copy")


def copy_in(phase: str, **fields: Any) -> InstanceFacts:
    processes = (process("running" if phase == "running" else "starting"),)
    return instance(
        "copy", phase, age_s=5, processes=processes if phase not in ("pending", "scheduled") else (), **fields
    )


def plan_of(*instances: InstanceFacts, relocation: RelocationFacts = BEGUN, **fields: Any) -> DeploymentEffects:
    return decide(deployment(*instances, relocations=(relocation,), **fields), RestartSettings())


def stopped(plan: DeploymentEffects) -> set[str]:
    return {s.instance for s in plan.stops} | {r.instance for r in plan.removals}


def test_a_copy_is_made_first() -> None:
    plan = plan_of(OLD, relocation=replace(BEGUN, replacement=""))
    assert [c.relocation for c in plan.creates] == [1]
    assert (stopped(plan), plan.relocation_ends, plan.wake_placement) == (set(), [], True)
    assert [f.reason for f in plan.events] == ["relocating"]


@pytest.mark.parametrize("phase", ["pending", "scheduled", "starting"])
def test_both_stand_while_it_comes_up(phase: str) -> None:
    plan = plan_of(OLD, copy_in(phase))
    assert (plan.creates, stopped(plan), plan.relocation_ends) == ([], set(), [])
    assert plan.requeue_after_s is not None


def test_the_old_one_goes_when_the_copy_runs() -> None:
    plan = plan_of(OLD, copy_in("running"))
    assert (stopped(plan), plan.creates) == ({"old"}, [])
    assert [(e.id, e.state) for e in plan.relocation_ends] == [(1, "moved")]
    assert {f.reason for f in plan.events} == {"relocated", "stopping"}
    old = replace(OLD, phase=plan.phase_changes[0].to, stop_reason="relocated")
    after = decide(deployment(old, copy_in("running")), RestartSettings())
    assert after.creates == [], "the copy is the replica now"


@pytest.mark.parametrize(
    "copy",
    [
        copy_in("backoff"),
        copy_in("unhealthy"),
        copy_in("failed"),
        replace(copy_in("pending"), created_at=NOW - timedelta(seconds=61)),
    ],
    ids=["exits", "not healthy", "failed", "its place is taken"],
)
def test_a_copy_that_comes_to_nothing_goes(copy: InstanceFacts) -> None:
    plan = plan_of(OLD, copy)
    assert (stopped(plan), plan.creates) == ({"copy"}, [])
    assert [e.state for e in plan.relocation_ends] == ["abandoned"]


def test_a_copy_that_is_gone_ends_it() -> None:
    plan = plan_of(OLD)
    assert (plan.creates, stopped(plan)) == ([], set())
    assert [e.state for e in plan.relocation_ends] == ["abandoned"]


@pytest.mark.parametrize("fields", [{"spec": spec(movable=False)}, {"revision": 2, "spec": spec(env={"A": "b"})}])
def test_a_changed_deployment_keeps_what_it_has(fields: dict[str, Any]) -> None:
    plan = plan_of(OLD, copy_in("starting"), **fields)
    assert "copy" in stopped(plan)
    assert [e.state for e in plan.relocation_ends] == ["abandoned"]


def test_a_copy_takes_the_place_of_one_that_went_by_itself() -> None:
    for old in ((), (replace(OLD, epoch=2, claims=()),)):
        plan = plan_of(*old, copy_in("starting"))
        assert [e.state for e in plan.relocation_ends] == ["abandoned"]
    plan = plan_of(copy_in("starting"))
    assert (stopped(plan), plan.creates) == (set(), [])


def test_a_deletion_takes_both() -> None:
    assert stopped(plan_of(OLD, copy_in("starting"), deleted_at=NOW)) == {"old", "copy"}


def test_scaling_down_meanwhile_leaves_no_surplus() -> None:
    plan = plan_of(OLD, copy_in("starting"), spec=spec(replicas=0))
    assert stopped(plan) >= {"old"}
