"""Demand that is unknown, because a gateway is silent or the leader is new, removes no replica."""

from dataclasses import replace

import pytest

from controller.domain.scaling import AGENTS_SUFFICE_S, Demand, EngineLoad
from support.builders.scaling import RULE, Watched, demand

SLEEPY = replace(RULE, min=0)
SEEN = replace(RULE, min=0, most=16)


def test_g34_a_silent_gateway_keeps_what_is_there() -> None:
    watched = Watched(3)
    wish = watched.see(2000, demand=demand(0, silent=("q",)))
    assert (wish.number, wish.reason) == (3, "demand_unknown")
    assert "gateway q does not report" in wish.message
    assert watched.evidence()["silent_gateways"] == ["q"]


def test_g34_nothing_sleeps_while_a_gateway_is_silent() -> None:
    watched = Watched(1, rule=SLEEPY)
    assert watched.see(5000, demand=demand(0, silent=("q",))).number == 1
    assert watched.see(899, demand=demand(0)).number == 1, "unknown was not idle: it counts from its end"
    assert watched.see(1).number == 0


@pytest.mark.parametrize(
    ("requests", "running", "number"),
    [
        ((0, 0, 0), 3, 1),  # agents see none at all: what is silent serves nothing
        ((9, 3, 4), 3, 2),  # its requests are those that agents see
        ((0, 16, 0), 3, 3),  # one is at its limit: others may wait at the silent one
        ((0, 0), 3, 3),  # one agent says nothing
        ((0, 0, None), 3, 3),
    ],
)
def test_a_gateway_that_is_silent_for_long_is_judged_by_what_agents_see(
    requests: tuple[int | None, ...], running: int, number: int
) -> None:
    """Two minutes of silence, then the whole down window: until then nothing goes."""
    watched = Watched(3, rule=SEEN, running=running)
    loads = tuple(EngineLoad(requests=one) for one in requests)
    seen = demand(0, silent=("q",))
    wish = watched.see(500, demand=replace(seen, silent_s=AGENTS_SUFFICE_S - 1), engines=loads)
    assert (wish.number, wish.reason) == (3, "demand_unknown")
    long_ago = replace(seen, silent_s=AGENTS_SUFFICE_S)
    assert watched.see(298, demand=long_ago).number == 3
    assert watched.see(3, demand=long_ago, follow=False).number == number


def test_a_model_sleeps_though_a_gateway_is_gone_once_agents_have_seen_no_request_for_idle_after() -> None:
    watched = Watched(1, rule=SEEN)
    gone = replace(demand(0, silent=("q",)), silent_s=AGENTS_SUFFICE_S)
    assert watched.see(1000, demand=gone, engines=(EngineLoad(requests=1),)).number == 1, "the silent one serves"
    assert watched.see(898, engines=(EngineLoad(requests=0),)).number == 1
    assert watched.see(3).number == 0


def test_g34_what_the_others_tell_still_adds() -> None:
    wish = Watched(2).see(12, demand=demand(200, silent=("q",)), follow=False)
    assert (wish.number, wish.reason) == (6, "demand"), "what the silent one has can only be more"
    asleep = Watched(0, rule=SLEEPY)
    assert asleep.see(demand=demand(0, waiting=40, silent=("q",))).number == 5, "what waits is known"


def test_no_gateway_at_all_is_unknown() -> None:
    wish = Watched(3).see(2000, demand=Demand((), (), 0))
    assert (wish.number, wish.reason) == (3, "demand_unknown")


def test_g41_a_new_leader_keeps_the_number_for_the_down_window() -> None:
    watched = Watched(5)
    wish = watched.see(299, demand=demand(8))
    assert (wish.number, wish.reason) == (5, "not_watched_yet")
    assert watched.see(1).number == 1


def test_g41_a_new_leader_adds_at_once() -> None:
    watched = Watched(2)
    assert watched.see(1, demand=demand(40)).number == 5


def test_g41_a_new_leader_puts_nothing_to_sleep_before_the_down_window() -> None:
    watched = Watched(1, rule=replace(SLEEPY, idle_after_s=10))
    assert watched.see(299, demand=demand(0)).number == 1
    assert watched.see(1).number == 0


def test_a_gateway_that_is_gone_counts_for_nothing_once_it_is_silent() -> None:
    """What it last told went elsewhere with its clients."""
    asleep = Watched(0, rule=SLEEPY)
    assert asleep.see(30, demand=demand(0, silent=("q",))).number == 0, "nothing is started for it"


def test_the_graph_has_a_gap_where_nothing_was_seen() -> None:
    watched = Watched(1)
    watched.see(20, demand=demand(4))
    watched.skip(30)
    watched.see(5)
    graph = watched.evidence()["graph"]
    assert (graph[0], graph[-1]) == (4.0, 4.0)
    assert None in graph
    watched.skip(2000)
    watched.see(5)
    assert watched.evidence()["graph"] == [4.0], "all of it is over"
