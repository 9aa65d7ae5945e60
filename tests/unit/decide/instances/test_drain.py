"""Draining a worker: replacements start before what serves stops, and a task is never started twice unasked."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import ClaimedWorker, InstanceState, StoredRelocation
from controller.domain.restart_delays import RestartSettings
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot, RolloutState
from support.builders.facts import NOW, deployment, host, instance, process, spec, start
from support.decisions import elsewhere, phases_of, running

WAITS = host(draining=True, drain_until=NOW + timedelta(minutes=20))
DUE = host(draining=True, drain_until=NOW - timedelta(seconds=1))
AT_ONCE = host(draining=True)
OTHER = host("w2")
MOVE = StoredRelocation(1, "old", 1, "", replacement="new", purpose="drain")
TASK = spec(restart="never")


def effects_of(*instances: InstanceState, at: ClaimedWorker = WAITS, **fields: Any) -> DeploymentEffects:
    return decide(deployment(*instances, hosts=(at, OTHER), **fields), RestartSettings())


def stopped(effects: DeploymentEffects) -> set[str]:
    return {s.instance for s in effects.stops} | {r.instance for r in effects.removals}


def replaced(effects: DeploymentEffects) -> list[str | None]:
    """Of each new instance, the one that it replaces before that stops."""
    return [c.replaced.instance if c.replaced is not None else None for c in effects.creates]


def replacement(phase: str, **fields: Any) -> InstanceState:
    one = elsewhere("new", **fields)
    ran = () if phase in ("pending", "scheduled") else (process("running" if phase == "running" else "starting"),)
    claims = () if phase in ("pending", "failed") else one.claims
    return replace(one, phase=instance("x", phase).phase, processes=ran, claims=claims)


@pytest.mark.parametrize("phase", ["running", "unhealthy"])
def test_a_replacement_starts_first(phase: str) -> None:
    effects = effects_of(instance("old", phase, processes=(process(phase),)))
    assert (stopped(effects), replaced(effects)) == (set(), ["old"])
    assert effects.wake_placement


def test_each_drained_replica_gets_one_replacement() -> None:
    effects = effects_of(running("a"), running("b"), elsewhere("c"), spec=spec(replicas=3))
    assert set(replaced(effects)) == {"a", "b"}
    assert stopped(effects) == set()


@pytest.mark.parametrize("phase", ["pending", "scheduled", "starting", "backoff", "failed"])
def test_both_stay_while_the_replacement_is_on_its_way(phase: str) -> None:
    not_before = NOW + timedelta(seconds=10) if phase == "backoff" else None
    effects = effects_of(running("old"), replacement(phase, not_before=not_before), relocations=(MOVE,))
    assert (stopped(effects), effects.creates, effects.relocation_ends) == (set(), [], [])
    assert effects.requeue_after_s is not None


def test_the_old_one_stops_once_the_replacement_runs() -> None:
    effects = effects_of(running("old"), replacement("running"), relocations=(MOVE,))
    assert (stopped(effects), effects.creates) == ({"old"}, [])
    assert [s.reason for s in effects.stops] == ["drained"]
    assert [e.state for e in effects.relocation_ends] == ["moved"]


def test_when_the_time_is_over_the_old_one_stops_and_the_replacement_is_a_replica() -> None:
    effects = effects_of(running("old"), replacement("pending"), at=DUE, relocations=(MOVE,))
    assert (stopped(effects), effects.creates) == ({"old"}, [])
    assert len(effects.relocation_ends) == 1


@pytest.mark.parametrize("at", [DUE, AT_ONCE], ids=["its time is over", "at once"])
def test_without_time_it_stops_and_then_starts_elsewhere(at: ClaimedWorker) -> None:
    effects = effects_of(running("a"), at=at)
    assert (stopped(effects), replaced(effects)) == ({"a"}, [None])


@pytest.mark.parametrize(
    "one",
    [
        instance("a", "starting", processes=(process("starting"),)),
        instance("a", "scheduled"),
        instance("a", "backoff", processes=(process("exited", "exit", 1),), not_before=NOW + timedelta(minutes=1)),
    ],
    ids=["loading", "scheduled", "backoff"],
)
def test_what_serves_nothing_leaves_at_once(one: InstanceState) -> None:
    effects = effects_of(one)
    assert (stopped(effects), replaced(effects)) == ({"a"}, [None])


def test_a_task_that_may_restart_never_runs_twice_at_the_same_time() -> None:
    effects = effects_of(running("a"), spec=spec(restart="on_failure"))
    assert (stopped(effects), replaced(effects)) == ({"a"}, [None])


@pytest.mark.parametrize("phase", ["scheduled", "starting", "running", "unhealthy"])
@pytest.mark.parametrize("at", [WAITS, DUE, replace(WAITS, drain_restarts_tasks=True)])
def test_a_task_runs_until_it_ends(phase: str, at: ClaimedWorker) -> None:
    ran = () if phase == "scheduled" else (process(phase),)
    effects = effects_of(instance("a", phase, processes=ran), at=at, spec=TASK)
    assert (stopped(effects), effects.creates) == (set(), [])


@pytest.mark.parametrize("at", [WAITS, DUE, replace(WAITS, drain_restarts_tasks=True)])
@pytest.mark.parametrize("reason", ["gone", "agent_stopped", "disconnected", "liveness", "start_timeout"])
def test_a_task_whose_end_came_during_the_drain_does_not_run_again(reason: str, at: ClaimedWorker) -> None:
    ended = instance("a", "running", processes=(process("exited", reason, -9),))
    effects = effects_of(ended, at=at, spec=TASK)
    assert phases_of(effects) == ["failed"]
    assert (stopped(effects), effects.creates) == (set(), [])


def test_a_task_whose_drained_worker_is_dead_does_not_run_again() -> None:
    dead = replace(WAITS, phase="lost", confirmed_dead=True)
    effects = effects_of(instance("a", "unreachable", processes=(process("running"),)), at=dead, spec=TASK)
    assert phases_of(effects) == ["failed"]
    assert (stopped(effects), effects.creates) == (set(), [])


def test_a_task_that_was_never_sent_starts_elsewhere() -> None:
    unsent = instance("a", "scheduled", commands=(start("open", sent=False),))
    effects = effects_of(unsent, spec=TASK)
    assert (stopped(effects), len(effects.creates)) == ({"a"}, 1)


def test_a_task_is_stopped_after_the_time_only_where_an_operator_allows_it() -> None:
    effects = effects_of(running("a"), at=replace(DUE, drain_restarts_tasks=True), spec=TASK)
    assert (stopped(effects), len(effects.creates)) == ({"a"}, 1)


@pytest.mark.parametrize(
    ("fields", "gone"),
    [({"preempted_for": "b"}, {"old"}), ({"epoch": 2}, set())],
    ids=["preempted", "restarted"],
)
def test_what_leaves_for_another_reason_has_one_successor(fields: dict[str, Any], gone: set[str]) -> None:
    old = replace(running("old"), **fields)
    effects = effects_of(old, replacement("starting"), relocations=(MOVE,))
    assert stopped(effects) >= gone
    assert [c for c in effects.creates if c.replaced is None] == []


def test_the_end_of_a_drain_ends_its_replacements() -> None:
    effects = effects_of(running("old"), replacement("starting"), at=host(), relocations=(MOVE,))
    assert (stopped(effects), effects.creates) == ({"new"}, [])
    assert [e.state for e in effects.relocation_ends] == ["abandoned"]


@pytest.mark.parametrize("new", [None, replacement("stopping"), replacement("unreachable")])
def test_a_replacement_that_is_gone_gets_a_successor(new: InstanceState | None) -> None:
    instances = (running("old"),) if new is None else (running("old"), new)
    effects = effects_of(*instances, relocations=(MOVE,))
    assert "old" not in stopped(effects)
    after = effects_of(running("old"))
    assert replaced(after) == ["old"]


def test_an_outdated_instance_is_the_rollouts_to_move() -> None:
    effects = effects_of(running("old"), revision=2, spec=spec(replicas=1, update="rolling", env={"A": "b"}))
    assert [one for one in replaced(effects) if one] == []
    assert stopped(effects) == set()


def test_after_a_failed_rollout_the_revision_that_serves_is_replaced() -> None:
    record = RolloutRecord(2, stable=1, state=RolloutState.FAILED, holds=True, reason="rollout_failed")
    effects = effects_of(
        running("old"), revision=2, spec=spec(replicas=1, update="rolling"), rollout=RolloutSnapshot(record)
    )
    assert [(*replaced(effects), c.revision) for c in effects.creates] == [("old", 1)]


def test_a_stopped_deployment_gets_no_replacement() -> None:
    effects = effects_of(running("a"), spec=spec(replicas=0))
    assert (stopped(effects), effects.creates) == ({"a"}, [])


@pytest.mark.parametrize(("number", "started", "soon"), [(2_000, 2_000, False), (2_001, 2_000, True)])
def test_a_step_starts_a_bounded_number_of_replacements_and_the_next_step_follows_at_once(
    number: int, started: int, soon: bool
) -> None:
    effects = effects_of(*(running(f"i{n:04}") for n in range(number)), spec=spec(replicas=number))
    assert (len(effects.creates), stopped(effects)) == (started, set())
    assert effects.requeue_after_s is not None
    assert (effects.requeue_after_s < 1) == soon


def test_a_task_that_outlasts_the_drain_causes_no_further_steps() -> None:
    """Only its own end matters from then on."""
    one = running("a")
    assert effects_of(one, at=WAITS, spec=TASK).requeue_after_s == 20 * 60
    assert effects_of(one, at=DUE, spec=TASK).requeue_after_s is None
