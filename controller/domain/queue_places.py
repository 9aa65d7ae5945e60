"""Places in a model's queue, leased to gateways: all of them together never hold more than the queue's length. Pure.

A gateway holds a place for each request that waits there, and none beyond that, so one gateway can have them all.
Where gateways lack places, each may keep its fair share; one with more takes no new request until it has returned
what exceeds it. While no gateway can ask, each lets its part of the length wait. One that is cut off alone lets none
wait beside those that do: after `EXPIRES_S` the others have all places.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

EXPIRES_S: Final = 10.0  # what a gateway held is the others' when it was silent for that long


@dataclass(frozen=True, slots=True)
class PlacesAsk:
    """A gateway's report of one queue.

    Attributes:
        deployment: its uid.
        length: of the queue.
        placed: requests that wait there with a place.
        need: requests that wait there, with a place or for one.
        since_s: for how long the oldest of those has waited for a place.
    """

    deployment: str
    length: int
    placed: int
    need: int
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Holder:
    """Another gateway: what it held and needed when it last asked, `age_s` ago."""

    held: int
    need: int
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacesGrant:
    """The answer.

    Attributes:
        deployment: its uid.
        held: places that are this gateway's: at least one for each request that has one.
        usable: requests that may wait there. Where it is less than what waits, others have a right to the difference.
        elsewhere: places of other gateways.
        known_s: all others have asked within so many seconds.
    """

    deployment: str
    held: int
    usable: int
    elsewhere: int
    known_s: float


def present(holders: Mapping[str, Holder], in_touch_s: float) -> dict[str, Holder]:
    """The holders that count. One expires only while the gateway that asks was in touch for as long.

    While the database is away all are silent, and none expires for it.
    """
    return {name: one for name, one in holders.items() if min(one.age_s, in_touch_s) <= EXPIRES_S}


def lease_places(ask: PlacesAsk, others: Mapping[str, Holder]) -> PlacesGrant:
    """What a gateway holds after it has asked. `others`: every other gateway that holds or needs a place."""
    elsewhere = sum(one.held for one in others.values())
    free = ask.length - elsewhere
    usable = min(ask.need, free)
    if any(one.need > one.held for one in others.values()):
        fair = ask.length // (1 + sum(one.need > 0 for one in others.values()))
        rightful = sum(max(0, min(one.need, fair) - one.held) for one in others.values())
        usable = min(usable, max(fair, free - rightful))
    usable = max(usable, 0)
    known_s = max((one.age_s for one in others.values()), default=0.0)
    return PlacesGrant(ask.deployment, max(ask.placed, usable), usable, elsewhere, known_s)


def part_of_length(length: int, rank: int, gateways: int) -> int:
    """How many requests may wait at one of several gateways that cannot ask. The parts add up to the length.

    Args:
        length: of the queue.
        rank: of the gateway among all, from 0.
        gateways: how many there are, at least 1.
    """
    return length // gateways + (rank < length % gateways)
