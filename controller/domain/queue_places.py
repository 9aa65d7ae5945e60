"""Leases of the places in a model's queue: all gateways together never hold more places than the queue has.

A gateway holds one place for each request that waits there, so one gateway can have them all. If gateways lack places,
each may keep its fair share; a gateway with more takes no new request until it has returned the rest. While no gateway
reaches the store, each lets its part of the length wait. A gateway that is partitioned alone lets no further request
wait, and after `EXPIRES_S` the others have all places.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

EXPIRES_S: Final = 10.0  # after this silence the places of a gateway belong to the others


@dataclass(frozen=True, slots=True)
class PlacesAsk:
    """A gateway's report of one queue."""

    deployment: str  # its uid
    length: int  # of the queue
    placed: int  # requests that wait there with a place
    need: int  # all requests that wait there
    since_s: float = 0.0  # wait of the oldest request without a place


@dataclass(frozen=True, slots=True)
class Holder:
    """Another gateway: its places and need at its last report, `age_s` ago."""

    held: int
    need: int
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacesGrant:
    """The answer."""

    deployment: str  # its uid
    held: int  # places of this gateway, at least its `placed`
    usable: int  # requests that may wait there; others have a right to the places of the rest
    elsewhere: int  # places of other gateways
    known_s: float  # age of the oldest report of another gateway


def present(holders: Mapping[str, Holder], in_touch_s: float) -> dict[str, Holder]:
    """The holders that count. A holder expires only if the requesting gateway was in touch for as long."""
    # Without the database all gateways are silent, and none shall expire for that.
    return {name: holder for name, holder in holders.items() if min(holder.age_s, in_touch_s) <= EXPIRES_S}


def lease_places(ask: PlacesAsk, others: Mapping[str, Holder]) -> PlacesGrant:
    """The places of a gateway after its report. `others`: every other gateway that holds or needs a place."""
    elsewhere = sum(other.held for other in others.values())
    free = ask.length - elsewhere
    usable = min(ask.need, free)
    if any(other.need > other.held for other in others.values()):
        fair = ask.length // (1 + sum(other.need > 0 for other in others.values()))
        rightful = sum(max(0, min(other.need, fair) - other.held) for other in others.values())
        usable = min(usable, max(fair, free - rightful))
    usable = max(usable, 0)
    known_s = max((other.age_s for other in others.values()), default=0.0)
    return PlacesGrant(ask.deployment, max(ask.placed, usable), usable, elsewhere, known_s)


def part_of_length(length: int, rank: int, gateways: int) -> int:
    """The requests that may wait at one of `gateways` gateways without the store. The parts add up to the length.

    `rank`: of the gateway, from 0.
    """
    return length // gateways + (rank < length % gateways)
