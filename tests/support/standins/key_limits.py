"""Gateways before a store of keys' limits in memory, all in touch."""

from dataclasses import replace

from controller.domain.access.key_shares import Bucket, Member, exchange, new_bucket
from gateway.quotas.limits import Limits, Must, Refused, Ticket
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
        gateway.take_answer(asks, SharesAnswer(1 / len(self.gateways), tuple(grants), DAY_LEFT_S), self.now)

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
            found = gateway.begin(use, self.now, DAY_LEFT_S, requested=True)
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
            found = gateway.reserve(ticket, tokens, self.now, DAY_LEFT_S, requested=True)
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
