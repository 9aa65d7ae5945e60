"""Which revision a request goes to while a new one gets a share of the requests."""

from collections import Counter
from dataclasses import replace

import pytest

from controller.live.endpoints import Endpoint, RolloutRoute
from gateway.reporting.revision_outcomes import RevisionOutcomes
from gateway.routing.choose_revision import by_revision, place_in_turn, place_of_session
from gateway.routing.routing_table import RoutingTable
from support.builders.models import model

MANY = 10_000
OLD = [Endpoint("m", f"old-{n}", "127.0.0.1:1", "s", revision="1") for n in range(4)]
NEW = Endpoint("m", "new", "127.0.0.1:1", "s", revision="2")


def table_of(weight: int | None, endpoints: list[Endpoint]) -> RoutingTable:
    table = RoutingTable(clock=lambda: 0.0)
    known = replace(model("m"), rollout=RolloutRoute("2", 1, weight))
    table.update({"m": known}, endpoints)
    return table


def asked(table: RoutingTable, session: bytes = b"", tried: tuple[str, ...] = ()) -> str:
    picked = table.pick("m", tried, place=table.place("m", session))
    return picked.revision if picked is not None else ""


@pytest.mark.parametrize("weight", [1, 10, 33, 50, 99])
def test_g56_the_new_revision_gets_its_share_of_10_000_requests(weight: int) -> None:
    table = table_of(weight, [*OLD, NEW])
    share = Counter(asked(table) for _ in range(MANY))["2"] / MANY
    assert share == pytest.approx(weight / 100, abs=0.001)


def test_g56_sessions_get_the_share_too_and_each_stays_on_one_revision() -> None:
    table, other_gateway = table_of(10, [*OLD, NEW]), table_of(10, [NEW, *reversed(OLD)])
    sessions = [b"session-%d" % n for n in range(MANY)]
    first = [asked(table, one) for one in sessions]
    assert Counter(first)["2"] / MANY == pytest.approx(0.1, abs=0.01)
    assert [asked(table, one) for one in sessions] == first
    assert [asked(other_gateway, one) for one in sessions] == first


def test_a_larger_weight_never_moves_a_session_back() -> None:
    sessions = [b"session-%d" % n for n in range(500)]
    before: set[bytes] = set()
    for weight in range(0, 101, 5):
        table = table_of(weight, [*OLD, NEW])
        now = {one for one in sessions if asked(table, one) == "2"}
        assert before <= now
        before = now
    assert len(before) == len(sessions)


def test_another_rollout_draws_other_sessions() -> None:
    sessions = [b"session-%d" % n for n in range(1000)]
    low = [{one for one in sessions if place_of_session(one, "uid", revision) < 0.1} for revision in ("2", "3")]
    assert len(low[0] & low[1]) < 40


def test_without_a_ready_canary_all_go_to_the_old_revision_and_the_reverse() -> None:
    assert {asked(table_of(50, OLD)) for _ in range(20)} == {"1"}
    assert {asked(table_of(50, [NEW])) for _ in range(20)} == {"2"}


def test_an_aborted_revision_gets_no_request_while_an_old_one_can_take_it() -> None:
    table = table_of(0, [*OLD, NEW])
    assert {asked(table) for _ in range(100)} == {"1"}
    assert asked(table, tried=tuple(one.instance for one in OLD)) == "2"


def test_a_revision_at_its_limit_leaves_requests_to_the_other_one() -> None:
    table = table_of(99, [*OLD, replace(NEW, max_in_flight=1)])
    table.enter(NEW)
    assert asked(table) == "1"


