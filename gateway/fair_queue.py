"""The requests to one model that wait for a replica, in the order in which they get one. Pure.

The key with the fewest requests in flight comes first; among those of one share the oldest request.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
RATE_S: Final = 30.0  # over which finished requests are counted
LONGEST_RETRY_S: Final = 60


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """A request that waits.

    Attributes:
        arrived: when, in seconds of the caller's clock.
        lane: the replicas that it waits for; empty: any.
    """

    request: T
    key: str
    arrived: float
    lane: str = ""


class FairQueue(Generic[T]):
    """The waiting requests of one model at this gateway."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[T, Waiting[T]]] = {}  # of each key oldest first
        self._keys: dict[T, str] = {}
        self._lanes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._keys))

    def __contains__(self, request: object) -> bool:
        return request in self._keys

    def waits_in(self, lane: str) -> bool:
        """Whether a request waits for these replicas, or for any."""
        return bool(self._lanes[lane] or self._lanes[""])

    def add(self, request: T, key: str, arrived: float, lane: str = "") -> None:
        """A request begins to wait."""
        self._keys[request] = key
        of_key = self._by_key.setdefault(key, {})
        late = bool(of_key) and arrived < next(reversed(of_key.values())).arrived
        of_key[request] = Waiting(request, key, arrived, lane)
        self._lanes[lane] += 1
        if late:  # it had a replica before
            self._by_key[key] = dict(sorted(of_key.items(), key=lambda item: item[1].arrived))

    def remove(self, request: T) -> bool:
        """A request no longer waits; returns whether it did."""
        key = self._keys.pop(request, None)
        if key is None:
            return False
        of_key = self._by_key[key]
        self._lanes[of_key.pop(request).lane] -= 1
        if not of_key:
            del self._by_key[key]
        return True

    def to_yield(self, request: T, key: str, has_place: Callable[[T], bool]) -> T | None:
        """The request that gives up its place in a full queue for this one, of this key; None: none has to.

        It is the newest one of the key with the most, where that has more than this key with this request.
        """
        most = max(self._by_key.values(), key=len, default=None)
        own = len(self._by_key.get(key, ())) + (request not in self._keys)
        if most is None or len(most) <= own:
            return None
        return next((one for one in reversed(most) if has_place(one)), None)

    def first(self, in_flight: Mapping[str, int], full: Collection[str] = ()) -> Waiting[T] | None:
        """The request that gets the next replica.

        Args:
            in_flight: requests to this model at replicas, by key.
            full: lanes of which no replica can take one.
        """
        if full:
            of_keys = [[one for one in of_key.values() if one.lane not in full] for of_key in self._by_key.values()]
            heads = [of_key[0] for of_key in of_keys if of_key]
        else:
            heads = [next(iter(of_key.values())) for of_key in self._by_key.values()]
        return min(heads, key=lambda one: (in_flight.get(one.key, 0), one.arrived), default=None)


class Finished:
    """How many requests of a model ended lately, which tells when a full queue has room. Counted by whole seconds."""

    def __init__(self) -> None:
        self._ends: deque[list[int]] = deque(maxlen=math.ceil(RATE_S) + 1)  # a second, and how many ended in it

    def note(self, now: float) -> None:
        """A request ended now."""
        second = int(now)
        if self._ends and self._ends[-1][0] == second:
            self._ends[-1][1] += 1
        else:
            self._ends.append([second, 1])

    def retry_after_s(self, waiting: int, now: float) -> int:
        """Whole seconds until so many requests will have ended, from 1 to `LONGEST_RETRY_S`."""
        ended = sum(number for second, number in self._ends if second >= now - RATE_S)
        if not ended:
            return LONGEST_RETRY_S
        return min(max(math.ceil(waiting * RATE_S / ended), 1), LONGEST_RETRY_S)
