"""Shares of keys' limits: each token of a bucket is held by the store or by one gateway.

All gateways together never pass more than the bucket holds and refills. The exact bound for a window of T seconds, with
capacity C and refill r per second, is C + r (T + STALE_S), plus one request per gateway for each loss of the database.
A gateway that alone lacks the database for longer than EXPIRES_S adds its fraction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final

from schemas.key_limits import LimitKind, ShareAsk, ShareGrant

STALE_S: Final = 2.5  # a gateway that is silent for longer is assumed to refill by itself
EXPIRES_S: Final = 10.0  # after this silence the tokens of a gateway belong to the others


@dataclass(frozen=True, slots=True)
class Member:
    """A gateway that takes part."""

    fraction: float  # of each refill, which it takes while it is out of touch
    silent_s: float  # since its last exchange


@dataclass(frozen=True, slots=True)
class Holding:
    """What one gateway holds of one bucket, and the totals of its last request for a share."""

    held: float = 0.0
    spent: float = 0.0
    minted: float = 0.0
    want: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tokens of one limit of one key."""

    kind: LimitKind
    capacity: int  # the limit
    level: float  # tokens that no gateway holds; negative: owed
    age_s: float = 0.0  # since `level` was right
    holdings: Mapping[str, Holding] = field(default_factory=dict)  # by gateway

    def resized(self, capacity: int) -> "Bucket":
        """The bucket with a changed limit: used tokens stay used, and tokens above the new limit are lost."""
        return replace(self, capacity=capacity, level=self.level + max(0, capacity - self.capacity))


def new_bucket(kind: LimitKind, capacity: int) -> Bucket:
    return Bucket(kind, capacity, float(capacity))


def fraction_of(me: str, members: Mapping[str, Member]) -> float:
    """An equal fraction for each member, but at most what the other members leave."""
    others = sum(member.fraction for name, member in members.items() if name != me)
    return max(0.0, min(1.0 / len(members), 1.0 - others))


def expired(members: Mapping[str, Member], in_touch_s: float) -> Sequence[str]:
    """Members that were silent for too long while the requesting member was in touch without a gap for `in_touch_s`."""
    # Not their silence alone: without the database all members are silent, and none shall expire for that.
    return [name for name, member in members.items() if min(member.silent_s, in_touch_s) > EXPIRES_S]


def exchange(bucket: Bucket, ask: ShareAsk, me: str, members: Mapping[str, Member]) -> tuple[Bucket, ShareGrant]:
    """The bucket after one exchange, and the answer. `members` includes `me`, with its silence before this request."""
    holdings = {name: holding for name, holding in bucket.holdings.items() if name in members}
    if bucket.kind is LimitKind.PARALLEL:
        held = _slots(bucket.capacity, holdings, ask, me)
        level = float(bucket.capacity) - held - sum(holding.held for name, holding in holdings.items() if name != me)
    else:
        held, level = _tokens(replace(bucket, holdings=holdings), ask, me, members)
    holdings[me] = Holding(held, ask.spent, ask.minted, ask.want)
    after = replace(bucket, level=level, age_s=0.0, holdings=holdings)
    return after, ShareGrant(ask.key, ask.kind, held, level, bucket.capacity)


def _slots(capacity: int, holdings: Mapping[str, Holding], ask: ShareAsk, me: str) -> float:
    """Slots for parallel requests: requests under way keep theirs, and more are held only if they are free."""
    free = capacity - sum(holding.held for name, holding in holdings.items() if name != me)
    return max(ask.spent, min(float(ask.want), free), 0.0)


def _tokens(bucket: Bucket, ask: ShareAsk, me: str, members: Mapping[str, Member]) -> tuple[float, float]:
    """What the gateway holds, and the level."""
    rate = bucket.kind.per_second(bucket.capacity)
    mine = bucket.holdings.get(me, Holding())
    myself = members[me]
    level = bucket.level + rate * bucket.age_s - _reserved(bucket, members, rate)
    minted = ask.minted - mine.minted
    level -= max(0.0, minted - myself.fraction * rate * max(0.0, myself.silent_s - STALE_S))
    held = mine.held + minted - (ask.spent - mine.spent)
    kept = min(
        float(floor(max(0.0, held))), float(ask.want)
    )  # fractions return to the bucket: two halves pass no request
    level += held - kept
    others = _held_by_others(bucket, me, members, rate)
    kept = min(
        kept, max(mine.held + minted, floor(max(0.0, bucket.capacity - others)))
    )  # the bucket cannot fill above its capacity
    level = min(level, max(0.0, bucket.capacity - kept - others))
    awaited = ask.want - ask.ahead - kept  # a part of what a request waits for is of no use to it
    granted = _granted(level, ask.want - kept, awaited, _wanted_by_others(bucket, me, members))
    if len(members) > 1:  # demand moves, and no gateway can claim what another holds
        granted = min(granted, floor(max(awaited, level / 2, 1.0)))
    return kept + granted, level - granted


def _reserved(bucket: Bucket, members: Mapping[str, Member], rate: float) -> float:
    """The tokens that members out of touch have refilled by themselves since the level was right."""
    return sum(
        member.fraction * rate * max(0.0, min(bucket.age_s, member.silent_s - STALE_S)) for member in members.values()
    )


def _held_by_others(bucket: Bucket, me: str, members: Mapping[str, Member], rate: float) -> float:
    held = 0.0
    for name, member in members.items():
        if name != me:
            known = bucket.holdings.get(name, Holding()).held
            alone = rate and member.silent_s > STALE_S
            held += max(known, member.fraction * bucket.capacity) if alone else known
    return held


def _wanted_by_others(bucket: Bucket, me: str, members: Mapping[str, Member]) -> float:
    return sum(
        max(0.0, holding.want - holding.held)
        for name, holding in bucket.holdings.items()
        if name != me and members[name].silent_s <= STALE_S
    )


def _granted(level: float, wanted: float, awaited: float, wanted_by_others: float) -> int:
    """Tokens to grant: those awaited, and a share of the rest by what each gateway lacks; at least 1 if there is 1."""
    if level < 1 or wanted <= 0:
        return 0
    fair = level * wanted / (wanted + wanted_by_others)
    return floor(min(wanted, level, max(1.0, fair, awaited)))
