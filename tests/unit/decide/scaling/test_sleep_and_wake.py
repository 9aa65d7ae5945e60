"""When a deployment falls asleep and what wakes it: the lines of G27, G29, G32 and G35, and the edges beside them."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.scaling import Replicas
from support.builders.scaling import RULE, Watched, demand

SLEEPY = replace(RULE, min=0)


def test_g27_a_wake_alone_starts_one() -> None:
    wish = Watched(0, rule=SLEEPY).see(wakes=1)
    assert (wish.number, wish.reason) == (1, "woken")


def test_g29_a_wake_is_withdrawn_before_the_placement() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(wakes=1)
    watched.see(5, replicas=Replicas(pending=1))
    wish = watched.see(wakes=0)
    assert (wish.number, wish.reason) == (0, "wake_withdrawn")


def test_g29_after_the_start_began_it_starts_and_sleeps_again_idle_after_later() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(300)
    watched.see(5, wakes=1)
    starting = Replicas(placed=1)
    assert watched.see(600, wakes=0, replicas=starting, follow=False).number == 1
    assert watched.see(899, replicas=Replicas(running=1)).number == 1, "counted from when it serves"
    assert watched.see(2).number == 0


def test_g32_it_sleeps_idle_after_the_last_request() -> None:
    watched = Watched(1, rule=SLEEPY)
    watched.see(400, demand=demand(1))
    wish = watched.see(899, demand=demand(0))
    assert (wish.number, wish.reason) == (1, "not_idle_yet")
    wish = watched.see(1)
    assert (wish.number, wish.reason) == (0, "idle_after")


@pytest.mark.parametrize("idle_after_s", [1, 3, 10, 30])
def test_g32_an_idle_after_shorter_than_the_window_is_kept_to_the_second(idle_after_s: int) -> None:
    """The mean of the window still holds the burst, which neither delays the sleep nor adds replicas meanwhile."""
    watched = Watched(0, rule=replace(SLEEPY, idle_after_s=idle_after_s))
    watched.see(5, demand=demand(0, waiting=1))
    watched.see(1, demand=demand(100, arrived=100))
    asleep_after = next(n for n in range(60) if watched.see(1, demand=demand(0, arrived=100)).number == 0)
    assert asleep_after + 1 == idle_after_s
    assert watched.see(600).number == 0, "and it stays asleep"


def test_g32_the_demand_before_a_sleep_does_not_end_it_while_the_replica_is_still_there() -> None:
    watched = Watched(0, rule=replace(SLEEPY, idle_after_s=1))
    watched.see(1, demand=demand(0, waiting=1))
    watched.see(20, demand=demand(20))
    assert watched.see(2, demand=demand(0)).number == 0
    assert watched.see(1, replicas=Replicas(running=1)).number == 0, "no request waits for it"
    assert watched.see(wakes=1).number == 1


def test_g32_a_deployment_that_was_asleep_all_along_need_not_be_watched_for_the_down_window() -> None:
    """It is created, asked once, and sleeps `idle_after` later."""
    watched = Watched(0, rule=replace(SLEEPY, idle_after_s=20))
    watched.see(1, demand=demand(0, waiting=1))
    assert watched.see(19, demand=demand(0)).number == 1
    assert watched.see(1).number == 0


@pytest.mark.parametrize("now", [Replicas(pending=1), Replicas(placed=1)], ids=["pending", "starting"])
def test_the_end_of_an_idle_replica_that_is_replaced_is_not_a_withdrawn_wake(now: Replicas) -> None:
    """As after an apply, a preemption or a lost worker: it is idle only `idle_after` after its last request."""
    watched = Watched(1, rule=SLEEPY)
    watched.see(300, demand=demand(1))
    watched.see(100, demand=demand(0))
    assert watched.see(30, replicas=now, follow=False).number == 1
    assert watched.see(100, replicas=Replicas(running=1)).number == 1


def test_a_pending_replica_that_ran_before_sleeps_idle_after_its_last_request() -> None:
    """It keeps no reservation for ever, though no request comes."""
    watched = Watched(1, rule=SLEEPY)
    watched.see(300, demand=demand(1))
    assert watched.see(899, demand=demand(0), replicas=Replicas(pending=1), follow=False).number == 1
    assert watched.see(1).number == 0


def test_g32_a_slow_stream_is_not_idle() -> None:
    watched = Watched(1, rule=SLEEPY)
    assert watched.see(40 * 60, demand=demand(1)).number == 1
    assert watched.see(899, demand=demand(0)).number == 1
    assert watched.see(1).number == 0


def test_g32_a_request_between_two_reports_counts() -> None:
    """It came and went, so that neither report has it in flight."""
    watched = Watched(1, rule=SLEEPY)
    watched.see(800, demand=demand(0, arrived=1))
    watched.see(899, demand=demand(0, arrived=2))
    assert watched.view.number == 1
    assert watched.see(1).number == 0


def test_g35_an_operators_wake_holds_it_though_idle() -> None:
    watched = Watched(0, rule=SLEEPY)
    wish = watched.see(awake_for_s=7200)
    assert (wish.number, wish.reason) == (1, "kept_awake")
    for left_s in range(7200, 0, -100):
        assert watched.see(100, awake_for_s=float(left_s)).number == 1
    assert watched.see(899, awake_for_s=0).number == 1
    assert watched.see(3).number == 0


def test_g35_a_policys_sleep_ends_by_a_request() -> None:
    watched = Watched(3, rule=SLEEPY)
    wish = watched.see(1, slept_by_policy=True)
    assert (wish.number, wish.reason) == (0, "policy_idle")
    assert watched.see(5000).number == 0
    assert watched.see(demand=demand(0, waiting=1)).number == 1


def test_requests_that_drain_at_stopping_replicas_wake_nothing() -> None:
    watched = Watched(0, rule=SLEEPY)
    assert watched.see(30, demand=demand(5)).number == 0


def test_many_asleep_replicas_sleep_together() -> None:
    watched = Watched(0, rule=replace(SLEEPY, idle_after_s=20, down_window_s=60))
    watched.see(70)
    assert watched.see(10, demand=demand(0, waiting=40)).number == 5
    assert watched.see(19, demand=demand(0)).number == 5
    assert watched.see(1).number == 0


def test_a_replica_that_starts_beside_one_that_runs_keeps_nothing_awake() -> None:
    watched = Watched(2, rule=SLEEPY)
    assert watched.see(1000, replicas=Replicas(running=1, placed=1), follow=False).number == 0


@pytest.mark.parametrize(
    ("replicas", "reason"),
    [
        (Replicas(placed=1), "not_watched_yet"),
        (Replicas(pending=1), "wake_withdrawn"),
        (Replicas(running=1), "not_watched_yet"),
    ],
)
def test_a_wake_is_withdrawn_only_while_nothing_has_a_place(replicas: Replicas, reason: str) -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.history.started_at = watched.now
    watched.see(wakes=1)
    assert watched.see(wakes=0, replicas=replicas, follow=False).reason == reason


@pytest.mark.parametrize(
    ("number", "wakes", "waiting", "reason"), [(0, 0, 1, "demand"), (0, 1, 0, "woken"), (1, 1, 4, "steady")]
)
def test_only_a_wake_from_zero_is_a_reason(number: int, wakes: int, waiting: int, reason: str) -> None:
    watched = Watched(number, rule=SLEEPY, running=0)
    wish = watched.see(wakes=wakes, demand=demand(0, waiting=waiting), replicas=Replicas(placed=number), follow=False)
    assert (wish.number, wish.reason) == (1, reason)


def test_a_replica_that_has_run_since_the_wake_is_not_withdrawn() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(wakes=1)
    watched.see(1, wakes=0)
    wish = watched.see(replicas=Replicas(pending=1), follow=False)
    assert (wish.number, wish.reason) == (1, "not_idle_yet")


def test_a_deployment_that_falls_asleep_needs_no_replica() -> None:
    wish = Watched(1, rule=SLEEPY).see(slept_by_policy=True)
    assert (wish.number, wish.needed) == (0, 0)
    idle = Watched(1, rule=SLEEPY).see(SLEEPY.idle_after_s, follow=False)
    assert (idle.number, idle.needed, idle.reason) == (0, 0, "idle_after")


@pytest.mark.parametrize(
    "still", [{"wakes": 1}, {"demand": demand(0, waiting=1)}, {"awake_for_s": 0.5}], ids=["wake", "request", "operator"]
)
def test_a_start_is_not_withdrawn_while_anything_wants_it(still: dict[str, Any]) -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(wakes=1)
    watched.see(5, replicas=Replicas(pending=1))
    assert watched.see(**{"wakes": 0, **still}).number == 1
    assert watched.see(wakes=0, demand=demand(0), awake_for_s=0.0).number == 0
