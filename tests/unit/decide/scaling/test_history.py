"""The autoscaler's history of one deployment, second by second."""

from dataclasses import replace

import pytest

from controller.decide.scaling.history import FULL_KV, GAP_S, GRAPH_STEP_S, LONGEST_WINDOW_S, ScalingHistory
from controller.domain.scaling import EngineLoad, Replicas, ScalingView
from support.builders.scaling import RULE, demand, engines

VIEW = ScalingView(RULE, 2, Replicas(running=2), demand(0))


def observed(*views: tuple[float, ScalingView], number: int = 2) -> ScalingHistory:
    history = ScalingHistory(0.0, number)
    for at, view in views:
        history.observe(view, at)
    return history


def under(load: int) -> ScalingView:
    return replace(VIEW, demand=demand(load))


def test_the_mean_weighs_each_observation_with_the_time_that_it_covers() -> None:
    history = observed((1, under(4)), (4, under(8)))
    assert history.mean(10, 4) == (1 * 4 + 3 * 8) / 4
    assert history.mean(2, 4) == 8
    assert history.mean(4, 5) == (3 * 8 + 0) / 3, "the last second was not observed"
    assert history.mean(0.5, 5) is None
    assert history.mean(10, 20) is None


def test_a_gap_has_no_mean_and_the_present_number_counts_as_needed_then() -> None:
    within = observed((GAP_S, under(8)))
    assert within.mean(10, GAP_S) == 8
    beyond = observed((GAP_S + 0.1, under(8)), number=0)
    assert beyond.mean(10, GAP_S) is None
    assert beyond.largest(60, GAP_S + 1) == VIEW.present
    assert observed((GAP_S, under(8)), number=0).largest(60, GAP_S + 1) == 0


def test_two_observations_at_once_count_once() -> None:
    history = observed((2, under(8)), (2, under(100)))
    assert history.mean(10, 2) == 8


def test_without_any_gateway_nothing_is_known_of_demand() -> None:
    assert observed((1, replace(VIEW, demand=demand()))).mean(10, 1) is None


def test_the_mean_reaches_back_to_the_longest_window_alone() -> None:
    history = observed(*((float(n), under(8 if n > 1 else 1000)) for n in range(1, int(LONGEST_WINDOW_S) + 2)))
    assert history.mean(LONGEST_WINDOW_S * 2, LONGEST_WINDOW_S + 1) == 8


def test_the_largest_number_lasts_for_the_window() -> None:
    history = ScalingHistory(0.0, 3)
    history.note(2, 10.0)
    history.note(1, 20.0)
    assert [history.largest(30, at) for at in (20, 29.9, 30, 39.9, 40, 49.9, 50)] == [3, 3, 2, 2, 1, 1, 0]
    history.note(5, 21.0)
    assert [history.largest(30, at) for at in (21, 50.9, 51)] == [5, 5, 0]


@pytest.mark.parametrize(
    ("loads", "for_s"),
    [
        (((1, None),), 10),
        (((None, FULL_KV),), 10),
        (((0, FULL_KV),), 10),
        (((1, 0.0), (None, None)), 10),  # what does not report does not count
        (((None, FULL_KV - 0.01),), 0),
        (((1, None), (0, 0.5)), 0),
        (((None, None),), 0),
        ((), 0),
    ],
)
def test_engines_are_saturated_with_a_queue_or_a_full_cache_each(
    loads: tuple[tuple[int | None, float | None], ...], for_s: float
) -> None:
    full = replace(VIEW, engines=tuple(EngineLoad(queued=queued, kv_use=use) for queued, use in loads))
    assert observed((1, full), (11, full)).saturated_s(11) == for_s


def test_saturation_counts_from_its_start_or_from_the_last_replica_that_was_added_for_it() -> None:
    full = replace(VIEW, engines=engines((1, None)))
    history = observed((1, full), (2, full))
    history.raised(1.5)
    assert history.saturated_s(4) == 2.5
    later = observed((1, VIEW), (3, full))
    later.raised(2)
    assert later.saturated_s(4) == 1
    later.observe(VIEW, 5)
    assert later.saturated_s(6) == 0


