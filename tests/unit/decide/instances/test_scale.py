"""The number of wanted replicas, and which instances stop when there are more."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.domain.instances import Intent
from controller.domain.phases import InstancePhase
from support.builders.facts import NOW, host, instance, intent, process, spec
from support.decisions import effects_of, running


def test_surplus_instances_without_claims_stop_first() -> None:
    some = (running("old", age_s=90), running("new", age_s=10), instance("waits", "pending"))
    effects = effects_of(*some, spec=spec(replicas=2))
    assert [r.instance for r in effects.removals] == ["waits"]
    effects = effects_of(*some, spec=spec(replicas=1))
    assert [r.instance for r in effects.removals] == ["waits"]
    assert [s.instance for s in effects.stops] == ["new"]


@pytest.mark.parametrize(
    ("requests", "wanted", "stopped"),
    [
        ((0, 0, 0), 2, {"new"}),
        ((0, 1, 2), 2, {"old"}),  # the least busy, though it is the oldest
        ((2, 1, 1), 2, {"new"}),  # the newest of those
        ((2, 1, 3), 2, {"middle"}),
        ((3, 0, 0), 1, {"middle", "new"}),
        ((0, 9, 0), 1, {"old", "new"}),  # none that has requests while another has none
        ((1, 2, 3), 0, {"old", "middle", "new"}),
    ],
)
def test_of_several_that_run_the_least_busy_stops_then_the_newest(
    requests: tuple[int, int, int], wanted: int, stopped: set[str]
) -> None:
    some = [
        running(name, age_s=age_s, requests=number)
        for name, age_s, number in zip(("old", "middle", "new"), (90, 50, 10), requests, strict=True)
    ]
    assert {s.instance for s in effects_of(*some, spec=spec(replicas=wanted)).stops} == stopped


def test_what_an_agent_has_seen_decides_between_equals() -> None:
    """A gateway that is silent has requests that no report tells."""
    some = (running("old", age_s=90), running("new", age_s=10, seen_requests=4))
    assert [s.instance for s in effects_of(*some, spec=spec(replicas=1)).stops] == ["old"]
    some = (running("old", age_s=90, requests=1), running("new", age_s=10, seen_requests=4))
    assert [s.instance for s in effects_of(*some, spec=spec(replicas=1)).stops] == ["new"]


def test_a_replica_that_does_not_run_goes_before_an_idle_one() -> None:
    some = (running("idle", age_s=10), instance("starts", "starting", age_s=90))
    assert [s.instance for s in effects_of(*some, spec=spec(replicas=1)).stops] == ["starts"]


@pytest.mark.parametrize(
    "phase", ["pending", "analyzing", "failed", "backoff", "unhealthy", "scheduled", "unreachable", "starting"]
)
@pytest.mark.parametrize("update", ["recreate", "rolling"])
@pytest.mark.parametrize("by", ["manifest", "user", "policy", "autoscaler"])
def test_what_does_not_serve_stops_before_what_does(phase: str, update: str, by: str) -> None:
    """Though it is busier and older, and though an intent names one that serves."""
    idle = instance("idle", phase, age_s=90, requests=9, processes=(process("unhealthy"),))
    if phase == "unreachable":
        idle = replace(idle, claims=tuple(replace(c, worker_id="w2") for c in idle.claims))
    some = (running("a", age_s=10), idle, running("b", age_s=20))
    rolling = {"rollout": {"surge": 1}} if update == "rolling" else {}
    limit = () if by == "manifest" else (Intent(by, 2, "limited", ("a",), 2 if by == "autoscaler" else 0),)
    wanted: object = {"manifest": 2, "autoscaler": {"min": 1, "max": 3}}.get(by, 3)
    effects = effects_of(
        *some, spec=spec(replicas=wanted, update=update, **rolling), intents=limit,
        hosts=(host(), host("w2", phase="unreachable")),
    )  # fmt: skip
    stopped = {c.instance for c in effects.phase_changes if c.to is InstancePhase.STOPPING}
    assert stopped | {r.instance for r in effects.removals} == {"idle"}


@pytest.mark.parametrize(
    ("sooner", "later"),
    [("pending", "failed"), ("failed", "backoff"), ("backoff", "unhealthy"), ("unhealthy", "scheduled"),
     ("unhealthy", "unreachable"), ("scheduled", "starting"), ("unreachable", "starting")],
)  # fmt: skip
def test_of_several_that_do_not_serve_the_furthest_from_serving_stops_first(sooner: str, later: str) -> None:
    """Though it is busier and older."""
    reports = {"failed": "exited", "backoff": "exited", "unhealthy": "unhealthy", "starting": "starting"}
    some = [
        instance(phase, phase, age_s=age_s, requests=number, not_before=NOW + timedelta(seconds=60),
                 processes=(process(reports[phase]),) if phase in reports else ())
        for phase, age_s, number in ((sooner, 90, 9), (later, 10, 0))
    ]  # fmt: skip
    some = [
        replace(i, claims=tuple(replace(c, worker_id="w2") for c in i.claims)) if i.id == "unreachable" else i
        for i in some
    ]
    effects = effects_of(*some, spec=spec(replicas=1), hosts=(host(), host("w2", phase="unreachable")))
    stopped = {c.instance for c in effects.phase_changes if c.to is InstancePhase.STOPPING}
    assert stopped | {r.instance for r in effects.removals} == {sooner}


def test_an_ended_replica_goes_before_one_that_works() -> None:
    some = (running("works", age_s=10), instance("done", "succeeded", age_s=90))
    effects = effects_of(*some, spec=spec(replicas=1, restart="on_failure"))
    assert [r.instance for r in effects.removals] == ["done"]
    assert effects.stops == []


def test_instances_named_by_an_intent_stop_first() -> None:
    """A policy's idle replica, though another one holds less; where fewer go than are named, the one of least worth."""
    limit = Intent("policy", 2, "policy_idle", ("idle", "gone"))
    some = (running("old", age_s=90), running("idle", age_s=50), running("new", age_s=10))
    (move,) = effects_of(*some, spec=spec(replicas=3), intents=(limit,)).phase_changes
    assert (move.instance, move.stop_reason) == ("idle", "policy_idle")


def test_an_intent_limits_replicas_and_gives_its_reason() -> None:
    effects = effects_of(running("a"), running("b"), spec=spec(replicas=2), intents=(intent(),))
    assert {s.instance for s in effects.stops} == {"a", "b"}
    assert {m.stop_reason for m in effects.phase_changes} == {"stopped"}


def test_a_deleted_instance_without_claims_is_removed_at_once() -> None:
    effects = effects_of(instance("a", "analyzing"), need=None, deleted_at=NOW)
    assert [r.instance for r in effects.removals] == ["a"]
    assert effects.finish
    assert effects.analyse is None
