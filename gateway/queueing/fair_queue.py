"""The requests to one model that wait for a replica, in the order in which they get one. Pure.

The key with the fewest requests in flight comes first; among those of one share the oldest request.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace, merge
from operator import attrgetter
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_SPARE: Final = 64  # entries of a heap beyond twice its keys, before those that are out of date are removed


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """A request that waits.

    Attributes:
        age: when it arrived, in seconds of the caller's clock, and its number among simultaneous ones.
        lane: the replicas that it waits for; empty: any.
    """

    request: T
    key: str
    age: tuple[float, int]
    lane: str = ""

    @property
    def arrived(self) -> float:
        return self.age[0]


_BY_AGE: Final = attrgetter("age")


_Entry = tuple[int, tuple[float, int], str]


class _Lane(Generic[T]):
    """The requests that wait for the same replicas.

    The heap has one valid entry for each key: the key's requests in flight and the age of its oldest request, as they
    were when the entry was made. A valid entry never sorts behind the key's present place. It may sort in front of it:
    `first` corrects that when the entry is at the top, and removes outdated entries there. So a change of one key
    reads no other keys.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, list[Waiting[T]]] = {}  # the oldest request of each key first
        self._entries: dict[str, _Entry] = {}  # the valid ones
        self._heap: list[_Entry] = []

    def add(self, waiting: Waiting[T]) -> None:
        of_key = self.by_key.setdefault(waiting.key, [])
        insort(of_key, waiting, key=_BY_AGE)
        if of_key[0] is waiting:
            self.moved_up(waiting.key)

    def remove(self, waiting: Waiting[T]) -> None:
        of_key = self.by_key[waiting.key]
        del of_key[bisect_left(of_key, waiting.age, key=_BY_AGE)]
        if not of_key:
            del self.by_key[waiting.key], self._entries[waiting.key]

    def moved_up(self, key: str) -> None:
        """The key's place may be further in front than its entry."""
        if key not in self.by_key:
            return
        foremost = 0, self.by_key[key][0].age, key
        if self._entries.get(key) == foremost:
            return
        if len(self._heap) > 2 * len(self._entries) + _SPARE:
            self._heap = list(self._entries.values())
            heapify(self._heap)
        self._entries[key] = foremost
        heappush(self._heap, foremost)

    def first(self, in_flight: Mapping[str, int]) -> Waiting[T] | None:
        """The oldest request of the key with the fewest in flight."""
        while self._heap:
            entry = self._heap[0]
            key = entry[-1]
            if self._entries.get(key) is not entry:
                heappop(self._heap)
                continue
            oldest = self.by_key[key][0]
            place = in_flight.get(key, 0), oldest.age, key
            if entry == place:
                return oldest
            self._entries[key] = place
            heapreplace(self._heap, place)
        return None


class _Numbers:
    """How many requests each key has, and which keys have the most."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.most = 0
        self._keys: dict[int, dict[str, None]] = {}  # by number

    def change(self, key: str, by: int) -> None:
        before = self.of.pop(key, 0)
        if before:
            del self._keys[before][key]
            if not self._keys[before]:
                del self._keys[before]
        if now := before + by:
            self.of[key] = now
            self._keys.setdefault(now, {})[key] = None
        if now > self.most or self.most not in self._keys:
            self.most = now

    def with_most(self) -> str:
        return next(iter(self._keys[self.most]))


class FairQueue(Generic[T]):
    """The waiting requests of one model at this gateway. No call reads all of them, nor all keys."""

    def __init__(self) -> None:
        self._waiting: dict[T, Waiting[T]] = {}
        self._lanes: dict[str, _Lane[T]] = {}
        self._numbers = _Numbers()
        self._added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def __contains__(self, request: object) -> bool:
        return request in self._waiting

    def waits_in(self, lane: str) -> bool:
        """Whether a request waits for these replicas, or for any."""
        return lane in self._lanes or "" in self._lanes

    def add(self, request: T, key: str, arrived: float, lane: str = "") -> None:
        """A request begins to wait. It may be older than others that do: it had a replica before."""
        self._added += 1
        waiting = self._waiting[request] = Waiting(request, key, (arrived, self._added), lane)
        self._lanes.setdefault(lane, _Lane()).add(waiting)
        self._numbers.change(key, 1)

    def remove(self, request: T) -> bool:
        """A request no longer waits; returns whether it did."""
        waiting = self._waiting.pop(request, None)
        if waiting is None:
            return False
        lane = self._lanes[waiting.lane]
        lane.remove(waiting)
        if not lane.by_key:
            del self._lanes[waiting.lane]
        self._numbers.change(waiting.key, -1)
        return True

    def fewer_in_flight(self, key: str) -> None:
        """A request of the key has left its replica."""
        for lane in self._lanes.values():
            lane.moved_up(key)

    def to_yield(self, request: T, key: str, has_place: Callable[[T], bool]) -> T | None:
        """The request that gives up its place in a full queue for this one, of this key; None: none has to.

        It is the newest one of the key with the most, where that has more than this key with this request.
        """
        own = self._numbers.of.get(key, 0) + (request not in self._waiting)
        if self._numbers.most <= own:
            return None
        return next(filter(has_place, self.newest_of(self._numbers.with_most())), None)

    def newest_of(self, key: str) -> Iterator[T]:
        by_lane = [reversed(lane.by_key.get(key, ())) for lane in self._lanes.values()]
        return (waiting.request for waiting in merge(*by_lane, key=_BY_AGE, reverse=True))

    def first(self, in_flight: Mapping[str, int], full: Collection[str] = ()) -> Waiting[T] | None:
        """The request that gets the next replica.

        Args:
            in_flight: requests at replicas, by key. Where a number falls, `fewer_in_flight` is called.
            full: lanes without a free replica.
        """
        heads = [lane.first(in_flight) for name, lane in self._lanes.items() if name not in full]
        return min(
            (waiting for waiting in heads if waiting is not None),
            key=lambda waiting: (in_flight.get(waiting.key, 0), waiting.age),
            default=None,
        )
