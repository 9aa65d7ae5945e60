"""The demand seen so far: what instances take of one worker, with the number of such instances."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from controller.domain.holdings import Demand

_RECENT: Final = 1_000  # instances that have ended and still count
_CHANGED_PERCENT: Final = 10


class ObservedDemand:
    """Live and recent instances by their demand.

    Placement uses `known`, which follows only after a good part has changed: everything derived from it is then
    computed anew. `version` rises with each such change.
    """

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._recent: deque[Demand] = deque()
        self._changes = 0
        self.known: Mapping[Demand, int] = {}
        self.version = 0

    def add(self, demand: Demand, count: int = 1) -> None:
        """Adds instances of this demand."""
        self._counts[demand] += count
        self._changes += count

    def remove(self, demand: Demand) -> None:
        """Notes that an instance has ended. It counts until many others have ended after it."""
        self._recent.append(demand)
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            self._counts += Counter()  # drops counts of zero
            self._changes += 1

    def settle(self) -> None:
        """Updates `known` if enough has changed."""
        if self._changes and self._changes * 100 >= self._counts.total() * _CHANGED_PERCENT:
            self.known, self._changes = dict(self._counts), 0
            self.version += 1
