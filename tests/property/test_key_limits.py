"""Limits of keys over several gateways: never more than the stated bound, and never locked out."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from controller.domain.access.key_shares import (
    STALE_S,
    Bucket,
    Holding,
    Member,
    exchange,
    expired,
    fraction_of,
    new_bucket,
)
from gateway.quotas.limits import Limits, Must, Ticket
from schemas.key_limits import KeyLimits, LimitKind, ShareAsk, SharesAnswer
from support.profiles import examples

KEY = "key-1"
Step = tuple[Any, ...]


class Store:
    """What the tables hold, in memory."""

    def __init__(self, capacities: dict[LimitKind, int]) -> None:
        self.buckets = {kind: new_bucket(kind, limit) for kind, limit in capacities.items()}
        self.at = dict.fromkeys(capacities, 0.0)
        self.seen: dict[str, float] = {}
        self.in_touch_since: dict[str, float] = {}
        self.fractions: dict[str, float] = {}
        self.away = False

    def exchange(self, me: str, asks: list[ShareAsk], now: float) -> SharesAnswer:
        joined = me not in self.seen
        if joined or now - self.seen[me] > STALE_S:
            self.in_touch_since[me] = now
        members = self.members(now)
        members.setdefault(me, Member(0.0, 0.0))
        for name in expired(members, now - self.in_touch_since[me]):
            if name != me:
                del members[name], self.seen[name], self.fractions[name]
        self.fractions[me] = fraction_of(me, members)
        grants = []
        for ask in asks:
            bucket = replace(self.buckets[ask.kind], age_s=now - self.at[ask.kind])
            if joined:
                bucket = _baseline(bucket, me, ask)
            self.buckets[ask.kind], grant = exchange(bucket, ask, me, members)
            self.at[ask.kind] = now
            grants.append(grant)
        self.seen[me] = now
        return SharesAnswer(self.fractions[me], tuple(grants), 86400.0)

    def members(self, now: float) -> dict[str, Member]:
        return {name: Member(self.fractions[name], now - seen) for name, seen in self.seen.items()}


def _baseline(bucket: Bucket, me: str, ask: ShareAsk) -> Bucket:
    return replace(bucket, holdings={**bucket.holdings, me: Holding(0.0, ask.spent, ask.minted, 0)})


class World:
    """Gateways before one store, and what they let pass."""

    def __init__(self, limits: KeyLimits, names: list[str]) -> None:
        self.limits = limits
        self.store = Store(dict(limits.capacities()))
        self.gateways = {name: Limits() for name in names}
        self.now = 100.0
        self.passed: list[float] = []
        self.outages = 0
        for name in names:
            self.talk(name)

    def talk(self, name: str, *, lose_answer: bool = False) -> None:
        gateway = self.gateways[name]
        if self.store.away:
            gateway.away = True
            return
        asks = gateway.asks(self.now)
        answer = self.store.exchange(name, asks, self.now)
        if not lose_answer:
            gateway.take_answer(asks, answer, self.now)

    def request(self, name: str) -> bool:
        gateway = self.gateways[name]
        use = gateway.use_of(KEY, self.limits)
        found = gateway.begin(use, self.now, 3600.0)
        if found is Must.ASK:
            for share in use.shares.values():
                share.waiting += 1
            self.talk(name)
            for share in use.shares.values():
                share.waiting -= 1
            found = gateway.begin(use, self.now, 3600.0, requested=True)
        if isinstance(found, Ticket):
            self.passed.append(self.now)
            found.end()
        return isinstance(found, Ticket)

    def reserve(self, name: str, tokens: int) -> Ticket | None:
        """A request that may use so many tokens; None: refused."""
        gateway = self.gateways[name]
        use = gateway.use_of(KEY, self.limits)
        found = gateway.begin(use, self.now, 3600.0)
        if found is Must.ASK:
            self._talk_for(name, dict.fromkeys(use.shares, 1))
            found = gateway.begin(use, self.now, 3600.0, requested=True)
        if not isinstance(found, Ticket):
            return None
        refused = gateway.reserve(found, tokens, self.now, 3600.0)
        if refused is Must.ASK:
            self._talk_for(name, use.lacks(tokens))
            refused = gateway.reserve(found, tokens, self.now, 3600.0, requested=True)
        if refused is None:
            return found
        found.charge(0, self.now)
        found.end()
        return None

    def _talk_for(self, name: str, needs: dict[LimitKind, int]) -> None:
        shares = self.gateways[name].use_of(KEY, self.limits).shares
        for kind, need in needs.items():
            shares[kind].waiting += need
        self.talk(name)
        for kind, need in needs.items():
            shares[kind].waiting -= need

    def wait(self, seconds: float) -> None:
        """Time passes; each gateway talks to the store once a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            for name in self.gateways:
                self.talk(name)

    def die(self, name: str, gone: str) -> None:
        """The gateway is gone at once, and another one takes its place, which the store knows by another id."""
        self.gateways[name] = Limits()
        store = self.store
        store.in_touch_since.pop(name, None)
        if name not in store.seen:
            return
        store.seen[gone], store.fractions[gone] = store.seen.pop(name), store.fractions.pop(name)
        for kind, bucket in store.buckets.items():
            holdings = {(gone if one == name else one): held for one, held in bucket.holdings.items()}
            store.buckets[kind] = replace(bucket, holdings=holdings)

    def most_in(self, window_s: float) -> int:
        return max(
            (sum(1 for at in self.passed[first:] if at - start <= window_s) for first, start in enumerate(self.passed)),
            default=0,
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.sampled_from("PQR"), st.integers(1, 80)),
        st.tuples(st.just("wait"), st.floats(0.1, 30.0)),
        st.tuples(st.just("away")),
        st.tuples(st.just("back")),
        st.tuples(st.just("die"), st.sampled_from("PQR")),
        st.tuples(st.just("lost"), st.sampled_from("PQR")),
    ),
    max_size=25,
)


