"""Who waits for a slot, by order of arrival, some having been tried before. Pure bookkeeping, quick at any length."""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingLine(Generic[T]):
    """Items by arrival number; the never-tried and the tried ones can be asked for apart."""

    def __init__(self) -> None:
        # An ordered dict, for its O(1) at both ends also after many removals; the tried ones are few.
        self._untried: OrderedDict[int, T] = OrderedDict()
        self._tried: dict[int, T] = {}
        self._tried_order: list[int] = []

    def __len__(self) -> int:
        """How many wait."""
        return len(self._untried) + len(self._tried)

    @property
    def untried(self) -> int:
        """How many wait that were never tried."""
        return len(self._untried)

    def join(self, arrival: int, item: T) -> None:
        """Put a new item at the end; arrival numbers must rise."""
        self._untried[arrival] = item

    def put_back(self, arrival: int, item: T) -> None:
        """Put a tried item back where its arrival number belongs."""
        self._tried[arrival] = item
        insort(self._tried_order, arrival)

    def leave(self, arrival: int) -> None:
        """Take out the item of this number.

        Raises:
            KeyError: it does not wait here.
        """
        if arrival in self._untried:
            del self._untried[arrival]
            return
        del self._tried[arrival]
        del self._tried_order[bisect_left(self._tried_order, arrival)]

    def oldest(self) -> int | None:
        """Return the lowest arrival number, tried or not; None if nobody waits."""
        first_untried = next(iter(self._untried), None)
        if not self._tried_order or first_untried is None:
            return self._tried_order[0] if self._tried_order else first_untried
        return min(self._tried_order[0], first_untried)

    def newest_untried(self) -> int | None:
        """Return the highest arrival number among the never-tried; None if there is none."""
        return next(reversed(self._untried), None)

    def __getitem__(self, arrival: int) -> T:
        """Return the item of this number; KeyError if it does not wait here."""
        return self._untried[arrival] if arrival in self._untried else self._tried[arrival]
