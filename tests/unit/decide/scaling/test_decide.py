"""The number of replicas by demand: each line of G34 and G37 to G42, and the edges beside them."""

from dataclasses import replace

import pytest

from controller.decide.scaling.decide import CapVerdict, decide_scaling, judge_cap, max_in_flight, rule_of
from controller.domain.scaling import AGENTS_SUFFICE_S, Demand, EngineLoad, PolicyCap, Replicas, ScalingRule
from support.builders.facts import spec
from support.builders.scaling import RULE, Watched, demand, engines

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


SEEN = replace(RULE, min=0, most=16)


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


def test_a_gateway_that_is_gone_counts_for_nothing_once_it_is_silent() -> None:
    """What it last told went elsewhere with its clients."""
    asleep = Watched(0, rule=SLEEPY)
    assert asleep.see(30, demand=demand(0, silent=("q",))).number == 0, "nothing is started for it"


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


def test_once_it_serves_again_the_further_one_goes_after_the_down_window() -> None:
    watched = Watched(2)
    watched.see(12, demand=demand(16), replicas=Replicas(running=1, placed=1, unhealthy=1), follow=False)
    watched.see(number=3, replicas=Replicas(running=3), follow=False)
    assert watched.see(290, follow=False).number == 3
    assert watched.see(30, follow=False).number == 2


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


CAP = PolicyCap(2, 0.0, 600.0, None)


@pytest.mark.parametrize(
    ("cap", "outgrown_for_s", "number", "fields", "verdict"),
    [
        (None, 600, 3, {}, (False, False)),
        (CAP, 599, 3, {}, (True, False)),
        (CAP, 600, 3, {}, (True, True)),
        (CAP, 900, 2, {}, (False, False)),  # the wish is within the cap
        (CAP, None, 3, {}, (False, False)),
        (replace(CAP, window_s=None), 900, 3, {}, (True, False)),
        (CAP, 900, 3, {"demand": demand(0, silent=("q",))}, (False, False)),  # unknown demand changes nothing
        (replace(CAP, outgrown_s=5.0), 900, 3, {"demand": demand(0, silent=("q",))}, (True, False)),
    ],
)
def test_a_policys_cap_ends_once_demand_has_exceeded_it_for_its_window(
    cap: PolicyCap | None,
    outgrown_for_s: float | None,
    number: int,
    fields: dict[str, Demand],
    verdict: tuple[bool, bool],
) -> None:
    watched = Watched(2)
    watched.see(1, **fields)
    watched.history.cap_set(watched.now, outgrown_for_s)
    wish = replace(decide_scaling(watched.view, watched.history, watched.now), number=number)
    assert judge_cap(cap, watched.view, watched.history, watched.now, wish) == CapVerdict(*verdict)


@pytest.mark.parametrize(
    ("seen", "outgrown_s"),
    [
        ([(0, 2)], None),
        ([(0, 3)], 0),
        ([(0, 3), (60, 3)], 60),
        ([(0, 3), (299, 2)], 299),  # one peak counts for the down window
        ([(0, 3), (300, 2)], None),
        ([(0, 3), (200, 3), (299, 2), (499, 2)], 499),
        ([(0, 3), (200, 3), (500, 2)], None),
        ([(0, 3), (300, 2), (310, 3)], 0),
    ],
)
def test_demand_outgrows_a_cap_from_its_first_wish_above_it(
    seen: list[tuple[float, int]], outgrown_s: float | None
) -> None:
    history, began = Watched(2).history, 1000.0
    history.cap_set(began, None)
    for at_s, needed in seen:
        history.compare_to_cap(2, needed, 300.0, began + at_s)
    assert history.outgrown_s(began + seen[-1][0]) == outgrown_s


def test_a_cap_that_was_outgrown_before_goes_on_from_there() -> None:
    history = Watched(2).history
    history.cap_set(1000.0, 50.0)
    assert history.outgrown_s(1010.0) == 60
    history.compare_to_cap(2, 2, 300.0, 1299.0)
    assert history.outgrown_s(1299.0) == 349
    history.compare_to_cap(2, 2, 300.0, 1300.0)
    assert history.outgrown_s(1300.0) is None


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


def test_saturated_engines_are_looked_at_each_second() -> None:
    watched = Watched(0, rule=SLEEPY)
    watched.see(1000)
    assert watched.see(1, engines=engines((1, None))).next_check_s == 1


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


def test_an_engines_own_queue_keeps_its_replica() -> None:
    assert Watched(2).see(700, demand=demand(4), engines=engines((1, None), (0, None))).number == 2
    assert Watched(2).see(700, demand=demand(4), engines=engines((0, None), (0, None))).number == 1


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
