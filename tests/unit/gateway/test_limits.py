"""Limits of keys, with one gateway before a store in memory: who passes, and what the others are told."""

from dataclasses import replace
from typing import Any

import pytest

from controller.domain.key_shares import EXPIRES_S, Bucket, Member, exchange, expired, fraction_of, new_bucket
from controller.live.key_ring import Principal
from gateway.errors import GatewayError
from gateway.limits.limits import Limits, Must, Refused, Ticket
from gateway.meter import Meter
from schemas.key_limits import KeyLimits, LimitKind, SharesAnswer

KEY = "key-1"
DAY_LEFT_S = 3600.5


class Place:
    """Gateways and a store, all in touch."""

    def __init__(self, limits: KeyLimits, *, gateways: int = 1) -> None:
        self.limits = limits
        self.now = 10.0
        self.buckets: dict[LimitKind, Bucket] = {kind: new_bucket(kind, n) for kind, n in limits.capacities().items()}
        self.at = dict.fromkeys(LimitKind, self.now)
        self.gateways = [Limits() for _ in range(gateways)]

    def talk(self, number: int = 0) -> None:
        members = {str(one): Member(1 / len(self.gateways), 0.5) for one in range(len(self.gateways))}
        gateway, grants = self.gateways[number], []
        asks = gateway.asks(self.now)
        for ask in asks:
            bucket = replace(self.buckets[ask.kind], age_s=self.now - self.at[ask.kind])
            self.buckets[ask.kind], grant = exchange(bucket, ask, str(number), members)
            self.at[ask.kind] = self.now
            grants.append(grant)
        gateway.told(asks, SharesAnswer(1 / len(self.gateways), tuple(grants), DAY_LEFT_S), self.now)

    def request(self, number: int = 0) -> Ticket | Refused:
        gateway = self.gateways[number]
        use = gateway.use_of(KEY, self.limits)
        found = gateway.begin(use, self.now, DAY_LEFT_S)
        if found is Must.ASK:
            for share in use.shares.values():
                share.waiting += 1
            self.talk(number)
            for share in use.shares.values():
                share.waiting -= 1
            found = gateway.begin(use, self.now, DAY_LEFT_S, asked=True)
        assert not isinstance(found, Must)
        return found

    def reserve(self, tokens: int, number: int = 0) -> Ticket | Refused:
        """A request passes and reserves tokens, or is refused."""
        ticket = self.request(number)
        if isinstance(ticket, Refused):
            return ticket
        gateway, use = self.gateways[number], ticket.use
        found = gateway.reserve(ticket, tokens, self.now, DAY_LEFT_S)
        if found is Must.ASK:
            lacks = use.lacks(tokens)
            for kind, need in lacks.items():
                use.shares[kind].waiting += need
            self.talk(number)
            for kind, need in lacks.items():
                use.shares[kind].waiting -= need
            found = gateway.reserve(ticket, tokens, self.now, DAY_LEFT_S, asked=True)
        assert not isinstance(found, Must)
        if isinstance(found, Refused):
            end(ticket, 0, self.now)
            return found
        return ticket

    def left(self, kind: LimitKind = LimitKind.TOKENS) -> float:
        """What the store has once all gateways have reported twice, and nothing was sent meanwhile."""
        for _ in range(40):
            self.now += 1.0
            for number in range(len(self.gateways)):
                self.talk(number)
        return self.buckets[kind].level


def end(ticket: Ticket | Refused, tokens: int, now: float = 10.0) -> None:
    """It ends, and has used so many tokens."""
    assert isinstance(ticket, Ticket)
    ticket.charge(tokens, now)
    ticket.end()


def refused(found: Ticket | Refused) -> Refused:
    assert isinstance(found, Refused)
    return found


