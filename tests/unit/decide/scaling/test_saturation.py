"""Engines' own queues and KV caches add replicas, and keep them."""

from dataclasses import replace

import pytest

from controller.domain.scaling import Replicas
from support.builders.scaling import RULE, Watched, demand, engines

SLEEPY = replace(RULE, min=0)


def test_g39_saturated_engines_add_one_each_30_s() -> None:
    watched = Watched(2)
    full = engines((None, 0.93), (None, 0.9))
    assert watched.see(29, demand=demand(10), engines=full).number == 2
    wish = watched.see(1)
    assert (wish.number, wish.reason) == (3, "saturated")
    assert watched.see(29, engines=(*full, *engines((None, 0.95)))).number == 3
    assert watched.see(1).number == 4


@pytest.mark.parametrize(
    "loads",
    [
        ((3, None), (1, None)),
        ((0, 0.95), (2, 0.1)),
    ],
)
def test_g39_an_engines_own_queue_saturates_as_a_full_cache_does(loads: tuple[tuple[int, float | None], ...]) -> None:
    assert Watched(2).see(31, demand=demand(10), engines=engines(*loads)).number == 3


def test_g39_one_engine_at_ease_is_enough_to_add_nothing() -> None:
    assert Watched(2).see(90, demand=demand(10), engines=engines((5, 0.99), (0, 0.4))).number == 2


def test_g39_an_interruption_begins_the_30_s_anew() -> None:
    watched = Watched(2)
    full, easy = engines((1, 0.9), (1, 0.9)), engines((1, 0.9), (0, 0.5))
    watched.see(20, demand=demand(10), engines=full)
    watched.see(1, engines=easy)
    assert watched.see(20, engines=full).number == 2


def test_g39_nothing_is_added_for_saturation_while_one_starts() -> None:
    watched = Watched(3)
    starting = Replicas(running=2, placed=1)
    wish = watched.see(120, demand=demand(10), engines=engines((9, 1.0), (9, 1.0)), replicas=starting, follow=False)
    assert wish.number == 3


def test_what_the_caches_hold_keeps_replicas_that_the_requests_would_not() -> None:
    """Two at 60 % would be one at 120 %."""
    watched = Watched(2)
    assert watched.see(700, demand=demand(4), engines=engines((0, 0.6), (0, 0.6))).number == 2
    assert watched.see(700, engines=engines((0, 0.3), (0, 0.3))).number == 1


def test_g40_missing_metrics_are_never_zero() -> None:
    one_missing, all_missing = engines((2, 0.95), (None, None)), engines((None, None), (None, None))
    assert Watched(2).see(31, demand=demand(10), engines=one_missing).number == 3, "judged by the other"
    for missing in (all_missing, ()):
        wish = Watched(2).see(31, demand=demand(24), engines=missing, follow=False)
        assert (wish.number, wish.reason) == (3, "demand"), "by the gateways' counts alone"
        assert Watched(2).see(299, demand=demand(1), engines=missing).number == 2


def test_saturated_engines_are_looked_at_each_second() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(1000)
    assert watched.see(1, engines=engines((1, None))).next_check_s == 1


def test_an_engines_own_queue_keeps_its_replica() -> None:
    assert Watched(2).see(700, demand=demand(4), engines=engines((1, None), (0, None))).number == 2
    assert Watched(2).see(700, demand=demand(4), engines=engines((0, None), (0, None))).number == 1


@pytest.mark.parametrize(("use", "number"), [(0.29, 1), (0.31, 2), (0.59, 2), (0.61, 3)])
def test_as_many_replicas_stay_as_would_not_be_full_with_all_that_the_caches_hold(use: float, number: int) -> None:
    watched = Watched(3)
    assert watched.see(400, demand=demand(1), engines=engines(*[(None, use)] * 3), follow=False).number == number
