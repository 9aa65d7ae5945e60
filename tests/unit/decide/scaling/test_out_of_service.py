"""Replicas that hang or fail do not count as capacity."""

from dataclasses import replace

import pytest

from controller.domain.scaling import Replicas
from support.builders.scaling import RULE, Watched, demand, engines


def test_a_replica_that_hangs_does_not_count_so_another_one_is_added() -> None:
    watched = Watched(2)
    wish = watched.see(12, demand=demand(16), replicas=Replicas(running=1, placed=1, unhealthy=1), follow=False)
    assert (wish.number, wish.reason) == (3, "demand")
    assert "1 of 2 replicas do not serve" in wish.message
    assert watched.evidence()["not_serving"] == 1


@pytest.mark.parametrize(
    ("replicas", "number"),
    [
        (Replicas(running=2, pending=1, failed=1), 4),  # crashes, and waits for its next try
        (Replicas(running=2, failed=1), 4),  # has failed for good
        (Replicas(running=2, placed=1), 3),  # starts, or its worker is silent: that one gets a substitute
        (Replicas(running=1, placed=2, unhealthy=2), 4),  # at most as many as are known to work
        (Replicas(pending=3, failed=3), 3),  # none works, and further ones would not either
        (Replicas(placed=3, unhealthy=3), 4),  # they have worked, and one more may
    ],
)
def test_what_has_hung_or_failed_for_the_window_does_not_count(replicas: Replicas, number: int) -> None:
    wish = Watched(3).see(12, demand=demand(0, waiting=24), replicas=replicas, follow=False)
    assert wish.number == number


def test_a_crash_that_passes_adds_nothing() -> None:
    watched = Watched(2)
    watched.see(20, demand=demand(16))
    assert watched.see(5, replicas=Replicas(running=1, pending=1, failed=1), follow=False).number == 2
    assert watched.see(5, replicas=Replicas(running=2), follow=False).number == 2
    assert watched.see(9, replicas=Replicas(running=1, placed=1, unhealthy=1), follow=False).number == 2


def test_what_hangs_is_replaced_within_max_and_not_without_demand() -> None:
    hung = Replicas(running=1, placed=1, unhealthy=1)
    full = Watched(2, rule=replace(RULE, max=2)).see(12, demand=demand(16), replicas=hung, follow=False)
    assert full.number == 2
    assert Watched(2).see(12, demand=demand(0), replicas=hung, follow=False).number == 2


def test_saturated_engines_add_one_although_another_replica_hangs() -> None:
    hung = Replicas(running=1, placed=1, unhealthy=1)
    wish = Watched(2).see(60, demand=demand(8), engines=engines((3, 0.9)), replicas=hung, follow=False)
    assert (wish.number, wish.reason) == (3, "saturated")


@pytest.mark.parametrize(("in_flight", "number", "reason"), [(8.4, 2, "steady"), (9.6, 3, "demand")])
def test_what_serves_is_not_added_to_for_a_little_more_than_its_target(
    in_flight: float, number: int, reason: str
) -> None:
    hung = Replicas(running=1, placed=1, unhealthy=1)
    wish = Watched(2).see(12, demand=demand(in_flight), replicas=hung, follow=False)
    assert (wish.number, wish.reason) == (number, reason)


def test_once_it_serves_again_the_further_one_goes_after_the_down_window() -> None:
    watched = Watched(2)
    watched.see(12, demand=demand(16), replicas=Replicas(running=1, placed=1, unhealthy=1), follow=False)
    watched.see(number=3, replicas=Replicas(running=3), follow=False)
    assert watched.see(290, follow=False).number == 3
    assert watched.see(30, follow=False).number == 2


def test_replicas_that_serve_are_not_reported_as_out_of_service() -> None:
    assert "do not serve" not in Watched(2).see(12, demand=demand(16)).message