@pytest.mark.parametrize(
    ("replicas", "out"),
    [
        (Replicas(running=3, unhealthy=1), 1),
        (Replicas(running=3, failed=2), 2),
        (Replicas(running=1, unhealthy=1, failed=2), 1),  # at most as many as serve
        (Replicas(running=0, unhealthy=2), 1),
        (Replicas(running=0, failed=2), 0),
    ],
)
def test_replicas_that_hang_or_failed_for_the_window_are_no_capacity(replicas: Replicas, out: int) -> None:
    bad = replace(VIEW, replicas=replicas)
    history = observed((1, bad), (4, bad), (8, bad))
    assert history.out_of_service(bad, 1 + RULE.window_s) == out
    assert history.out_of_service(bad, 0.9 + RULE.window_s) == 0


def test_each_replica_has_its_own_time_out_of_service() -> None:
    one, two = (replace(VIEW, replicas=Replicas(running=3, unhealthy=n)) for n in (1, 2))
    history = observed((1, one), (4, two), (8, two))
    assert [history.out_of_service(two, at + RULE.window_s) for at in (1, 3.9, 4)] == [1, 1, 2]
    history.observe(one, 9)
    history.observe(two, 10)
    assert history.out_of_service(two, 4 + RULE.window_s) == 1
    history.observe(two, 10 + GAP_S + 1)
    assert history.out_of_service(two, 15 + RULE.window_s) == 0, "in a gap they may have served"


@pytest.mark.parametrize(
    ("view", "idle_s"),
    [
        (VIEW, 2),
        (replace(VIEW, demand=demand(1)), 0),
        (replace(VIEW, demand=demand(0, waiting=1)), 0),
        (replace(VIEW, demand=demand(0, silent=("q",))), 0),
        (replace(VIEW, wakes=1), 0),
        (replace(VIEW, awake_for_s=1), 0),
        (replace(VIEW, replicas=Replicas(placed=1)), 0),
        (replace(VIEW, replicas=Replicas(placed=1, running=1)), 2),
    ],
)
def test_a_deployment_is_idle_without_requests_wakes_and_first_starts(view: ScalingView, idle_s: float) -> None:
    assert observed((1, VIEW), (2, view)).idle_s(2) == idle_s


def test_a_request_that_came_and_went_between_two_observations_is_activity() -> None:
    first, second = (replace(VIEW, demand=demand(0, arrived=n)) for n in (5, 6))
    assert observed((1, first), (2, first)).idle_s(2) == 2, "the first count is compared with none"
    assert observed((1, first), (2, second)).idle_s(2) == 0


def test_activity_in_a_gap_is_unknown() -> None:
    assert observed((GAP_S, VIEW)).idle_s(GAP_S) == GAP_S
    assert observed((GAP_S + 1, VIEW)).idle_s(GAP_S + 1) == 0


def test_it_has_run_since_it_was_last_asleep() -> None:
    sleepy = replace(VIEW, rule=replace(RULE, min=0))
    starting = replace(sleepy, number=1, replicas=Replicas(placed=1))
    asleep = replace(sleepy, number=0, replicas=Replicas())
    assert ScalingHistory(0.0, 1).has_run
    assert not ScalingHistory(0.0, 0).has_run
    assert not observed((1, asleep), (2, starting)).has_run
    assert observed((1, VIEW), (2, starting)).has_run


def test_the_graph_has_a_mean_for_each_step_with_gaps() -> None:
    history = ScalingHistory(0.0, 2)
    for n in range(1, 11):
        history.observe(under(2), float(n))
    history.observe(under(50), 32.0)
    history.observe(under(8), 33.0)
    assert history.graph() == (2.0, 2.0, None, 8.0)
    assert GRAPH_STEP_S == 10


def test_the_graph_starts_again_after_a_gap_longer_than_itself() -> None:
    history = observed((1, under(4)))
    history.observe(under(4), 2000.0)
    history.observe(under(6), 2001.0)
    assert history.graph() == (6.0,)
