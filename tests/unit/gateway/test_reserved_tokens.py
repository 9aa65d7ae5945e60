"""Tokens that requests reserve: no more than the limit at once, and what is not used comes back."""

from dataclasses import replace

import pytest

from controller.domain.access.key_shares import new_bucket
from gateway.quotas.limits import Refused, Ticket
from schemas.key_limits import KeyLimits, LimitKind
from support.standins.key_limits import DAY_LEFT_S, KEY, Place, end, refused


@pytest.mark.parametrize("gateways", [1, 2, 3])
@pytest.mark.parametrize(
    ("limit", "each", "passes"),
    [(1000, 100, 10), (1000, 301, 3), (1000, 501, 1), (1000, 1000, 1), (1000, 9000, 1), (1, 500, 1), (1000, 1, 1000)],
)
def test_a_burst_reserves_no_more_than_the_limit(gateways: int, limit: int, each: int, passes: int) -> None:
    for limits in (KeyLimits(tpm=limit), KeyLimits(tokens_per_day=limit), KeyLimits(tpm=limit, tokens_per_day=limit)):
        place = Place(limits, gateways=gateways)
        found = [place.reserve(each, number % gateways) for number in range(passes + 30)]
        passed = [one for one in found if isinstance(one, Ticket)]
        assert len(passed) <= passes
        assert len(passed) >= (passes if gateways == 1 else 1)
        if gateways == 1 or each >= limit:
            assert isinstance(found[0], Ticket), "a request in an empty window"


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize(
    ("reserved", "used", "left"),
    [
        (600, 600, 400),
        (600, 10, 990),
        (600, 0, 1000),
        (600, 700, 300),
        (5000, 40, 960),
        (5000, 3000, -2000),
        (0, 7, 993),
    ],
)
def test_what_was_reserved_gives_way_to_what_was_used(gateways: int, reserved: int, used: int, left: int) -> None:
    place = Place(KeyLimits(tokens_per_day=1000), gateways=gateways)
    end(place.reserve(reserved), used)
    assert place.left(LimitKind.DAY) == left


def test_a_request_that_ends_leaves_room_for_the_next_at_once() -> None:
    place = Place(KeyLimits(tpm=1000), gateways=2)
    first = place.reserve(800)
    answer = refused(place.reserve(800))
    assert (answer.code, answer.headers["Retry-After"]) == ("rate_limited", "36")
    assert answer.headers["x-ratelimit-remaining-tokens"] == "200"
    end(first, 20)
    assert isinstance(place.reserve(800), Ticket)


@pytest.mark.parametrize(("seconds", "passes"), [(1, 1), (59, 1), (61, 1)])
def test_what_comes_back_to_a_full_bucket_is_of_no_use(seconds: int, passes: int) -> None:
    """A request that reserved all and used nothing, while the bucket filled again."""
    place = Place(KeyLimits(tpm=1000))
    sleeper = place.reserve(1000)
    for _ in range(seconds):
        place.now += 1.0
        place.talk()
    end(sleeper, 0, place.now)
    found = [place.reserve(1000) for _ in range(3)]
    assert sum(isinstance(one, Ticket) for one in found) == passes


def test_of_a_minute_long_past_nothing_comes_back() -> None:
    place = Place(KeyLimits(tpm=1000))
    sleepers = []
    for _ in range(5):
        sleepers.append(place.reserve(1000))
        place.now += 61.0
        place.talk()
    passed = 0
    for sleeper in sleepers:
        end(sleeper, 0, place.now)
        place.talk()
        passed += isinstance(place.reserve(1000), Ticket)
    assert passed == 1


def test_of_a_day_what_is_reserved_comes_back_and_what_is_used_does_not() -> None:
    place = Place(KeyLimits(tokens_per_day=1000))
    first = place.reserve(900)
    answer = refused(place.reserve(200))
    assert (answer.code, answer.headers["Retry-After"]) == ("rate_limited", "1")
    assert "x-should-retry" not in answer.headers
    end(first, 900)
    answer = refused(place.reserve(200))
    assert (answer.code, answer.headers["x-should-retry"]) == ("quota_used_up", "false")
    assert isinstance(place.reserve(100), Ticket)


def test_a_reservation_of_yesterday_gives_nothing_back_today() -> None:
    place = Place(KeyLimits(tokens_per_day=1000))
    ticket = place.reserve(900)
    place.now += DAY_LEFT_S + 1
    place.buckets[LimitKind.DAY] = replace(
        new_bucket(LimitKind.DAY, 1000), holdings=place.buckets[LimitKind.DAY].holdings
    )
    place.talk()
    end(ticket, 300, place.now)
    assert place.left(LimitKind.DAY) <= 700


def test_a_limit_that_is_taken_away_and_given_again_gets_nothing_back() -> None:
    place = Place(KeyLimits(tpm=1000, rpm=9))
    ticket = place.reserve(900)
    use = place.gateways[0].use_of(KEY, KeyLimits(rpm=9))
    use = place.gateways[0].use_of(KEY, KeyLimits(tpm=1000))
    end(ticket, 300, place.now)
    assert use.shares[LimitKind.TOKENS].held == -300


def test_without_the_store_one_large_request_passes_and_the_next_waits() -> None:
    place = Place(KeyLimits(tpm=600), gateways=2)
    place.talk()
    place.gateways[0].away = True
    place.now += 1.0
    first = place.reserve(5000)
    assert isinstance(place.reserve(5000), Refused)
    end(first, 10, place.now)
    place.now += 3.0
    assert isinstance(place.reserve(5000), Ticket)


def test_without_the_store_tokens_that_came_since_the_request_passed_may_be_reserved() -> None:
    """Its body took a while; another request has used the last tokens until then."""
    place = Place(KeyLimits(tpm=60))
    gateway = place.gateways[0]
    gateway.away = True
    first, second = place.request(), place.request()
    assert isinstance(first, Ticket)
    assert isinstance(second, Ticket)
    assert gateway.reserve(first, 1, place.now, DAY_LEFT_S) is None
    assert isinstance(gateway.reserve(second, 1, place.now, DAY_LEFT_S), Refused)
    place.now += 1.0
    assert gateway.reserve(second, 1, place.now, DAY_LEFT_S) is None
