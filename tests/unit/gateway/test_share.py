"""A gateway's share of one limit, by itself: what it holds, wants and reports. Times are in seconds from 10."""

import pytest

from gateway.quotas.share import Share
from schemas.key_limits import LimitKind, ShareAsk, ShareGrant

KEY = "key-1"
REQUESTS, TOKENS, DAY, PARALLEL = LimitKind.REQUESTS, LimitKind.TOKENS, LimitKind.DAY, LimitKind.PARALLEL


def share(kind: LimitKind, capacity: int, held: float | None = None, level: float = 0.0) -> Share:
    """A share as the store granted it at 10; None: it has never answered."""
    made = Share(KEY, kind, capacity)
    if held is not None:
        made.granted(ShareAsk(KEY, kind, 0.0, 0.0, 0), ShareGrant(KEY, kind, held, level, capacity), 10.0)
    return made


@pytest.mark.parametrize(
    ("made", "now", "left"),
    [
        (share(TOKENS, 60), 99.0, 0.0),
        (share(TOKENS, 60, 5, 10), 10.0, 15.0),
        (share(TOKENS, 60, 5, 10), 13.0, 18.0),
        (share(TOKENS, 60, 5, 10), 1000.0, 60.0),
        (share(REQUESTS, 60, 5, 10), 13.0, 18.0),
        (share(DAY, 60, 5, 10), 1000.0, 15.0),
        (share(PARALLEL, 60, 5, 10), 1000.0, 15.0),
    ],
)
def test_what_is_left_here_and_at_the_store(made: Share, now: float, left: float) -> None:
    assert made.left(now) == left


def test_slots_in_use_are_not_left_and_what_the_store_has_is_unknown_while_it_is_away() -> None:
    slots = share(PARALLEL, 10, 3, 4)
    slots.take()
    slots.take()
    assert slots.left(10.0) == 5
    tokens = share(TOKENS, 60, 5, 10)
    tokens.refill_alone(10.0, 0.5)
    assert tokens.left(20.0) == 5
    assert share(TOKENS, 60, 5, 10).wait_s(10.0, None, 15) == 0.0


@pytest.mark.parametrize(
    ("made", "need", "fraction", "wait_s"),
    [
        (share(DAY, 60, 1, 0), 1, None, 0.0),
        (share(DAY, 60, 1, 0), 2, None, 1.0),
        (share(PARALLEL, 60, 0, 0), 1, None, 1.0),
        (share(TOKENS, 600, 0, 0), 5, None, 0.5),
        (share(TOKENS, 600, 0, 0), 5, 0.5, 1.0),
        (share(REQUESTS, 600, 2, 1), 5, None, 0.2),
    ],
)
def test_the_time_until_so_much_is_left(made: Share, need: int, fraction: float | None, wait_s: float) -> None:
    assert made.wait_s(10.0, fraction, need) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("made", "debt", "fraction", "held", "later", "at_last"),
    [
        (share(TOKENS, 600, 0, 100), 0, 0.5, 1, 31, 300),
        (share(TOKENS, 600, 0.5, 100), 0, 0.5, 1, 31, 300),
        (share(TOKENS, 600, 5, 100), 0, 0.5, 5, 35, 300),
        (share(TOKENS, 600, 0, 100), 40, 0.5, 1, 31, 300),  # the store could pay it
        (share(TOKENS, 600, 0, 100), 80, 0.5, -29, 1, 300),  # half of it
        (share(TOKENS, 600, 0, -5), 80, 0.5, -79, -49, 300),
        (share(TOKENS, 600), 30, 0.5, -29, 1, 300),
        (share(TOKENS, 600), 0, 0.001, 1, 1, 1),
        (share(REQUESTS, 60), 0, 0.5, 1, 4, 30),
        (share(DAY, 600, 0, 40), 0, 0.5, 20, 20, 20),
        (share(DAY, 600, 7, 40), 0, 0.5, 27, 27, 27),
        (share(DAY, 600), 0, 0.5, 300, 300, 300),
        (share(PARALLEL, 5, 0, 0), 0, 0.5, 2, 2, 2),
        (share(PARALLEL, 5, 3, 0), 0, 0.5, 3, 3, 3),
        (share(PARALLEL, 5, 0, 0), 0, 0.1, 1, 1, 1),
    ],
)
def test_a_gateway_alone_refills_by_its_fraction(
    made: Share, debt: float, fraction: float, held: float, later: float, at_last: float
) -> None:
    if debt:
        made.charge(debt)
    before = made.held
    made.refill_alone(10.0, fraction)
    assert made.held == pytest.approx(held)
    made.refill_alone(16.0, fraction)
    assert made.held == pytest.approx(later)
    made.refill_alone(1e6, fraction)
    assert made.held == pytest.approx(at_last)
    assert made.minted == pytest.approx(0.0 if made.kind is PARALLEL else at_last - before)


