"""What a refusal by a limit states, what the store's answer changes, and what a request is charged."""

import pytest

from gateway.quotas.limits import KeyUse, Limits, Must, Refused, Ticket
from schemas.key_limits import KeyLimits, LimitKind, ShareGrant, SharesAnswer
from support.standins.key_limits import DAY_LEFT_S, KEY, Place, end, refused

TODAY = "for today (UTC)"


@pytest.mark.parametrize(
    ("used", "code", "retry_s", "message"),
    [
        (0, "rate_limited", 1, f"requests under way may use what is left of this key's 1000 tokens {TODAY}"),
        (1, "quota_used_up", 3601, f"this request may use 1000 tokens, and 99 of this key's 1000 {TODAY} are left"),
    ],
)
def test_a_day_s_tokens_come_back_while_requests_under_way_hold_enough(
    used: int, code: str, retry_s: int, message: str
) -> None:
    place = Place(KeyLimits(tokens_per_day=1000))
    end(place.reserve(used), used)
    assert isinstance(place.reserve(900), Ticket)
    answer = refused(place.reserve(1000))
    assert (answer.code, answer.headers["Retry-After"]) == (code, str(retry_s))
    assert answer.message.startswith(message)
    assert answer.message.endswith(f"; try again in {retry_s} s")
    assert answer.headers.get("x-should-retry") == (None if code == "rate_limited" else "false")


@pytest.mark.parametrize(
    ("limits", "code", "message"),
    [
        (
            KeyLimits(rpm=1),
            "rate_limited",
            "this key may send 1 requests per minute, and has sent them; try again in 60 s",
        ),
        (
            KeyLimits(parallel=1),
            "too_many_parallel",
            "this key may have 1 requests at once, and has them; try again in 1 s",
        ),
        (
            KeyLimits(tpm=1),
            "rate_limited",
            "this key may use 1 tokens per minute, and has used them; try again in 60 s",
        ),
        (
            KeyLimits(tokens_per_day=1),
            "quota_used_up",
            f"all 1 tokens of this key {TODAY} are used; try again in 3601 s",
        ),
    ],
)
def test_a_refusal_names_the_limit_and_when_to_try_again(limits: KeyLimits, code: str, message: str) -> None:
    place = Place(limits)
    first = place.request()
    assert isinstance(first, Ticket)
    first.charge(1, place.now)
    answer = refused(place.request())
    assert (answer.code, answer.message) == (code, message)
    assert answer.message.endswith(f"in {answer.headers['Retry-After']} s")


def test_the_limit_that_lasts_longest_is_named_first() -> None:
    place = Place(KeyLimits(rpm=1, parallel=1, tpm=1, tokens_per_day=1))
    first = place.request()
    assert isinstance(first, Ticket)
    assert refused(place.request()).code == "too_many_parallel"
    first.charge(1, place.now)
    assert refused(place.request()).code == "quota_used_up"


@pytest.mark.parametrize(("owed", "left"), [(100, 900), (999, 1), (1500, 0)])
def test_a_refusal_states_the_tokens_that_are_left_and_none_below_zero(owed: int, left: int) -> None:
    place = Place(KeyLimits(tpm=1000))
    first, second = place.request(), place.request()
    end(first, owed)
    assert isinstance(second, Ticket)
    answer = place.gateways[0].reserve(second, 1000, place.now, DAY_LEFT_S, requested=True)
    assert isinstance(answer, Refused)
    text = f"this request may use 1000 tokens, and {left} of this key's 1000 per minute are left; state a smaller"
    assert answer.message.startswith(text)


@pytest.mark.parametrize(
    ("limits", "limited"),
    [
        (KeyLimits(rpm=1, parallel=1), False),
        (KeyLimits(tpm=1), True),
        (KeyLimits(tokens_per_day=1), True),
        (KeyLimits(rpm=1, tpm=1), True),
    ],
)
def test_which_limits_are_of_tokens(limits: KeyLimits, limited: bool) -> None:
    assert KeyUse(KEY, limits).limits_tokens() is limited


# The store's answer


def answer_of(*grants: ShareGrant, fraction: float = 0.5, day_ends_s: float = 100.0) -> SharesAnswer:
    return SharesAnswer(fraction, grants, day_ends_s)


def test_an_answer_ends_the_time_without_the_store() -> None:
    limits = Limits()
    assert limits.fraction is None, "the store refills"
    limits.away = True
    assert limits.fraction == 1.0, "no fraction is known yet"
    limits.take_answer([], answer_of(), 10.0)
    assert limits.fraction is None
    limits.away = True
    assert limits.fraction == 0.5