def _run(world: World, steps: list[Step]) -> int:
    """Runs the steps. Returns how many requests gateways may give away for outages and new gateways."""
    born = 3
    for kind, *rest in steps:
        match kind:
            case "request":
                for _ in range(rest[1]):
                    world.request(rest[0])
            case "wait":
                world.wait(rest[0])
            case "away" | "back":
                world.outages += kind == "away" and not world.store.away
                world.store.away = kind == "away"
                for name in world.gateways:
                    world.talk(name)
            case "die":
                world.die(rest[0], f"{rest[0]}{born}")
                born += 1
            case _:
                world.talk(rest[0], lose_answer=True)
    return 3 * world.outages + born


@examples(150)
@given(rpm=st.sampled_from([1, 6, 60, 600]), steps=STEPS)
def test_never_more_passes_than_the_bound(rpm: int, steps: list[Step]) -> None:
    world = World(KeyLimits(rpm=rpm), ["P", "Q", "R"])
    given_away = _run(world, steps)
    for window in (0.0, 10.0, 60.0, 300.0):
        assert world.most_in(window) <= rpm + rpm / 60 * (window + STALE_S) + given_away
    if not world.outages and not any(step[0] == "die" for step in steps):
        for window in (0.0, 10.0, 60.0, 300.0):
            assert world.most_in(window) <= rpm + rpm / 60 * window + 1e-6


@examples(100)
@given(rpm=st.sampled_from([1, 6, 60]), parallel=st.sampled_from([None, 2]), steps=STEPS)
def test_no_key_is_locked_out(rpm: int, parallel: int | None, steps: list[Step]) -> None:
    """Whatever happened: each gateway lets a request pass again once the bucket had time to refill."""
    world = World(KeyLimits(rpm=rpm, tpm=1000, parallel=parallel), ["P", "Q", "R"])
    given_away = _run(world, steps)
    world.store.away = False
    world.wait(20.0 + 60.0 / rpm * given_away)  # what outages gave away is owed
    for name in "PQR":
        world.wait(2 * 60.0 / rpm + 5.0)
        assert world.request(name), name
    world.store.away = True
    for name in "PQR":
        world.talk(name)
    world.wait(4 * 60.0 / rpm + 5.0)
    assert all(world.request(name) for name in "PQR")


