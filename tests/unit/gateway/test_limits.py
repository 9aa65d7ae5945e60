"""Limits of keys, with one gateway before a store in memory: who passes, and what the others are told."""

from typing import Any

import pytest

from controller.domain.access.key_shares import EXPIRES_S, Member, expired, fraction_of
from controller.live.key_ring import Principal
from gateway.errors import GatewayError
from gateway.quotas.limits import Limits, Must, Refused, Ticket
from gateway.quotas.quota_client import QuotaClient
from gateway.quotas.share import Share
from schemas.key_limits import KeyLimits, LimitKind, ShareGrant
from support.standins.key_limits import DAY_LEFT_S, KEY, Place, refused


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
    assert ticket.use.headers(place.now, None) == {
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
    take_answer, gateway.take_answer = gateway.take_answer, lambda *_: None  # type: ignore[method-assign]
    place.talk()
    gateway.take_answer = take_answer  # type: ignore[method-assign]
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
    found = gateway.begin(use, place.now, DAY_LEFT_S, requested=True, answered=False)
    assert isinstance(found, Ticket)
    assert gateway.fraction is None, "the store is not away"
    if limits.parallel:
        tickets = [gateway.begin(use, place.now, DAY_LEFT_S, requested=True, answered=False) for _ in range(4)]
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
    client = QuotaClient(database)
    principal = Principal("k", "k", "inference", limits=KeyLimits(parallel=1))
    assert client.begin(principal, "/v1/chat/completions") is None, "the store must be asked"
    first = await client.wait(principal, "/v1/chat/completions", limit_s=0.01)
    with pytest.raises(GatewayError, match="may have 1 requests at once"):
        await client.wait(principal, "/v1/chat/completions", limit_s=0.01)
    first.over()
    assert client.begin(principal, "/v1/chat/completions")


@pytest.mark.parametrize(
    ("kind", "held"),
    [(LimitKind.TOKENS, 4.0), (LimitKind.DAY, 4.0), (LimitKind.REQUESTS, 4.0), (LimitKind.PARALLEL, 7.0)],
)
def test_use_since_an_ask_is_taken_off_its_answer_but_slots_are_not_used_up(kind: LimitKind, held: float) -> None:
    share = Share(KEY, kind, 10)
    share.waiting = 3
    ask = share.ask(0.0)
    assert ask is not None
    share.spent += 3
    share.granted(ask, ShareGrant(KEY, kind, 7.0, 3.0, 10), 0.1)
    assert share.held == held


def test_an_end_frees_something_for_other_gateways_only_of_a_limit_of_slots() -> None:
    for limits, frees in ((KeyLimits(), False), (KeyLimits(rpm=5), False), (KeyLimits(rpm=5, parallel=2), True)):
        place = Place(limits)
        ticket = place.request()
        assert isinstance(ticket, Ticket)
        assert ticket.use.under_way == 1
        assert ticket.end() is frees
        assert ticket.use.under_way == 0


@pytest.mark.parametrize(("told", "fraction"), [(False, 1.0), (True, 0.5)])
def test_while_the_store_is_away_a_gateway_has_the_fraction_that_it_was_told_last(told: bool, fraction: float) -> None:
    place = Place(KeyLimits(rpm=60), gateways=2)
    gateway = place.gateways[0]
    if told:
        place.talk()
    assert gateway.fraction is None
    gateway.away = True
    assert gateway.fraction == fraction
    place.talk()
    assert gateway.fraction is None


def test_a_key_keeps_the_histories_of_the_models_that_it_used_last() -> None:
    use = Limits().use_of(KEY, KeyLimits(tpm=1000))
    first, second = use.history("m-0"), use.history("m-1")
    for number in range(2, 256):
        use.history(f"m-{number}")
    assert use.history("m-0") is first
    use.history("one more")
    assert use.history("m-0") is first
    assert use.history("m-1") is not second, "it was used least recently"


def test_a_key_that_is_gone_asks_for_nothing_more() -> None:
    place = Place(KeyLimits(parallel=3))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    gateway = place.gateways[0]
    assert gateway.is_short(KEY) is False
    ticket.end()
    gateway.forget([KEY, "never"])
    assert gateway.asks(place.now + 9) == []
    assert gateway.is_short(KEY) is False
    again = gateway.use_of(KEY, place.limits)
    assert again is not ticket.use


def test_a_gateway_alone_starts_each_day_with_its_fraction() -> None:
    place = Place(KeyLimits(tokens_per_day=1000), gateways=2)
    place.talk()
    gateway = place.gateways[0]
    gateway.away = True
    for _ in range(3):
        use = gateway.use_of(KEY, place.limits)
        passed = 0
        while isinstance(found := gateway.begin(use, place.now, DAY_LEFT_S), Ticket):
            found.charge(100, place.now)
            found.end()
            passed += 1
        assert passed == 5
        place.now += 86400.0


def test_a_day_that_ends_without_a_request_is_reported() -> None:
    place = Place(KeyLimits(tokens_per_day=1000))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    ticket.charge(1000, place.now)
    ticket.end()
    for _ in range(30):
        place.now += 1.0
        place.talk()
    gateway = place.gateways[0]
    assert gateway.is_short(KEY)
    place.now += DAY_LEFT_S
    gateway.asks(place.now)
    assert not gateway.is_short(KEY)


def test_usage_of_a_key_without_limits_has_no_headers() -> None:
    assert Limits().use_of(KEY, KeyLimits()).headers(0.0, None) == {}
    assert Limits().use_of(KEY, KeyLimits(parallel=3)).headers(0.0, None) == {}