def test_grants_are_applied_by_key_and_kind_where_these_still_exist() -> None:
    place = Place(KeyLimits(rpm=10, tpm=10))
    gateway, limits = place.gateways[0], KeyLimits(rpm=10, tpm=10)
    uses = {key: gateway.use_of(key, limits) for key in ("kept", "changed", "gone", "without a grant")}
    for use in uses.values():
        for share in use.shares.values():
            share.waiting = 1
    asks = gateway.asks(place.now)
    assert len(asks) == 8
    gateway.forget(["gone"])
    gateway.use_of("changed", KeyLimits(tpm=10))
    grants = [ShareGrant(ask.key, ask.kind, 4.0, 5.0, 10) for ask in asks if ask.key != "without a grant"]
    gateway.take_answer(asks, answer_of(*grants), place.now)
    held = {(key, kind): share.held for key, use in uses.items() for kind, share in use.shares.items()}
    assert held == {
        ("kept", LimitKind.REQUESTS): 4.0,
        ("kept", LimitKind.TOKENS): 4.0,
        ("changed", LimitKind.TOKENS): 4.0,
        ("gone", LimitKind.REQUESTS): 0.0,
        ("gone", LimitKind.TOKENS): 0.0,
        ("without a grant", LimitKind.REQUESTS): 0.0,
        ("without a grant", LimitKind.TOKENS): 0.0,
    }


def test_days_end_when_the_store_reported_and_each_24_hours_later() -> None:
    gateway = Limits()
    share = gateway.use_of(KEY, KeyLimits(tokens_per_day=10)).shares[LimitKind.DAY]
    gateway.take_answer([], answer_of(day_ends_s=100.0), 10.0)
    days = []
    for now in (109.9, 110.0, 110.1, 86_509.9, 86_510.0):
        gateway.asks(now)
        days.append(share.days)
    assert days == [0, 1, 1, 1, 2]


# A charge


def test_a_charge_replaces_the_reservation_of_each_limit_of_tokens_once() -> None:
    place = Place(KeyLimits(rpm=10, tpm=1000, tokens_per_day=500))
    ticket = place.reserve(800)
    assert isinstance(ticket, Ticket)
    shares = ticket.use.shares
    held = {kind: share.held for kind, share in shares.items()}
    assert {kind: share.reserved for kind, share in shares.items()} == {
        LimitKind.REQUESTS: 0,
        LimitKind.TOKENS: 800,
        LimitKind.DAY: 500,
    }, "of each limit at most all of it"
    ticket.charge(900, place.now)
    assert {kind: share.reserved for kind, share in shares.items()} == dict.fromkeys(shares, 0)
    assert {kind: held[kind] - share.held for kind, share in shares.items()} == {
        LimitKind.REQUESTS: 0,
        LimitKind.TOKENS: 100,
        LimitKind.DAY: 400,
    }
    before = shares[LimitKind.TOKENS].held
    ticket.charge(30, place.now)
    assert before - shares[LimitKind.TOKENS].held == 30, "nothing is reserved any more"


def test_a_request_without_a_reservation_is_charged_in_full() -> None:
    place = Place(KeyLimits(tpm=1000))
    ticket = place.request()
    assert isinstance(ticket, Ticket)
    before = ticket.use.shares[LimitKind.TOKENS].held
    ticket.charge(30, place.now)
    assert before - ticket.use.shares[LimitKind.TOKENS].held == 30


@pytest.mark.parametrize(("age_s", "comes_back"), [(59.9, 700), (60.0, 0)])
def test_a_reservation_older_than_a_minute_does_not_come_back_of_a_limit_per_minute(
    age_s: float, comes_back: int
) -> None:
    place = Place(KeyLimits(tpm=1000))
    ticket = place.reserve(800)
    assert isinstance(ticket, Ticket)
    share = ticket.use.shares[LimitKind.TOKENS]
    spent = share.spent
    ticket.charge(100, place.now + age_s)
    assert spent - share.spent == comes_back


def test_a_request_just_after_a_denial_is_refused_without_the_store() -> None:
    place = Place(KeyLimits(rpm=1))
    gateway = place.gateways[0]
    assert isinstance(place.request(), Ticket)
    use = gateway.use_of(KEY, place.limits)
    assert refused(place.request()).code == "rate_limited"
    assert isinstance(gateway.begin(use, place.now + 0.25, DAY_LEFT_S), Refused)
    assert gateway.begin(use, place.now + 0.3, DAY_LEFT_S) is Must.ASK


def test_one_denied_limit_of_several_that_lack_refuses() -> None:
    place = Place(KeyLimits(rpm=1, tpm=100))
    first = place.request()
    assert isinstance(first, Ticket)
    assert refused(place.request()).code == "rate_limited"
    first.charge(200, place.now)
    shares = first.use.shares
    assert [shares[kind].denied(place.now) for kind in (LimitKind.REQUESTS, LimitKind.TOKENS)] == [True, False]
    assert isinstance(place.gateways[0].begin(first.use, place.now, DAY_LEFT_S), Refused)
