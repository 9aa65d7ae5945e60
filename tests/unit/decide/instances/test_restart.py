"""Restarts on a user's request: all instances start once more, within the bounds of a rollout."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.domain.effects import DeploymentEffects
from controller.domain.instances import InstanceState, StoredRelocation
from controller.domain.phases import InstancePhase
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot, RolloutState
from support.builders.facts import NOW, instance, process, spec
from support.builders.rollouts import RollingWorld, rolled_out
from support.decisions import effects_of, running

FAILED = process("exited", "exit", 1)


def stopped(effects: DeploymentEffects) -> set[str]:
    return {s.instance for s in effects.stops} | {r.instance for r in effects.removals}


def restarted(world: RollingWorld) -> RollingWorld:
    """Plays a restart to its end; every instance was replaced."""
    before = set(world.instances)
    world.restart().play(120)
    assert before.isdisjoint(world.instances)
    assert world.running() == len(world.instances) == world.replicas
    assert world.relocations == []
    return world


@pytest.mark.parametrize("bounds", [(1, 0), (0, 1), (1, 1), (2, 0), (0, 3), (3, 2)])
@pytest.mark.parametrize("capacity_spare", [0, 3])
def test_a_rolling_restart_keeps_its_bounds(bounds: tuple[int, int], capacity_spare: int) -> None:
    surge, unavailable = bounds
    if not unavailable and not capacity_spare:
        return  # nothing can move on full hosts
    rollout = {"surge": surge, "unavailable": unavailable, "ready_for": 2}
    world = rolled_out(rollout=rollout, capacity=4 + capacity_spare)
    restarted(world)
    assert world.least_ready >= 4 - unavailable
    assert world.most_in_all <= 4 + surge
    assert world.revision == 1


def test_without_rolling_one_instance_restarts_after_another() -> None:
    world = RollingWorld(update="recreate", capacity=4)
    world.play(20)
    world.begin_bounds()
    restarted(world)
    assert (world.least_ready, world.most_in_all) == (3, 4)


def test_a_single_replica_serves_on_while_its_replacement_starts() -> None:
    world = rolled_out(replicas=1, rollout={"surge": 1, "unavailable": 0, "ready_for": 3})
    restarted(world)
    assert world.least_ready == 1


def test_a_new_revision_meanwhile_replaces_all() -> None:
    world = rolled_out(rollout={"surge": 1, "ready_for": 2}).restart()
    world.play(4).apply().play(120)
    assert len(world.of(2)) == len(world.instances) == world.running() == 4
    assert world.least_ready >= 4


@pytest.mark.parametrize("bounds", [(1, 0), (1, 1), (2, 0), (3, 2)])
@pytest.mark.parametrize("after_s", range(14))
def test_a_restart_during_a_rollout_shares_its_bounds(bounds: tuple[int, int], after_s: int) -> None:
    surge, unavailable = bounds
    world = rolled_out(rollout={"surge": surge, "unavailable": unavailable, "ready_for": 2}, capacity=8)
    world.apply().play(after_s)
    world.restart().play(150)
    assert len(world.of(2)) == len(world.instances) == world.running() == 4
    assert world.least_ready >= 4 - unavailable
    assert world.most_in_all <= 4 + surge


@pytest.mark.parametrize("phase", ["succeeded", "failed"])
@pytest.mark.parametrize("restart", ["never", "on_failure", "always"])
def test_what_has_ended_is_created_again(phase: str, restart: str) -> None:
    effects = effects_of(instance("a", phase, restarts_now=True), spec=spec(restart=restart))
    assert (stopped(effects), len(effects.creates)) == ({"a"}, 1)


@pytest.mark.parametrize("phase", ["starting", "unhealthy"])
def test_what_serves_nothing_stops_at_once(phase: str) -> None:
    one = instance("a", phase, processes=(process(phase),), restarts_now=True)
    assert stopped(effects_of(one, spec=spec(replicas=2, update="rolling"))) == {"a"}


def test_a_running_task_never_runs_twice_at_the_same_time() -> None:
    fields: dict[str, Any] = {"spec": spec(restart="never")}
    effects = effects_of(running("a", restarts_now=True), **fields)
    assert (stopped(effects), effects.creates) == ({"a"}, [])
    stopping = replace(running("a"), phase=InstancePhase.STOPPING, stop_reason="new_revision", reason="restarted")
    assert effects_of(stopping, **fields).creates == []


def test_a_restart_ends_a_backoff() -> None:
    waiting = instance("a", "backoff", processes=(FAILED,), not_before=NOW + timedelta(minutes=4), failures=2)
    assert effects_of(waiting).restarts == []
    effects = effects_of(replace(waiting, restarts_now=True))
    assert [r.instance for r in effects.restarts] == ["a"]


def test_a_pending_instance_is_tried_now() -> None:
    effects = effects_of(instance("a", "pending", not_before=NOW + timedelta(minutes=4), restarts_now=True))
    assert (stopped(effects), effects.creates, effects.wake_placement) == (set(), [], True)


def test_what_was_pending_already_keeps_nothing_from_its_restart() -> None:
    waits = instance("b", "pending", restarts_now=True)
    effects = effects_of(running("a", restarts_now=True), waits, spec=spec(replicas=2))
    assert stopped(effects) == {"a"}


def test_a_stopped_deployment_is_not_restarted() -> None:
    effects = effects_of(running("a", restarts_now=True), spec=spec(replicas=0))
    assert (stopped(effects), effects.creates) == ({"a"}, [])


ROLLING: dict[str, Any] = {"update": "rolling", "rollout": {"surge": 1, "unavailable": 0, "ready_for": 30}}


def asked_for(name: str, age_s: float = 60, **fields: Any) -> InstanceState:
    return running(name, age_s=age_s, restarts_now=True, **fields)


def replaced(effects: DeploymentEffects) -> list[str]:
    """The instances for which replacements are created."""
    return [create.replaced.instance for create in effects.creates if create.replaced is not None]


@pytest.mark.parametrize(
    ("surge", "others", "begun", "expected"),
    [
        (1, [], 0, ["old"]),  # the oldest first
        (2, [], 0, ["old", "new"]),
        (5, [], 0, ["old", "new"]),
        (2, [], 1, ["new"]),  # one is under way
        (1, [], 1, []),
        (1, [instance("s", "stopping", stop_reason="new_revision", processes=(process("running"),))], 0, []),
        (2, [instance("s", "stopping", stop_reason="new_revision", processes=(process("running"),))], 0, ["old"]),
        (1, [instance("s", "stopping", stop_reason="scaled_down", processes=(process("running"),))], 0, ["old"]),
    ],
)
def test_replacements_of_a_restart_keep_within_the_surge(
    surge: int, others: list[InstanceState], begun: int, expected: list[str]
) -> None:
    old, new = asked_for("old", 90), asked_for("new", 80)
    rollout = {"surge": surge, "ready_for": 30}
    facts: dict[str, Any] = {"spec": spec(replicas=2, update="rolling", rollout=rollout)}
    copies = [instance("copy", "starting", processes=(process("starting"),))] * begun
    facts["relocations"] = (StoredRelocation(1, "old", 1, "", "copy", "restart"),) * begun
    effects = effects_of(old, new, *others, *copies, **facts)
    assert replaced(effects) == expected
    assert {c.replaced.purpose for c in effects.creates if c.replaced is not None} <= {"restart"}
    told = [one.message.split()[0] for one in effects.events if "restarted by its user" in one.message]
    assert told == expected


def test_a_missing_replica_comes_before_the_replacement_of_a_restart() -> None:
    effects = effects_of(asked_for("a"), asked_for("b"), spec=spec(replicas=3, **ROLLING))
    assert (len(effects.creates), replaced(effects)) == (2, ["a"])


@pytest.mark.parametrize(
    ("ages", "unavailable", "expected"),
    [
        ((90, 80), 1, {"a"}),
        ((90, 80), 2, {"a", "b"}),
        ((30, 80), 1, {"b"}),  # the oldest
        ((29, 80), 1, set()),  # one of two is not ready yet
        ((29, 80), 2, {"b"}),
    ],
)
def test_only_ready_servers_let_one_stop_for_its_restart(
    ages: tuple[int, int], unavailable: int, expected: set[str]
) -> None:
    rollout = {"surge": 0, "unavailable": unavailable, "ready_for": 30}
    some = [asked_for(name, age_s) for name, age_s in zip("ab", ages, strict=True)]
    effects = effects_of(*some, spec=spec(replicas=2, update="rolling", rollout=rollout))
    assert stopped(effects) == expected
    assert replaced(effects) == []


@pytest.mark.parametrize(("update", "age_s", "expected"), [("rolling", 5, set()), ("recreate", 5, {"a"})])
def test_without_rolling_a_server_is_ready_at_once(update: str, age_s: float, expected: set[str]) -> None:
    rollout = {"rollout": {"surge": 0, "unavailable": 1, "ready_for": 30}} if update == "rolling" else {}
    some = (asked_for("a", 60), running("b", age_s=age_s))
    assert stopped(effects_of(*some, spec=spec(replicas=2, update=update, **rollout))) == expected


def test_a_clock_that_was_set_back_makes_nothing_ready() -> None:
    some = (asked_for("a", 60), running("b", age_s=-50))
    rollout = {"surge": 0, "unavailable": 1, "ready_for": 30}
    assert stopped(effects_of(*some, spec=spec(replicas=2, update="rolling", rollout=rollout))) == set()


def test_a_restart_is_looked_at_again() -> None:
    assert effects_of(asked_for("a"), spec=spec(replicas=2)).requeue_after_s == 30
    assert (
        effects_of(
            asked_for("a"), instance("b", "starting", processes=(process("running"),)), spec=spec(replicas=2, **ROLLING)
        ).requeue_after_s
        == 0.01
    )
    waits = instance("b", "pending", age_s=1, not_before=NOW, restarts_now=True)
    effects = effects_of(waits, spec=spec(replicas=1))
    assert (effects.requeue_after_s, effects.wake_placement) == (30, False)
    assert effects_of(replace(waits, not_before=NOW + timedelta(seconds=1))).wake_placement
    assert not effects_of(replace(waits, not_before=NOW + timedelta(seconds=1), restarts_now=False)).wake_placement


def test_an_outdated_instance_is_its_rollouts_to_replace() -> None:
    effects = effects_of(asked_for("a"), revision=2, spec=spec(replicas=1, **ROLLING))
    assert (replaced(effects), [create.revision for create in effects.creates]) == ([], [2])


@pytest.mark.parametrize(
    ("stable", "holds", "expected"), [(1, True, ["a"]), (1, False, []), (3, True, []), (None, True, [])]
)
def test_a_restart_takes_the_revision_to_which_a_failed_rollout_has_gone_back(
    stable: int | None, holds: bool, expected: list[str]
) -> None:
    record = RolloutRecord(2, stable, RolloutState.FAILED, holds=holds)
    effects = effects_of(asked_for("a"), revision=2, spec=spec(replicas=1, **ROLLING), rollout=RolloutSnapshot(record))
    assert replaced(effects) == expected
