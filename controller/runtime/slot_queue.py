"""The queue for computation slots, by arrival; requeued items keep their place. Bookkeeping, fast at any length."""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class SlotQueue(Generic[T]):
    """Items by arrival number, in two groups: fresh ones, and requeued ones that have had a slot before."""

    def __init__(self) -> None:
        # An ordered dict is O(1) at both ends even after many removals. Requeued items are few.
        self._fresh: OrderedDict[int, T] = OrderedDict()
        self._requeued: dict[int, T] = {}
        self._requeued_order: list[int] = []

    def __len__(self) -> int:
        """The number of items."""
        return len(self._fresh) + len(self._requeued)

    @property
    def fresh(self) -> int:
        """The number of fresh items."""
        return len(self._fresh)

    def append(self, arrival: int, item: T) -> None:
        """Add a fresh item at the end; arrival numbers must rise."""
        self._fresh[arrival] = item

    def requeue(self, arrival: int, item: T) -> None:
        """Put an item back at its place by arrival number."""
        self._requeued[arrival] = item
        insort(self._requeued_order, arrival)

    def remove(self, arrival: int) -> None:
        """Take out the item of this number.

        Raises:
            KeyError: it is not in the queue.
        """
        if arrival in self._fresh:
            del self._fresh[arrival]
            return
        del self._requeued[arrival]
        del self._requeued_order[bisect_left(self._requeued_order, arrival)]

    def oldest(self) -> int | None:
        """Return the lowest arrival number of all items; None if the queue is empty."""
        first_fresh = next(iter(self._fresh), None)
        if not self._requeued_order or first_fresh is None:
            return self._requeued_order[0] if self._requeued_order else first_fresh
        return min(self._requeued_order[0], first_fresh)

    def newest_fresh(self) -> int | None:
        """Return the highest arrival number of the fresh items; None without fresh items."""
        return next(reversed(self._fresh), None)

    def __getitem__(self, arrival: int) -> T:
        """Return the item of this number; KeyError if it is not in the queue."""
        return self._fresh[arrival] if arrival in self._fresh else self._requeued[arrival]
