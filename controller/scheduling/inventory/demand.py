"""The demand that was seen: what instances ask of one worker, and how many of them ask so."""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from controller.domain.holdings import Demand

_RECENT: Final = 1_000  # instances that are gone and count still
_MOVED_PERCENT: Final = 10


class DemandSeen:
    """Live and recent instances by their demand.

    What placement looks at (`known`) follows only when a good part of it has changed, since everything that was worked
    out from it is then worked out anew; `version` tells which it is.
    """

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._recent: deque[Demand] = deque()
        self._changes = 0
        self.known: Mapping[Demand, int] = {}
        self.version = 0

    def add(self, demand: Demand, count: int = 1) -> None:
        """Counts instances that ask so."""
        self._counts[demand] += count
        self._changes += count

    def remove(self, demand: Demand) -> None:
        """Takes an instance for gone. It counts until many others have gone after it."""
        self._recent.append(demand)
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            self._counts += Counter()  # drops what is down to nothing
            self._changes += 1

    def settle(self) -> None:
        """Brings `known` up to date where much has changed."""
        if self._changes and self._changes * 100 >= self._counts.total() * _MOVED_PERCENT:
            self.known, self._changes = dict(self._counts), 0
            self.version += 1