def test_g56_a_session_waits_for_its_own_revision_while_that_runs() -> None:
    """At the limit of one replica it goes to the least busy one of the same revision, at that of all it waits."""
    second = replace(NEW, instance="also-new", max_in_flight=1)
    table = table_of(50, [*OLD, replace(NEW, max_in_flight=1), second])
    session = next(one for one in (b"s-%d" % n for n in range(99)) if asked(table, one) == "2")

    def picked(made: RoutingTable) -> str | None:
        place = made.place("m", session)
        lane = made.lane("m", session, place)
        found = made.pick("m", session=session, place=place, bound=bool(lane))
        return found.instance if found is not None else None

    home = picked(table)
    assert home in ("new", "also-new")
    table.enter(replace(NEW, instance=home or ""))
    assert picked(table) == ({"new", "also-new"} - {home}).pop()
    table.enter(replace(NEW, instance=picked(table) or ""))
    assert (picked(table), table.lane("m", session, table.place("m", session))) == (None, "new")
    assert asked(table) == "1", "a request without a session takes what is free"
    assert picked(table_of(50, OLD)) in {one.instance for one in OLD}, "none of its revision runs any more"
    assert table_of(50, OLD).lane("m", session, 0.1) == ""


def test_without_a_weight_the_least_busy_one_of_all_is_picked() -> None:
    table = table_of(None, [*OLD, NEW])
    assert table.place("m", b"any") is None
    for one in OLD:
        table.enter(one)
    assert asked(table) == "2"


def test_a_place_counts_only_in_a_rollout_that_shares_requests() -> None:
    """The rollout may have ended between the two calls."""
    for known in (
        {"m": replace(model("m"), rollout=None)},
        {"m": replace(model("m"), rollout=RolloutRoute("2", 1, None))},
    ):
        table = RoutingTable(clock=lambda: 0.0)
        table.update(known, [*OLD, NEW])
        for one in OLD:
            table.enter(one)
        assert table.pick("m", place=0.99) == NEW
        assert table.lane("m", b"session", 0.99) == ""
        assert table.pick("gone", place=0.99) is None
        assert table.lane("gone", b"session", 0.99) == ""


def test_without_a_place_the_least_busy_one_of_all_is_picked() -> None:
    table = table_of(0, [*OLD, NEW])
    for one in OLD:
        table.enter(one)
    assert table.pick("m") == NEW
    assert (table.lane("m", b"session", None), table.lane("m", b"", 0.99)) == ("", "")


def test_places_are_spread_evenly_over_any_run() -> None:
    for begin in (0, 12_345):
        low = sum(place_in_turn(n) < 0.1 for n in range(begin, begin + 1000))
        assert 97 <= low <= 103


def test_both_groups_hold_all_endpoints() -> None:
    chosen, other = by_revision([*OLD, NEW], RolloutRoute("2", 1, 10), 0.05)
    assert (chosen, other) == ([NEW], OLD)


def test_counts_of_an_attempt_are_told_once_and_forgotten_with_it() -> None:
    outcomes, rollout = RevisionOutcomes(), RolloutRoute("2", 1, 10)
    outcomes.note("uid", rollout, "2", requests=1, errors=1)
    outcomes.note("uid", rollout, "2", requests=1)
    (told,) = outcomes.report({"uid": rollout})
    assert (told.revision, told.attempt, told.requests, told.errors) == (2, 1, 2, 1)
    assert outcomes.report({"uid": rollout}) == []
    outcomes.everything_again()
    assert outcomes.report({"uid": rollout}) == [told]
    again = RolloutRoute("2", 2, 10)
    outcomes.note("uid", again, "2", requests=1)
    (told,) = outcomes.report({"uid": again})
    assert (told.attempt, told.requests, told.errors) == (2, 1, 0)
    assert outcomes.report({}) == []
    outcomes.everything_again()
    assert outcomes.report({"uid": again}) == []


def test_a_place_from_a_rollout_that_has_ended_binds_no_request() -> None:
    table = table_of(50, [NEW])
    table.update({"m": model("m")}, [NEW])
    assert table.pick("m", place=0.5) is NEW
    assert table.pick("m", place=0.0, bound=True) is NEW


def test_a_request_without_a_place_goes_to_any_revision_while_one_is_rolled_out() -> None:
    table = table_of(50, [OLD[0], NEW])
    picked = {found.revision for _ in range(2) if (found := table.pick("m")) is not None}
    assert picked == {"1", "2"}