@pytest.mark.parametrize("gateways", [1, 2])
def test_sixty_requests_a_minute_pass_and_one_a_second_later(gateways: int) -> None:
    place = Place(KeyLimits(rpm=60), gateways=gateways)
    found = [place.request(number % gateways) for number in range(61)]
    assert [type(one) for one in found] == [Ticket] * 60 + [Refused]
    last = refused(found[-1])
    assert last.code == "rate_limited"
    assert dict(last.headers) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
        "Retry-After": "1",
    }
    place.now += 1.0
    assert isinstance(place.request(60 % gateways), Ticket)
    assert isinstance(place.request(60 % gateways), Refused)


@pytest.mark.parametrize(("gateways", "asks_next"), [(1, 0), (2, 1)])
def test_tokens_are_charged_afterwards(gateways: int, asks_next: int) -> None:
    place = Place(KeyLimits(tpm=1000), gateways=gateways)
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    ticket.charge(1500, place.now)
    ticket.end()
    place.talk()  # at once after so large a debt
    answer = refused(place.request(asks_next))
    assert answer.code == "rate_limited"
    assert answer.headers["Retry-After"] == "31"
    assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
    assert answer.headers["x-ratelimit-reset-tokens"] == "31s"
    place.now += 29.0
    assert isinstance(place.request(asks_next), Refused)
    place.now += 2.0
    assert isinstance(place.request(asks_next), Ticket)


@pytest.mark.parametrize("gateways", [1, 2])
def test_four_at_once_and_the_next_when_one_has_ended(gateways: int) -> None:
    place = Place(KeyLimits(parallel=4), gateways=gateways)
    tickets = [place.request() for _ in range(4)]
    assert all(isinstance(one, Ticket) for one in tickets)
    assert refused(place.request(gateways - 1)).code == "too_many_parallel"
    first = tickets[0]
    assert isinstance(first, Ticket)
    assert first.end()
    place.now += 0.06
    place.talk(0)
    assert isinstance(place.request(gateways - 1), Ticket)
    assert isinstance(place.request(gateways - 1), Refused)


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


def test_a_day_s_tokens_are_used_up_until_midnight() -> None:
    place = Place(KeyLimits(tokens_per_day=1000))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    ticket.charge(1000, place.now)
    ticket.end()
    answer = refused(place.request())
    assert answer.code == "quota_used_up"
    assert answer.headers == {"Retry-After": "3601", "x-should-retry": "false"}


def test_headers_of_an_answer_count_down() -> None:
    place = Place(KeyLimits(rpm=60, tpm=1000))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    assert ticket.headers(place.now, None) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0s",
    }


def test_limits_change_in_place() -> None:
    place = Place(KeyLimits(rpm=2))
    assert [type(place.request()) for _ in range(3)] == [Ticket, Ticket, Refused]
    place.limits = KeyLimits(rpm=4)
    place.buckets[LimitKind.REQUESTS] = place.buckets[LimitKind.REQUESTS].resized(4)
    place.now += 0.3
    assert [type(place.request()) for _ in range(3)] == [Ticket, Ticket, Refused]
    place.limits = KeyLimits()
    assert all(isinstance(place.request(), Ticket) for _ in range(10))


def test_a_lowered_limit_leaves_nothing_owed() -> None:
    place = Place(KeyLimits(rpm=600))
    for _ in range(100):
        place.request()
    place.limits = KeyLimits(rpm=6)
    place.buckets[LimitKind.REQUESTS] = place.buckets[LimitKind.REQUESTS].resized(6)
    place.now += 5.0
    assert sum(isinstance(place.request(), Ticket) for _ in range(20)) == 6


def test_without_the_store_each_gateway_has_its_fraction() -> None:
    place = Place(KeyLimits(rpm=60), gateways=2)
    for number in (0, 1):
        place.talk(number)
        place.gateways[number].away = True
    passed = 0
    for _ in range(120):
        place.now += 0.5
        passed += sum(isinstance(place.request(number), Ticket) for number in (0, 1))
    assert 58 <= passed <= 62  # a minute's worth, and one for each gateway at once


