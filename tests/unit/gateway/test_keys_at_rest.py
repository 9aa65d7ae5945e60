"""What a gateway asks of the store costs what was used lately, not the keys that were ever seen."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from gateway.quotas.limits import Limits, Must, Refused, Ticket
from gateway.quotas.share import Share
from schemas.key_limits import KeyLimits, ShareAsk, ShareGrant, SharesAnswer

DAY_LEFT_S = 1e6
LIMITS = KeyLimits(rpm=600, tpm=6000, parallel=8, tokens_per_day=100_000)


@dataclass
class Gateway:
    """One before a store that gives all that is asked. `all_keys`: it looks at all of them each time."""

    all_keys: bool = False
    now: float = 10.0
    limits: Limits = field(default_factory=Limits)

    def talk(self) -> Sequence[ShareAsk]:
        if self.all_keys:
            self.limits._stirred.update(self.limits.keys)
        asks = self.limits.asks(self.now)
        grants = tuple(ShareGrant(ask.key, ask.kind, float(ask.want), 1000.0, 8) for ask in asks)
        self.limits.take_answer(asks, SharesAnswer(1.0, grants, DAY_LEFT_S), self.now)
        return sorted(asks, key=lambda ask: (ask.key, ask.kind))

    def begin(self, key: str) -> Ticket:
        use = self.limits.use_of(key, LIMITS)
        found = self.limits.begin(use, self.now, DAY_LEFT_S)
        if found is Must.ASK:
            for share in use.shares.values():
                share.waiting += 1
            self.talk()
            for share in use.shares.values():
                share.waiting -= 1
            found = self.limits.begin(self.limits.use_of(key, LIMITS), self.now, DAY_LEFT_S, requested=True)
        assert not isinstance(found, Must | Refused)
        return found

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.talk()


def test_keys_that_are_not_used_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = Gateway()
    for n in range(500):
        ticket = gateway.begin(f"k-{n}")
        ticket.charge(10, gateway.now)
        ticket.end()
    under_way = gateway.begin("k-0")
    gateway.wait(60)
    looked = 0
    ask = Share.ask

    def counted(share: Share, now: float) -> ShareAsk | None:
        nonlocal looked
        looked += 1
        return ask(share, now)

    monkeypatch.setattr(Share, "ask", counted)
    gateway.talk()
    assert looked == len(LIMITS.capacities()), "those of the key with a request under way"
    under_way.end()
    gateway.wait(60)
    looked = 0
    gateway.talk()
    assert looked == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_asks_are_those_of_a_look_at_all_keys(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - of no secret
    both = Gateway(), Gateway(all_keys=True)
    tickets: list[tuple[Ticket, ...]] = []
    asked = 0
    for _ in range(1500):
        match draw.choice(["begin", "end", "end", "tick", "tick", "long", "forget"]):
            case "begin" if len(tickets) < 6:
                key = draw.choice(["a", "b", "c"])
                tickets.append(tuple(one.begin(key) for one in both))
            case "end" if tickets:
                tokens = draw.choice([0, 1, 40])
                for ticket in tickets.pop(draw.randrange(len(tickets))):
                    ticket.charge(tokens, both[0].now)
                    ticket.end()
            case "tick" | "long" as step:
                seconds = draw.choice([0.6, 1.0]) if step == "tick" else draw.choice([3.0, 40.0])
                for _ in range(int(seconds) or 1):
                    for one in both:
                        one.now += min(seconds, 1.0)
                    found, expected = (one.talk() for one in both)
                    assert found == expected
                    asked += len(found)
            case "forget" if draw.random() < 0.05:
                for one in both:
                    one.limits.forget(["a"])
    assert asked > 100
