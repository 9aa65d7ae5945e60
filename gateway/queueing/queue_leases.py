"""This gateway's places in models' queues: which waiting requests have one, and which wait for one for a moment.

A request that finds no place here may wait until the other gateways have reported what they hold. So the queue's length
is exact over all gateways, and no request that can have a place waits for the database. Pure.

`controller/domain/queue_places.py` has the rule by which the store divides the places of a queue among the gateways;
`lease_client.py` exchanges requests and grants with the store.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, TypeVar

from controller.live.demand import PlacesAsk, PlacesGrant, part_of_length

T = TypeVar("T")
DECIDED_S: Final = 0.5  # a request waits for a place no longer, where the other gateways report nothing
FULL_S: Final = 0.05  # for which no more places of a full queue are requested


@dataclass(slots=True)
class _Places(Generic[T]):
    """The places in one queue.

    Attributes:
        applying: requests that wait for a place, and since when; oldest first.
        usable: how many requests may have a place.
        elsewhere: places of other gateways.
        requested: requests in the last request to the store, with a place or for one.
        listed: the store may have this gateway in its list, with places or as one that needs them.
        full_until: the time until which no more places are requested.
    """

    length: int
    placed: dict[T, None] = field(default_factory=dict)
    applying: dict[T, float] = field(default_factory=dict)
    usable: int = 0
    elsewhere: int = 0
    requested: int = 0
    listed: bool = False
    full_until: float = -math.inf

    def promote(self) -> None:
        """The oldest ones that apply get what is free."""
        for request in list(islice(self.applying, max(0, self.usable - len(self.placed)))):
            del self.applying[request]
            self.placed[request] = None


class QueueLeases(Generic[T]):
    """The places of all queues, by the deployment's uid.

    Args:
        lacking: called when a request waits for a place; None: this is the only gateway, and has all of them.

    Attributes:
        away: the store cannot be reached: this gateway uses its part of each length.
        alone: only this gateway cannot reach the store, and others may have all places: it admits no further ones.
        rank: this gateway's rank among all, from 0.
    """

    def __init__(self, clock: Callable[[], float], lacking: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._lacking = lacking
        self._of: dict[str, _Places[T]] = {}
        self.away = self.alone = False
        self.rank, self.gateways = 0, 1

    @property
    def undecided(self) -> bool:
        return any(places.applying for places in self._of.values())

    def join(self, uid: str, request: T, length: int) -> bool:
        """Lets a request wait, with a place or for one; False: the queue is full."""
        places = self._of.get(uid)
        if places is None:
            places = self._of[uid] = _Places(length)
        places.length = length
        if self._lacking is None:
            places.usable = length
        elif self.away:
            places.usable = self._without_the_store(places)
        now = self._clock()
        if request in places.placed or request in places.applying:
            return True  # it was about to leave the queue, and waits again
        if len(places.placed) < min(places.usable, length):
            places.placed[request] = None
        elif self._may_apply(places, now):
            places.applying[request] = now
        else:
            return False
        return True

    def _without_the_store(self, places: _Places[T]) -> int:
        """How many requests may have a place while the store cannot be reached."""
        if self.alone:
            return len(places.placed)
        return part_of_length(places.length, self.rank, self.gateways)

    def _may_apply(self, places: _Places[T], now: float) -> bool:
        """Requests one more place of the store; False where there can be none."""
        if self._lacking is None or self.away or now < places.full_until:
            return False
        if len(places.placed) + len(places.applying) >= places.length:
            return False
        self._lacking()
        return True

    def has(self, uid: str, request: T) -> bool:
        places = self._of.get(uid)
        return places is not None and request in places.placed

    def leave(self, uid: str, request: T) -> None:
        places = self._of.get(uid)
        if places is None:
            return
        places.applying.pop(request, None)
        if request in places.placed:
            del places.placed[request]
            places.promote()

    def move(self, uid: str, to: str, requests: Sequence[T], length: int) -> None:
        """Requests wait for another deployment from now on, with a place or for one."""
        for request in requests:
            self.leave(uid, request)
        places = self._of.setdefault(to, _Places(length))
        places.applying.update(dict.fromkeys(requests, self._clock()))
        if self._lacking is None:
            places.usable = length
            places.promote()
        else:
            self._lacking()

    def waiting(self, uid: str) -> int:
        """Requests that have a place, at all gateways as far as is known."""
        places = self._of.get(uid)
        return 0 if places is None else len(places.placed) + places.elsewhere

    # The store

    def asks(self) -> list[PlacesAsk]:
        """Requests to the store. They return places without a request, which are not used from then on."""
        now = self._clock()
        self._of = {
            uid: places for uid, places in self._of.items() if places.placed or places.applying or places.listed
        }
        asks = []
        for uid, places in self._of.items():
            placed = places.usable = len(places.placed)
            places.requested, places.listed = placed + len(places.applying), True
            since = next(iter(places.applying.values()), now)
            asks.append(PlacesAsk(uid, places.length, placed, places.requested, now - since))
        return asks

    def granted(self, grants: Sequence[PlacesGrant], sent_at: float) -> list[tuple[str, T]]:
        """Takes the grants of a request at `sent_at`; returns, by deployment, what gets no place."""
        self.away = self.alone = False
        now = self._clock()
        refused: list[tuple[str, T]] = []
        for grant in grants:
            places = self._of[grant.deployment]
            places.usable, places.elsewhere = grant.usable, grant.elsewhere
            places.listed = bool(grant.held or places.requested)
            places.promote()
            # What others returned before is known. Requests that came later were not part of it.
            decided = min(sent_at, max(sent_at - grant.known_s, now - DECIDED_S))
            # A loop's clock does not advance within a round: what came at that time may have come after the request.
            late = [request for request, since in places.applying.items() if since < decided]
            if late:
                places.full_until = now + FULL_S
                refused += [(grant.deployment, request) for request in late]
        return refused

    def unanswered(self, *, alone: bool = False) -> list[tuple[str, T]]:
        """The store did not answer: returns the requests without a place in this gateway's part, by deployment.

        `alone`: it answers other gateways, so that no further request may have a place.
        """
        self.away, self.alone = True, alone
        refused: list[tuple[str, T]] = []
        for uid, places in self._of.items():
            places.usable = self._without_the_store(places)
            places.promote()
            refused += [(uid, request) for request in places.applying]
        return refused
