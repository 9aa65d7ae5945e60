"""Restarts on a user's request: all instances start once more, within the bounds of a rollout."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.domain.effects import DeploymentEffects
from controller.domain.phases import InstancePhase
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
