"""The instances that one step of a rollout with `update: rolling` stops, by their phases and ages."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.domain.instances import InstanceState, Revision
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot, RolloutState
from support.builders.facts import NEED, NOW, instance, intent, spec
from support.decisions import effects_of

OLD, NEW = 1, 2
S = RolloutState


def old(name: str, phase: str = "running", **fields: Any) -> InstanceState:
    return instance(name, phase, **{"revision": OLD, "age_s": 600, **fields})


def new(name: str, phase: str = "running", **fields: Any) -> InstanceState:
    return instance(name, phase, **{"revision": NEW, **fields})


def stopped(
    *instances: InstanceState,
    replicas: int,
    state: RolloutState = S.PROGRESSING,
    rollout: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    **record: Any,
) -> set[str]:
    given = spec(update="rolling", replicas=replicas, rollout={"ready_for": 0, **(rollout or {})})
    stored = RolloutRecord(NEW, OLD, state, **record)
    revisions = {g: Revision(g, given, f"hash-{g}", NOW - timedelta(minutes=5), need=NEED) for g in (0, OLD, NEW)}
    given_facts = {"spec": given, "revision": NEW, "revisions": revisions, "rollout": RolloutSnapshot(stored)}
    effects = effects_of(*instances, **given_facts, **(facts or {}))
    stopping = {change.instance for change in effects.phase_changes if change.to.value == "stopping"}
    return stopping | {removal.instance for removal in effects.removals}


@pytest.mark.parametrize(
    ("instances", "replicas", "rollout", "expected"),
    [
        # An available new instance lets one old instance go, the oldest first.
        ([old("a", age_s=500), old("b", age_s=900), new("n")], 2, {}, {"b"}),
        ([old("a"), old("b"), new("n", "starting")], 2, {}, set()),
        ([old("a"), new("n"), new("m")], 2, {}, {"a"}),
        # `unavailable` lets one go before, but no more than it allows.
        ([old("a"), old("b"), old("c")], 3, {"unavailable": 2}, {"a", "b"}),
        ([old("a"), old("b"), old("c", "starting")], 3, {"unavailable": 2, "surge": 0}, {"a", "c"}),
        # An old instance without a place goes at once, whatever the bounds.
        ([old("a"), old("p", "pending")], 2, {}, {"p"}),
        ([old("a"), old("p", "analyzing")], 2, {}, {"p"}),
        # An old instance that does not serve goes once a new one is available.
        ([old("a"), old("u", "unhealthy"), new("n")], 2, {}, {"u"}),
        ([old("a"), old("u", "unhealthy"), new("n", "starting")], 2, {}, set()),
        ([old("u", "unhealthy"), old("b", "backoff"), new("n")], 2, {}, {"u", "b"}),
        # Without a new one, only as many as the bounds let go anyway, the least useful first.
        ([old("a"), old("b"), old("u", "unhealthy"), old("k", "backoff")], 4, {"unavailable": 1}, {"k"}),
        ([old("a"), old("b"), old("u", "unhealthy"), old("k", "backoff")], 4, {"unavailable": 2}, {"u", "k"}),
    ],
)
def test_a_rollout_stops_old_instances(
    instances: list[InstanceState], replicas: int, rollout: dict[str, Any], expected: set[str]
) -> None:
    assert stopped(*instances, replicas=replicas, rollout=rollout) == expected


@pytest.mark.parametrize(
    ("silent", "idle", "expected"),
    [
        (1, 0, {"s0"}),  # as the bounds let go anyway
        (2, 0, {"s1"}),  # one of them, the newest
        (2, 1, {"k0"}),
        (1, 2, {"k0", "k1"}),
    ],
)
def test_instances_on_silent_workers_stop_last_and_only_within_the_bounds(
    silent: int, idle: int, expected: set[str]
) -> None:
    """They may still serve, and their places become free only with their return."""
    some = [old(f"s{n}", "unreachable", age_s=900 - n) for n in range(silent)]
    some += [old(f"k{n}", "backoff") for n in range(idle)]
    serving = [old(f"r{n}") for n in range(4 - silent - idle)]
    assert stopped(*some, *serving, new("n"), replicas=4) == expected


@pytest.mark.parametrize(
    ("phase", "created_s", "expected"),
    [
        ("pending", 700, {"p"}),  # before the new one: it would get the place that becomes free
        ("pending", 60, {"p"}),  # created with it
        ("pending", 30, set()),
        ("running", 700, set()),
    ],
)
def test_a_canary_without_a_place_goes_before_older_pending_instances(
    phase: str, created_s: int, expected: set[str]
) -> None:
    """Only an instance that is created instead comes after the canary in the queue."""
    waiting = new("n", "pending", reason="need_gt_free")
    some = [old("p", phase, age_s=created_s), old("a"), old("b")]
    canary = {"canary": {"weight": 10, "for": "60s"}, "unavailable": 0}
    gone = stopped(*some, waiting, replicas=3, rollout=canary, state=S.CANARY, kept=3)
    assert gone == expected


def test_a_canary_that_has_a_place_keeps_pending_replicas_of_the_stable_revision_alone() -> None:
    some = [old("a"), old("p", "pending", age_s=700), instance("q", "pending", revision=0), new("n", "starting")]
    canary = {"canary": {"weight": 10, "for": "60s"}}
    assert stopped(*some, replicas=3, rollout=canary, state=S.CANARY) == {"q"}


@pytest.mark.parametrize(
    ("phase", "goes"),
    [("starting", True), ("pending", True), ("backoff", True), ("unhealthy", True), ("running", False)],
)
def test_after_a_failed_rollout_new_instances_stop_unless_they_run(phase: str, goes: bool) -> None:
    assert stopped(old("a"), new("n", phase), replicas=2, state=S.FAILED) == ({"n"} if goes else set())


@pytest.mark.parametrize("phase", ["starting", "pending", "running"])
def test_a_rollout_under_way_keeps_its_new_instances(phase: str) -> None:
    assert stopped(old("a"), new("n", phase), replicas=2) == set()


def test_of_running_instances_those_that_intents_name_stop_first() -> None:
    named = replace(intent("autoscaler", max_replicas=5), instances=("b",))
    some = [old("a", age_s=900), old("b", age_s=500), new("n")]
    assert stopped(*some, replicas=2, facts={"intents": (named,)}) == {"b"}


@pytest.mark.parametrize(
    ("instances", "surge", "expected"),
    [
        ([old("a"), old("b"), new("n", "starting")], 1, 0),  # within wanted and surge
        ([new("a"), new("b"), new("n")], 1, 1),  # of one revision the surge is over
        ([new("a"), new("b"), new("n"), old("o", "stopping", stop_reason="new_revision")], 1, 0),
        ([new("a"), new("b"), new("n"), old("o", "stopping", stop_reason="drained")], 1, 1),
        ([old("a"), old("b"), new("m", "starting"), new("n", "starting")], 1, 1),
        ([old("a"), old("b"), new("m", "starting"), new("n", "starting")], 2, 0),
    ],
)
def test_the_surge_lasts_while_two_revisions_hold_places(
    instances: list[InstanceState], surge: int, expected: int
) -> None:
    assert len(stopped(*instances, replicas=2, rollout={"surge": surge})) == expected


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("state", [S.PROGRESSING, S.CANARY, S.FAILED, S.ABORTED])
def test_a_rollout_of_a_stopped_deployment_stops_all_and_creates_none(state: RolloutState, paused: bool) -> None:
    given = spec(update="rolling", replicas=0)
    rollout = RolloutSnapshot(RolloutRecord(NEW, OLD, state, kept=2), paused)
    effects = effects_of(old("a"), new("n"), new("m"), spec=given, revision=NEW, rollout=rollout)
    assert effects.creates == []
    assert {change.instance for change in effects.phase_changes if change.to.value == "stopping"} == {"a", "n", "m"}
