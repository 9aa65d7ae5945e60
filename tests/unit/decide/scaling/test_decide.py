"""The number of replicas by demand: each line of G37, G38 and G42, and the edges of them."""

from dataclasses import replace

import pytest

from controller.decide.scaling.decide import max_in_flight, rule_of
from controller.domain.scaling import Replicas, ScalingRule
from support.builders.facts import spec
from support.builders.scaling import RULE, Watched, demand

SLEEPY = replace(RULE, min=0)


@pytest.mark.parametrize(
    ("load", "number", "reason"),
    [
        (16, 2, "steady"),
        (17, 2, "steady"),  # within 10 %
        (18, 3, "demand"),
        (24, 3, "demand"),
        (200, 6, "demand"),
    ],
)
def test_g37_the_mean_of_the_window_gives_the_number(load: int, number: int, reason: str) -> None:
    """Follows no wish, so that each look has two replicas."""
    wish = Watched(2).see(12, demand=demand(load), follow=False)
    assert (wish.number, wish.reason) == (number, reason)


def test_g37_demand_is_the_sum_over_all_gateways() -> None:
    assert Watched(2).see(12, demand=demand(12, 12), follow=False).number == 3


def test_g37_replicas_that_start_count() -> None:
    watched = Watched(4)
    wish = watched.see(12, demand=demand(20, waiting=12), replicas=Replicas(running=2, placed=2), follow=False)
    assert (wish.number, wish.reason) == (4, "steady")


def test_g37_waiting_requests_count_like_those_in_flight() -> None:
    assert Watched(2).see(12, demand=demand(16, waiting=8), follow=False).number == 3


def test_a_peak_shorter_than_the_window_adds_by_its_mean_only() -> None:
    watched = Watched(1)
    watched.see(20, demand=demand(4))
    assert watched.see(1, demand=demand(40)).number == 1, "4 x 9 s and 40 x 1 s are 7.6 on the mean"
    assert watched.see(1, demand=demand(40)).number == 2


def test_less_demand_removes_only_what_the_whole_down_window_did_not_need() -> None:
    watched = Watched(1)
    assert watched.see(20, demand=demand(24)).number == 3
    assert watched.see(100, demand=demand(12)).number == 3
    wish = watched.see(180, demand=demand(4))
    assert (wish.number, wish.reason) == (3, "down_window")
    assert watched.see(30).number == 2, "2 were needed until 100 s after the peak"
    assert watched.see(100).number == 1


def test_a_late_look_loses_no_time_of_the_windows() -> None:
    """Durations count, not looks."""
    watched = Watched(1)
    watched.see(20, demand=demand(24))
    watched.skip(305)
    assert watched.see(demand=demand(0)).number == 3, "nothing was seen since, so what was needed is not known"
    watched.skip(4)
    assert watched.see().number == 3
    assert watched.see(300).number == 1


@pytest.mark.parametrize(("waiting", "number"), [(1, 1), (8, 1), (9, 2), (40, 5), (500, 6)])
def test_g41_from_zero_there_is_no_window(waiting: int, number: int) -> None:
    assert Watched(0, rule=SLEEPY).see(demand=demand(0, waiting=waiting)).number == number


def test_g41_what_waits_while_nothing_runs_needs_no_window() -> None:
    watched = Watched(1, rule=SLEEPY, running=0)
    wish = watched.see(demand=demand(0, waiting=40), replicas=Replicas(placed=1), wakes=1)
    assert wish.number == 5


def test_demand_around_a_step_does_not_make_it_flap() -> None:
    watched = Watched(1)
    numbers = [watched.see(4, demand=demand(22 if n % 2 else 12)).number for n in range(300)]
    assert numbers == sorted(numbers), "up, and no more"
    assert numbers[-1] == 3


@pytest.mark.parametrize(("number", "wanted"), [(0, 2), (9, 4)])
def test_a_changed_manifest_binds_at_once(number: int, wanted: int) -> None:
    rule = ScalingRule(min=2, max=4, target=8)
    assert Watched(number, rule=rule, running=2).see(demand=demand(0)).number == wanted


def test_a_new_deployment_wants_its_min() -> None:
    assert Watched(None, rule=replace(RULE, min=2)).see(demand=demand(0)).number == 2
    assert Watched(None, rule=SLEEPY, running=0).see(demand=demand(0)).number == 0