@pytest.mark.parametrize(("fraction", "held", "minted"), [(None, 7.0, 0.0), (0.25, 25.0, 18.0)])
def test_a_new_day_forgets_what_was_used_of_a_limit_per_day(fraction: float | None, held: float, minted: float) -> None:
    day = share(DAY, 100, 10, 0)
    day.reserve(3)
    day.new_day(fraction)
    assert (day.held, day.minted, day.days, day.reserved) == (held, minted, 1, 0)
    assert day.left(10.0) == 100
    tokens = share(TOKENS, 100, 10, 0)
    tokens.reserve(3)
    tokens.new_day(fraction)
    assert (tokens.held, tokens.minted, tokens.days, tokens.reserved) == (7.0, 0.0, 0, 3)
    none = share(DAY, 100, 0, 0)
    assert none.denied(10.0)
    none.new_day(fraction)
    assert not none.denied(10.0)


@pytest.mark.parametrize(
    ("made", "now", "denied"),
    [
        (share(TOKENS, 60), 0.0, False),
        (share(TOKENS, 60, 0, 0), 10.0, True),
        (share(TOKENS, 60, 0, 0), 10.25, True),
        (share(TOKENS, 60, 0, 0), 10.26, False),
        (share(TOKENS, 600, 0, 0), 10.05, True),
        (share(TOKENS, 600, 0, 0), 10.125, False),  # more than one is left again
        (share(PARALLEL, 60, 0, 0), 10.04, True),
        (share(PARALLEL, 60, 0, 0), 10.06, False),
    ],
)
def test_a_denial_lasts_for_a_moment(made: Share, now: float, denied: bool) -> None:
    assert made.denied(now) is denied


def test_one_that_got_something_is_not_denied_when_it_is_used() -> None:
    made = share(REQUESTS, 60, 1, 0)
    made.take()
    assert (made.held, made.denied(10.0)) == (0, False)


@pytest.mark.parametrize(
    ("made", "short"),
    [
        (share(TOKENS, 100), False),
        (share(TOKENS, 100, 0, 25), False),
        (share(TOKENS, 100, 0, 24.9), True),
        (share(DAY, 100, 0, 24.9), True),
        (share(TOKENS, 100, -1, 90), True),
        (share(TOKENS, 2, 0, 1), False),
        (share(TOKENS, 2, 0, 0.9), True),
        (share(REQUESTS, 100, 0, 1), False),
        (share(REQUESTS, 100, 0, 0.9), True),
    ],
)
def test_a_share_is_short_where_the_store_has_little_or_is_owed(made: Share, short: bool) -> None:
    assert made.is_short() is short


def test_a_lowered_limit_bounds_what_is_held() -> None:
    made = share(TOKENS, 20, 10, 0)
    made.capacity = 5
    assert [made.has(5), made.has(6)] == [True, False]
    slots = share(PARALLEL, 20, 3, 0)
    slots.take()
    slots.take()
    assert [slots.has(1), slots.has(2)] == [True, False]
    slots.capacity = 2
    assert not slots.has()


@pytest.mark.parametrize(
    ("kind", "taken", "left"),
    [
        (REQUESTS, (9.0, 1.0), (9.0, 1.0)),
        (PARALLEL, (10.0, 1.0), (10.0, 0.0)),
        (TOKENS, (10.0, 0.0), (10.0, 0.0)),
        (DAY, (10.0, 0.0), (10.0, 0.0)),
    ],
)
def test_a_request_takes_one_of_requests_and_of_slots(
    kind: LimitKind, taken: tuple[float, float], left: tuple[float, float]
) -> None:
    made = share(kind, 100, 10, 0)
    made.take()
    assert (made.held, made.spent) == taken
    made.leave()
    assert (made.held, made.spent) == left


@pytest.mark.parametrize(
    ("kind", "reserved", "used", "age_s", "spent"),
    [
        (TOKENS, 50, 20, 59.9, 20),
        (TOKENS, 50, 20, 60.0, 50),
        (TOKENS, 50, 70, 60.0, 70),
        (DAY, 50, 20, 1e6, 20),
        (TOKENS, 0, 20, 0.0, 20),
    ],
)
def test_of_a_reservation_what_was_not_used_comes_back(
    kind: LimitKind, reserved: int, used: int, age_s: float, spent: float
) -> None:
    made = share(kind, 1000, 100, 0)
    made.reserve(reserved)
    assert (made.held, made.spent, made.reserved) == (100 - reserved, reserved, reserved)
    made.settle(reserved, used, 10.0, age_s)
    assert (made.held, made.spent, made.reserved) == (100 - spent, spent, 0)


