"""The requests to one model that wait for a replica, in the order in which they get one. Pure.

The key with the fewest requests in flight comes first; among those of one share the oldest request.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
RATE_S: Final = 30.0  # over which finished requests are counted
LONGEST_RETRY_S: Final = 60


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """A request that waits. `arrived`: when, in seconds of the caller's clock."""

    request: T
    key: str
    arrived: float


class FairQueue(Generic[T]):
    """The waiting requests of one model at this gateway."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[T, Waiting[T]]] = {}  # of each key oldest first
        self._keys: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._keys))

    def __contains__(self, request: object) -> bool:
        return request in self._keys

    def add(self, request: T, key: str, arrived: float) -> None:
        """A request begins to wait."""
        self._keys[request] = key
        of_key = self._by_key.setdefault(key, {})
        late = bool(of_key) and arrived < next(reversed(of_key.values())).arrived
        of_key[request] = Waiting(request, key, arrived)
        if late:  # it had a replica before
            self._by_key[key] = dict(sorted(of_key.items(), key=lambda item: item[1].arrived))

    def remove(self, request: T) -> bool:
        """A request no longer waits; returns whether it did."""
        key = self._keys.pop(request, None)
        if key is None:
            return False
        of_key = self._by_key[key]
        del of_key[request]
        if not of_key:
            del self._by_key[key]
        return True

    def first(self, in_flight: Mapping[str, int]) -> T | None:
        """The request that gets the next replica.

        Args:
            in_flight: requests to this model at replicas, by key.
        """
        heads = [next(iter(of_key.values())) for of_key in self._by_key.values()]
        if not heads:
            return None
        return min(heads, key=lambda one: (in_flight.get(one.key, 0), one.arrived)).request


class Finished:
    """How many requests of a model ended lately, which tells when a full queue has room."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=100_000)

    def note(self, now: float) -> None:
        """A request ended now."""
        self._ends.append(now)

    def retry_after_s(self, waiting: int, now: float) -> int:
        """Whole seconds until so many requests will have ended, from 1 to `LONGEST_RETRY_S`."""
        while self._ends and self._ends[0] <= now - RATE_S:
            self._ends.popleft()
        if not self._ends:
            return LONGEST_RETRY_S
        return min(max(math.ceil(waiting * RATE_S / len(self._ends)), 1), LONGEST_RETRY_S)