def test_the_evidence_names_what_the_number_rests_on() -> None:
    watched = Watched(2)
    wish = watched.see(25, demand=demand(20, waiting=4), follow=False)
    assert wish.number == 3
    assert "24.0 requests in flight and waiting as the mean of 10s" in wish.message
    seen = watched.evidence()
    assert (seen["demand_mean"], seen["waiting"], seen["target"], seen["needed"]) == (24.0, 4, 8, 3)
    assert seen["graph"] == [24.0, 24.0, 24.0]


def test_a_limit_of_the_manifest_is_told() -> None:
    assert Watched(2).see(12, demand=demand(200)).message.endswith("at most 6")


def test_what_changes_by_time_alone_is_looked_at_then() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(400)
    watched.see(awake_for_s=30)
    assert watched.see(demand=demand(3)).next_check_s == 1
    asleep = Watched(0, rule=SLEEPY)
    assert asleep.see(400).next_check_s == 60


@pytest.mark.parametrize(
    ("least", "number", "load", "reason", "message"),
    [
        (1, 1, 0, "steady", "1 wanted: 0.0 requests in flight"),
        (2, 2, 0, "steady", "2 wanted: 0.0 requests in flight"),
        (1, 1, 4, "steady", "1 wanted: 4.0 requests in flight"),
        (0, 1, 0, "not_idle_yet", "1 wanted: without requests for 400s of 15m"),
        (1, 2, 9, "steady", "2 wanted: 9.0 requests in flight"),
    ],
)
def test_a_number_that_stays_has_its_reason(least: int, number: int, load: int, reason: str, message: str) -> None:
    wish = Watched(number, rule=replace(RULE, min=least)).see(400, demand=demand(load))
    assert (wish.number, wish.reason) == (number, reason)
    assert wish.message.startswith(message)
    assert ("at least" in wish.message, "at most" in wish.message) == (False, False)


def test_the_reason_names_the_largest_number_of_the_down_window() -> None:
    watched = Watched(1)
    watched.see(320, demand=demand(24))
    message = watched.see(60, demand=demand(4)).message
    assert message == "3 wanted: 4.0 requests in flight and waiting as the mean of 10s; 3 were needed within 5m"


@pytest.mark.parametrize(
    ("fields", "next_check_s"),
    [
        ({}, 60),
        ({"demand": demand(1)}, 1),
        ({"demand": demand(0, silent=("q",))}, 1),
        ({"awake_for_s": 30.0}, 30),
        ({"awake_for_s": 0.5}, 1),
        ({"awake_for_s": 3000.0}, 60),
    ],
)
def test_a_quiet_deployment_is_looked_at_when_a_time_of_it_ends(fields: dict[str, object], next_check_s: float) -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(1000)
    assert watched.see(follow=False, **fields).next_check_s == next_check_s


def test_an_idle_one_is_looked_at_when_it_may_sleep() -> None:
    watched = Watched(1, rule=replace(SLEEPY, idle_after_s=1000))
    watched.see(20, demand=demand(1))
    watched.see(960, demand=demand(0))
    assert watched.see().next_check_s == 40
    assert watched.see(20).next_check_s == 20


def test_the_rule_is_that_of_the_manifest() -> None:
    stated = spec(
        replicas={"min": 1, "max": 4},
        scaling={"target": 5, "window": 20, "down_window": 400, "idle_after": 700, "dry_run": True},
        serving={"max_in_flight": 9},
    )
    assert rule_of(stated) == ScalingRule(1, 4, 5, 20, 400, 700, dry_run=True, most=9)
    assert max_in_flight(stated) == 9
    automatic = rule_of(spec(serving={"max_in_flight": 10}))
    assert automatic.target == pytest.approx(7)
    assert rule_of(spec(serving={"max_in_flight": 1})).target == 1


def test_the_number_that_is_not_seen_yet_counts_as_none() -> None:
    assert Watched(1).see().message.startswith("1 wanted: 0.0 requests in flight")


def test_a_leader_that_has_watched_for_the_down_window_names_its_largest_number() -> None:
    watched = Watched(3)
    watched.see(100, demand=demand(24))
    assert watched.see(199, demand=demand(4)).reason == "not_watched_yet"
    assert watched.see(1).reason == "down_window"


def test_a_deployment_that_an_operator_keeps_awake_has_that_reason() -> None:
    wish = Watched(1, rule=SLEEPY).see(5, awake_for_s=60)
    assert (wish.number, wish.reason) == (1, "kept_awake")