def test_an_answer_that_is_lost_counts_nothing_twice() -> None:
    place = Place(KeyLimits(tpm=1000))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    ticket.charge(400, place.now)
    gateway = place.gateways[0]
    told, gateway.told = gateway.told, lambda *_: None  # type: ignore[method-assign]
    place.talk()
    gateway.told = told  # type: ignore[method-assign]
    place.talk()
    assert place.buckets[LimitKind.TOKENS].level == pytest.approx(600, abs=3)


def test_fractions_never_exceed_the_whole() -> None:
    members = {"P": Member(1.0, 0.1), "Q": Member(0.0, 0.0)}
    assert fraction_of("Q", members) == 0.0
    assert fraction_of("P", members) == 0.5
    assert fraction_of("Q", {**members, "P": Member(0.5, 0.1)}) == 0.5


def test_silent_gateways_expire_only_for_one_that_was_in_touch() -> None:
    members = {"P": Member(0.5, 1.0), "Q": Member(0.5, EXPIRES_S + 1)}
    assert list(expired(members, in_touch_s=EXPIRES_S + 1)) == ["Q"]
    assert not list(expired(members, in_touch_s=1.0))  # the store was away: all were silent


@pytest.mark.parametrize(
    ("globs", "model", "allowed"),
    [
        ((), "any", True),
        (("chat", "embed-*"), "chat", True),
        (("chat", "embed-*"), "embed-a", True),
        (("chat", "embed-*"), "other", False),
        (("chat", "embed-*"), "CHAT", False),
        (("chat",), "chat-2", False),
    ],
)
def test_globs_of_models(globs: tuple[str, ...], model: str, allowed: bool) -> None:
    assert KeyLimits(models=globs).allows(model) is allowed


@pytest.mark.parametrize("gateways", [1, 2])
@pytest.mark.parametrize(
    "limits", [KeyLimits(parallel=4), KeyLimits(rpm=4), KeyLimits(tpm=100), KeyLimits(tokens_per_day=100)]
)
def test_a_slow_store_refuses_nothing_this_gateways_part_decides(limits: KeyLimits, gateways: int) -> None:
    """And what passed so is counted, once the store has answered."""
    place = Place(limits, gateways=gateways)
    place.talk()
    gateway = place.gateways[0]
    use = gateway.use_of(KEY, limits)
    assert gateway.begin(use, place.now, DAY_LEFT_S) is Must.ASK
    found = gateway.begin(use, place.now, DAY_LEFT_S, asked=True, answered=False)
    assert isinstance(found, Ticket)
    assert gateway.fraction is None, "the store is not away"
    if limits.parallel:
        tickets = [gateway.begin(use, place.now, DAY_LEFT_S, asked=True, answered=False) for _ in range(4)]
        assert [type(one) for one in tickets].count(Ticket) == 4 / gateways - 1
    place.talk()
    passed = 1
    while isinstance(place.request(), Ticket) and passed <= 99:
        passed += 1
    if limits.rpm:
        assert passed == 4, "no more than the limit in all"


def test_a_slot_that_is_given_back_just_after_a_denial_can_be_had_again() -> None:
    place = Place(KeyLimits(parallel=1))
    first = place.request()
    assert isinstance(first, Ticket)
    place.talk()  # the store has no further slot
    assert isinstance(place.request(), Refused)
    first.end()
    gateway = place.gateways[0]
    assert gateway.asks(place.now), "the slot is on its way back"
    assert gateway.begin(gateway.use_of(KEY, place.limits), place.now, DAY_LEFT_S) is Must.ASK
    assert isinstance(place.request(), Ticket)


async def test_a_request_waits_for_a_slow_store_no_longer_than_it_may() -> None:
    database: Any = None  # no exchange ever ends
    meter = Meter(database)
    principal = Principal("k", "k", "inference", limits=KeyLimits(parallel=1))
    assert meter.begin(principal, "/v1/chat/completions") is None, "the store must be asked"
    first = await meter.wait(principal, "/v1/chat/completions", limit_s=0.01)
    with pytest.raises(GatewayError, match="may have 1 requests at once"):
        await meter.wait(principal, "/v1/chat/completions", limit_s=0.01)
    first.over()
    assert meter.begin(principal, "/v1/chat/completions")
