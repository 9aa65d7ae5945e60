"""What a rollout counts of a deployment's instances."""

from dataclasses import replace
from typing import Any

import pytest

from controller.decide.instances.replicas import classify
from controller.decide.instances.rollout import rollout_view
from controller.decide.rollouts.judge import RolloutView
from controller.domain.instances import InstanceState
from controller.domain.placement import NeedError
from schemas.placement_reasons import HELD_BY_OTHERS, NEVER_FREED
from support.builders.facts import deployment, instance, spec
from support.decisions import LOST

HELD, NEVER = min(HELD_BY_OTHERS), min(NEVER_FREED)


def view(*instances: InstanceState, ready_for_s: float = 0, wanted: int = 2, **facts: Any) -> RolloutView:
    given = spec(update="rolling", replicas=wanted, rollout={"ready_for": ready_for_s})
    at = deployment(*instances, spec=given, revision=2, **facts)
    return rollout_view(at, classify(at), wanted)


def new(name: str, phase: str, **fields: Any) -> InstanceState:
    return instance(name, phase, revision=2, **fields)


@pytest.mark.parametrize(
    ("fields", "unplaced"),
    [
        ({"age_s": 0, "reason": HELD}, 1),  # others hold what it needs
        ({"age_s": 9, "reason": ""}, 0),  # placement still searches
        ({"age_s": 10, "reason": ""}, 1),
        ({"age_s": 600, "reason": NEVER}, 0),  # the end of others frees no place for it
        ({"age_s": 600, "failures": 1}, 0),  # waits for its next try
    ],
)
def test_a_pending_replica_finds_no_place_once_placement_has_recorded_it_or_after_ten_seconds(
    fields: dict[str, Any], unplaced: int
) -> None:
    assert view(new("n", "pending", **fields)).unplaced == unplaced
    assert view(instance("o", "pending", revision=1, **fields)).others_unplaced == unplaced


@pytest.mark.parametrize(
    ("other", "unplaced"),
    [
        (new("m", "analyzing"), 0),
        (new("m", "pending", age_s=1), 0),  # it may get the place that has become free
        (new("m", "pending", age_s=1, failures=1), 1),
        (new("m", "pending", age_s=1, reason=NEVER), 1),
        (new("m", "starting", age_s=1), 1),
        (instance("m", "pending", age_s=1), 1),  # of another revision
    ],
)
def test_no_replica_counts_as_without_a_place_while_placement_searches_for_any(
    other: InstanceState, unplaced: int
) -> None:
    assert view(new("n", "pending", age_s=60), other).unplaced == unplaced


@pytest.mark.parametrize(
    ("phase", "fields", "trying", "failing", "coming"),
    [
        ("running", {}, 0, False, 0),
        ("running", {"failures": 1}, 0, True, 0),
        ("running", {"failures": 1, "age_s": 1}, 1, True, 1),
        ("running", {"age_s": 1}, 0, False, 1),
        ("starting", {}, 1, False, 1),
        ("starting", {"failures": 1}, 1, True, 1),
        ("pending", {}, 0, False, 0),
        ("pending", {"failures": 1}, 1, True, 0),
        ("backoff", {"failures": 1}, 1, True, 1),
        ("failed", {}, 1, False, 0),
    ],
)
def test_a_replica_tries_while_it_holds_a_place_or_has_failed(
    phase: str, fields: dict[str, Any], trying: int, failing: bool, coming: int
) -> None:
    at = view(new("n", phase, **fields), ready_for_s=5)
    assert (at.trying, at.failing, at.coming) == (trying, failing, coming)


@pytest.mark.parametrize(("retryable", "hopeless"), [(True, ""), (False, "no such model")])
def test_an_error_of_the_need_fails_all_and_is_hopeless_unless_it_may_pass(retryable: bool, hopeless: str) -> None:
    error = NeedError("no such model", retryable=retryable, attempts=1, retry_at=None)
    revisions = {2: replace(deployment(spec=spec(), need=None).revisions[1], generation=2, need_error=error)}
    at = view(new("n", "pending"), revisions=revisions)
    assert (at.failing, at.trying, at.hopeless) == (True, 1, hopeless)


@pytest.mark.parametrize(
    ("phase", "fields", "text"),
    [
        ("failed", {"message": "exited with code 1", "reason": "exit"}, "exited with code 1"),
        ("failed", {"reason": "exit"}, "exit"),
        ("failed", {}, "it failed"),
        ("backoff", {"message": "exited"}, ""),
    ],
)
def test_a_replica_that_has_failed_for_good_is_hopeless(phase: str, fields: dict[str, Any], text: str) -> None:
    assert view(new("n", phase, **fields)).hopeless == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"message": "exited", "reason": "exit"}, "exited"), ({"reason": "exit"}, "exit")],
)
def test_the_trouble_is_that_of_a_replica_that_has_failed(fields: dict[str, Any], text: str) -> None:
    assert view(new("m", "starting"), new("n", "backoff", failures=1, **fields)).trouble == text
    assert view(new("m", "starting", message="is starting")).trouble == ""


def test_instances_are_counted_by_revision_and_phase() -> None:
    at = view(
        instance("a", "running"),
        instance("b", "unhealthy"),
        instance("c", "pending"),
        instance("s", "stopping", stop_reason="new_revision"),
        new("n", "running"),
        new("t", "stopping", stop_reason="scaled_down"),
    )
    assert (at.updated, at.available, at.outdated, at.outdated_ready, at.stopping) == (1, 1, 4, 1, 1)
    assert at.holders == ((1, "a"), (1, "b"))
    assert at.holding == 4, "those with a place, and the one that leaves it for a successor"
    assert at.serving == 1


def test_a_rollout_does_not_wait_for_instances_that_stop_on_a_lost_worker() -> None:
    at = view(instance("s", "stopping", stop_reason="new_revision"), hosts=LOST)
    assert (at.outdated, at.stopping, at.holding) == (0, 0, 0)


def test_the_revision_that_serves_is_the_one_that_most_others_run() -> None:
    some = [instance(f"a{n}", "running", revision=0) for n in range(2)]
    known = deployment(spec=spec(), revision=2).revisions
    assert view(*some, instance("b", "running"), revisions=known | {0: known[1]}).serving == 0
    assert view(instance("b", "unhealthy")).serving is None