@pytest.mark.parametrize(("held", "level", "kept"), [(5, 95, 5), (5, 50, 50), (60, 50, 60), (-10, 120, 0)])
def test_what_comes_back_here_is_bounded_by_what_the_bucket_lacks(held: float, level: float, kept: float) -> None:
    made = share(TOKENS, 100)
    made.reserve(200)
    ask = ShareAsk(KEY, TOKENS, 200.0, 0.0, 0)
    made.granted(ask, ShareGrant(KEY, TOKENS, held, level, 100), 10.0)
    made.settle(200, 0, 10.0, 1.0)
    assert made.held == kept


@pytest.mark.parametrize(("kind", "held"), [(REQUESTS, 60.0), (TOKENS, 50.0)])
def test_what_was_minted_since_an_ask_stays(kind: LimitKind, held: float) -> None:
    made = share(kind, 100)
    ask = ShareAsk(KEY, kind, 0.0, made.minted, 0)
    made.minted += 10.0
    made.granted(ask, ShareGrant(KEY, kind, 50.0, 80.0, 100), 10.0)
    assert made.held == held


def asked(made: Share, now: float) -> tuple[float, float, int, int] | None:
    found = made.ask(now)
    return None if found is None else (found.spent, found.minted, found.want, found.ahead)


def test_nothing_is_asked_where_nothing_would_change() -> None:
    made = share(REQUESTS, 100)
    assert asked(made, 10.0) is None
    made.waiting = 1
    assert asked(made, 10.0) == (0, 0, 1, 0)
    made.waiting = 0
    alone = share(REQUESTS, 100)
    alone.refill_alone(10.0, 0.5)
    alone.take()
    ask = alone.ask(10.0)
    assert ask is not None
    assert (ask.spent, ask.minted, ask.want, ask.ahead) == (1, 1, 0, 0)
    alone.granted(ask, ShareGrant(KEY, REQUESTS, 0.0, 50.0, 100), 10.0)
    assert asked(alone, 10.1) is None
    alone.spent += 1
    assert asked(alone, 10.2) == (2, 1, 0, 0)


def test_what_is_not_wanted_is_given_back_but_slots_in_use() -> None:
    made = share(REQUESTS, 100, 10, 0)
    made.take()
    assert asked(made, 10.1) == (1, 0, 0, 0)
    assert made.held == 0
    slots = share(PARALLEL, 10, 5, 0)
    slots.take()
    slots.take()
    assert (asked(slots, 10.0), slots.held) == ((2, 0, 2, 2), 2)
    slots.held, slots.capacity = 5.0, 1
    assert (asked(slots, 10.0), slots.held) == ((2, 0, 1, 1), 2)
    owed = share(REQUESTS, 100, -3, 0)
    asked(owed, 10.0)
    assert owed.held == -3


@pytest.mark.parametrize(
    ("kind", "capacity", "wants"),
    [(REQUESTS, 6000, [0, 40, 20, 20, 10]), (TOKENS, 80, [0, 10, 10, 10, 10]), (REQUESTS, 30, [0, 30, 20, 20, 10])],
)
def test_a_share_lasts_for_two_seconds_of_the_latest_use(kind: LimitKind, capacity: int, wants: list[int]) -> None:
    made = share(kind, capacity, 1000, 0)
    found = []
    for now, used in ((11.0, 10), (12.0, 20), (13.0, 0), (13.4, 0), (14.0, 0)):
        if used:
            made.charge(used)
        ask = made.ask(now)
        assert ask is not None
        found.append(ask.want)
        made.held = 1000.0
    assert found == wants
    assert not made.rests()
    made.waiting = 7
    ask = made.ask(14.1)
    assert ask is not None
    assert (ask.want, ask.ahead) == (wants[-1] + 7, wants[-1])


def test_a_share_follows_falling_use_by_halves() -> None:
    made = share(REQUESTS, 60_000, 1000, 0)
    wants = []
    for now, used in ((11.0, 0), (12.0, 100), (13.0, 20), (13.5, 10)):  # half a second is the shortest time measured
        made.charge(used)
        ask = made.ask(now)
        assert ask is not None
        wants.append(ask.want)
        made.held = 1000.0
    assert wants == [0, 200, 120, 80]


def test_a_share_rests_once_its_use_is_long_past() -> None:
    made = share(REQUESTS, 6000, 100, 0)
    assert made.rests()
    made.charge(10)
    assert not made.rests()
    made.ask(11.0)
    assert made.rests()
    made.charge(10)
    for second in range(12, 16):
        made.ask(float(second))
        assert not made.rests()
    for second in range(16, 30):
        made.ask(float(second))
    assert made.rests()
    made.charge(-5)
    assert made.rests(), "what comes back is not usage"
    assert share(PARALLEL, 5, 1, 0).rests()
