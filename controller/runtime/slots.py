"""A computation from admission to its end, and the slots that limit how many run. Pure bookkeeping."""

import asyncio
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """What to compute.

    Attributes:
        purpose: a short fixed word for metrics.
        input_hash: identifies the input completely: equal hashes are computed once.
        target: "module:function", run in a child.
        payload: JSON value, its argument.
        deadline_s: seconds from the child's start.
        memory_bytes: address space of the child.
    """

    purpose: str
    input_hash: str
    target: str
    payload: Any
    deadline_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """When a computation became obsolete, and when that was known here."""

    committed_at: datetime | None
    known_at: datetime


class SlotKind(Enum):
    """The order in which a slot takes computations: oldest first, or newest first with a time slice."""

    FIFO = "fifo"
    LIFO = "lifo"


@dataclass(slots=True, eq=False)
class Computation:
    """One computation from its admission to its end; `task` is set while it has a child."""

    work: Work
    arrival: int
    owners: dict[Hashable, None]
    slot: SlotKind = SlotKind.FIFO
    task: asyncio.Task[Any] | None = None
    slice_timer: asyncio.TimerHandle | None = None
    slice_over: bool = False
    requeued: bool = False  # its child is killed, and it goes back to the queue
    kill: Callable[[], None] | None = None  # ends its child at once
    cancelled: "Cancelled | None" = None


@dataclass(slots=True)
class Slots:
    """At most `size` running computations, of which at most one in the LIFO slot."""

    size: int
    running: set[Computation] = field(default_factory=set)
    # A single slot cannot be kept free for the newest, so it alternates between the two kinds.
    lifo_next: bool = False

    @property
    def lifo(self) -> Computation | None:
        """The computation in the LIFO slot."""
        return next((one for one in self.running if one.slot is SlotKind.LIFO), None)

    def free_slot(self) -> SlotKind | None:
        """Return the kind of a free slot, FIFO first; None if all are taken."""
        if len(self.running) >= self.size:
            return None
        if self.size == 1:
            return SlotKind.LIFO if self.lifo_next else SlotKind.FIFO
        fifo = len(self.running) - (self.lifo is not None)
        return SlotKind.FIFO if fifo < self.size - 1 else SlotKind.LIFO


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