TOKEN_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.sampled_from("PQR"), st.integers(1, 1000), st.integers(1, 20)),
        st.tuples(st.just("end"), st.integers(1, 20), st.floats(0.0, 1.0)),
        st.tuples(st.just("wait"), st.floats(0.1, 30.0)),
        st.tuples(st.just("lost"), st.sampled_from("PQR")),
    ),
    max_size=30,
)


@examples(150)
@given(steps=TOKEN_STEPS)
def test_what_requests_may_use_together_stays_within_the_limit_of_tokens(steps: list[Step]) -> None:
    """Whenever they end, and at whatever gateway.

    Of what is admitted in a window no more is used than the bucket, its refill, and what came back of earlier ones.
    """
    tpm = 1000
    world = World(KeyLimits(tpm=tpm), ["P", "Q", "R"])
    under_way: list[tuple[float, Ticket, int]] = []
    used: list[tuple[float, int]] = []
    back: list[tuple[float, float, int]] = []  # when it came, when it was reserved, and how much
    for kind, *rest in steps:
        match kind:
            case "request":
                name, tokens, count = rest
                found = [ticket for _ in range(count) if (ticket := world.reserve(name, tokens)) is not None]
                under_way += [(world.now, ticket, tokens) for ticket in found]
            case "end":
                for at, ticket, tokens in under_way[: rest[0]]:
                    used.append((at, int(tokens * rest[1])))
                    ticket.charge(used[-1][1], world.now)
                    back.append((world.now, at, tokens - used[-1][1]))
                    ticket.end()
                del under_way[: rest[0]]
            case "wait":
                world.wait(rest[0])
            case _:
                world.talk(rest[0], lose_answer=True)
    used += [(at, tokens) for at, _, tokens in under_way]
    for start, _ in used:
        for window in (0.0, 10.0, 60.0, 300.0):
            fresh = sum(n for at, since, n in back if since < start <= at <= start + window and at - since < 60.0)
            passed = sum(n for at, n in used if start <= at <= start + window)
            assert passed <= tpm + tpm / 60 * window + fresh + 1e-6
            if window == 0.0 and not any(start == at for at, _, _ in back):
                assert passed <= tpm + 1e-6
    for _, ticket, _ in under_way:
        ticket.charge(0, world.now)
        ticket.end()
    world.wait(300.0)
    assert world.reserve("P", tpm) is not None, "alone in its window"


@examples(60)
@given(rpm=st.sampled_from([60, 600]), demand=st.lists(st.integers(0, 40), min_size=10, max_size=60))
@example(rpm=60, demand=[0] * 8 + [20, 21])
@example(rpm=60, demand=[15, *[0] * 7, 22, 35, *[0] * 5])
def test_the_whole_limit_can_be_used_wherever_the_demand_is(rpm: int, demand: list[int]) -> None:
    """Demand at changing gateways passes most of what one bucket at one gateway would let pass."""
    world = World(KeyLimits(rpm=rpm), ["P", "Q", "R"])
    level = float(rpm)
    possible = 0
    for turn, count in enumerate(demand):
        for _ in range(count):
            world.request("PQR"[turn % 3])
        passing = min(count, int(level))
        possible += passing
        level = min(float(rpm), level - passing + rpm / 60)
        world.wait(1.0)
    # What other gateways keep ahead for themselves, at most for a few seconds each, may be missing.
    assert len(world.passed) >= possible * 0.75 - rpm / 60 * 6 - 3


def test_the_property_test_sees_a_broken_store() -> None:
    world = World(KeyLimits(rpm=60), ["P", "Q"])
    kept = world.store.buckets[LimitKind.REQUESTS]
    for name in "PQPQPQ":
        world.store.buckets[LimitKind.REQUESTS] = replace(world.store.buckets[LimitKind.REQUESTS], level=kept.level)
        for _ in range(60):
            world.request(name)
    assert world.most_in(0.0) > 60
    assert all(later >= earlier for earlier, later in pairwise(world.passed))
