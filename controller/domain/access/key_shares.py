"""Shares of keys' limits: each token of a bucket is in one place, in the store or with one gateway.

All gateways together never pass more than the bucket holds, plus what it refills. The bound in full, for a window of
T seconds over all gateways, with capacity C and refill r per second: C + r (T + STALE_S), and one request per gateway
for each time that the database went away. A gateway that is cut off alone for longer than EXPIRES_S adds its fraction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import Final

from schemas.key_limits import LimitKind, ShareAsk, ShareGrant

STALE_S: Final = 2.5  # a gateway that is silent for longer is taken to refill by itself
EXPIRES_S: Final = 10.0  # what a gateway held is the others' when it was silent for that long


@dataclass(frozen=True, slots=True)
class Member:
    """A gateway that takes part.

    Attributes:
        fraction: the part of each refill that is its own while it is out of touch.
        silent_s: since its last exchange.
    """

    fraction: float
    silent_s: float


@dataclass(frozen=True, slots=True)
class Holding:
    """What one gateway holds of one bucket, and the totals of its last ask."""

    held: float = 0.0
    spent: float = 0.0
    minted: float = 0.0
    want: int = 0


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is left of one limit of one key.

    Attributes:
        kind: of the limit.
        capacity: the limit.
        level: what no gateway holds; negative: owed.
        age_s: since `level` was right.
        holdings: by gateway.
    """

    kind: LimitKind
    capacity: int
    level: float
    age_s: float = 0.0
    holdings: Mapping[str, Holding] = field(default_factory=dict)

    def resized(self, capacity: int) -> "Bucket":
        """With a changed limit: what was used stays used, and what exceeds the new one is lost."""
        return replace(self, capacity=capacity, level=self.level + max(0, capacity - self.capacity))


def new_bucket(kind: LimitKind, capacity: int) -> Bucket:
    """A full one."""
    return Bucket(kind, capacity, float(capacity))


def fraction_of(me: str, members: Mapping[str, Member]) -> float:
    """The fraction for one of the members: equal ones, but never more than the others' leave."""
    others = sum(member.fraction for name, member in members.items() if name != me)
    return max(0.0, min(1.0 / len(members), 1.0 - others))


def expired(members: Mapping[str, Member], in_touch_s: float) -> Sequence[str]:
    """Members that were silent for too long while the one that asks was in touch without a gap for `in_touch_s`.

    While the database is away all are silent, and none expires for it.
    """
    return [name for name, member in members.items() if min(member.silent_s, in_touch_s) > EXPIRES_S]


def exchange(bucket: Bucket, ask: ShareAsk, me: str, members: Mapping[str, Member]) -> tuple[Bucket, ShareGrant]:
    """The bucket after one ask, and the answer. `members` includes `me`, with its silence before this ask."""
    holdings = {name: one for name, one in bucket.holdings.items() if name in members}
    if bucket.kind is LimitKind.PARALLEL:
        held = _slots(bucket.capacity, holdings, ask, me)
        level = float(bucket.capacity) - held - sum(one.held for name, one in holdings.items() if name != me)
    else:
        held, level = _tokens(replace(bucket, holdings=holdings), ask, me, members)
    holdings[me] = Holding(held, ask.spent, ask.minted, ask.want)
    after = replace(bucket, level=level, age_s=0.0, holdings=holdings)
    return after, ShareGrant(ask.key, ask.kind, held, level, bucket.capacity)


def _slots(capacity: int, holdings: Mapping[str, Holding], ask: ShareAsk, me: str) -> float:
    """Slots for requests at once: those under way stay held, more only where they are free."""
    free = capacity - sum(one.held for name, one in holdings.items() if name != me)
    return max(ask.spent, min(float(ask.want), free), 0.0)


def _tokens(bucket: Bucket, ask: ShareAsk, me: str, members: Mapping[str, Member]) -> tuple[float, float]:
    """What the gateway holds, and what is left."""
    rate = bucket.kind.per_second(bucket.capacity)
    mine = bucket.holdings.get(me, Holding())
    myself = members[me]
    level = bucket.level + rate * bucket.age_s - _reserved(bucket, members, rate)
    minted = ask.minted - mine.minted
    level -= max(0.0, minted - myself.fraction * rate * max(0.0, myself.silent_s - STALE_S))
    held = mine.held + minted - (ask.spent - mine.spent)
    kept = min(float(floor(max(0.0, held))), float(ask.want))  # fractions go back: two halves pass no request
    level += held - kept
    others = _held_by_others(bucket, me, members, rate)
    kept = min(kept, max(mine.held + minted, floor(max(0.0, bucket.capacity - others))))  # what came back fills no more
    level = min(level, max(0.0, bucket.capacity - kept - others))
    awaited = ask.want - ask.ahead - kept  # what a request waits for is of no use to it in part
    granted = _granted(level, ask.want - kept, awaited, _wanted_by_others(bucket, me, members))
    if len(members) > 1:  # demand moves, and no gateway asks another for what it holds
        granted = min(granted, floor(max(awaited, level / 2, 1.0)))
    return kept + granted, level - granted


def _reserved(bucket: Bucket, members: Mapping[str, Member], rate: float) -> float:
    """What members out of touch have refilled by themselves since the level was right."""
    return sum(
        member.fraction * rate * max(0.0, min(bucket.age_s, member.silent_s - STALE_S)) for member in members.values()
    )


def _held_by_others(bucket: Bucket, me: str, members: Mapping[str, Member], rate: float) -> float:
    held = 0.0
    for name, member in members.items():
        if name != me:
            one = bucket.holdings.get(name, Holding()).held
            alone = rate and member.silent_s > STALE_S
            held += max(one, member.fraction * bucket.capacity) if alone else one
    return held


def _wanted_by_others(bucket: Bucket, me: str, members: Mapping[str, Member]) -> float:
    return sum(
        max(0.0, one.want - one.held)
        for name, one in bucket.holdings.items()
        if name != me and members[name].silent_s <= STALE_S
    )


def _granted(level: float, wanted: float, awaited: float, wanted_by_others: float) -> int:
    """Whole tokens: what is awaited, and of more a part by what each gateway lacks; one at least where there is one."""
    if level < 1 or wanted <= 0:
        return 0
    fair = level * wanted / (wanted + wanted_by_others)
    return floor(min(wanted, level, max(1.0, fair, awaited)))
