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
    """One computation's input and limits."""

    purpose: str  # for metrics, so of few values
    input_hash: str  # identifies the input completely: equal hashes are computed once
    target: str  # "module:function", run in a child
    payload: Any  # its argument, a JSON value
    deadline_s: float  # from the child's start
    memory_bytes: int  # address space of the child


@dataclass(frozen=True, slots=True)
class Cancelled:
    """When a computation became obsolete, and when this process learned it."""

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
        return next((running for running in self.running if running.slot is SlotKind.LIFO), None)

    def free_slot(self) -> SlotKind | None:
        """Returns the kind of a free slot, FIFO first; None if all are taken."""
        if len(self.running) >= self.size:
            return None
        if self.size == 1:
            return SlotKind.LIFO if self.lifo_next else SlotKind.FIFO
        fifo = len(self.running) - (self.lifo is not None)
        return SlotKind.FIFO if fifo < self.size - 1 else SlotKind.LIFO


class SlotQueue(Generic[T]):
    """Items by arrival number, in two groups: fresh items, and requeued items that have had a slot before."""

    def __init__(self) -> None:
        # An ordered dict is O(1) at both ends even after many removals. Requeued items are few.
        self._fresh: OrderedDict[int, T] = OrderedDict()
        self._requeued: dict[int, T] = {}
        self._requeued_order: list[int] = []

    def __len__(self) -> int:
        return len(self._fresh) + len(self._requeued)

    @property
    def fresh(self) -> int:
        return len(self._fresh)

    def append(self, arrival: int, item: T) -> None:
        """Adds a fresh item at the end; arrival numbers must rise."""
        self._fresh[arrival] = item

    def requeue(self, arrival: int, item: T) -> None:
        self._requeued[arrival] = item
        insort(self._requeued_order, arrival)

    def remove(self, arrival: int) -> None:
        """Raises KeyError if the queue has no such item."""
        if arrival in self._fresh:
            del self._fresh[arrival]
            return
        del self._requeued[arrival]
        del self._requeued_order[bisect_left(self._requeued_order, arrival)]

    def oldest(self) -> int | None:
        """Returns the lowest arrival number of all items; None if the queue is empty."""
        first_fresh = next(iter(self._fresh), None)
        if not self._requeued_order or first_fresh is None:
            return self._requeued_order[0] if self._requeued_order else first_fresh
        return min(self._requeued_order[0], first_fresh)

    def newest_fresh(self) -> int | None:
        """Returns the highest arrival number of the fresh items; None without fresh items."""
        return next(reversed(self._fresh), None)

    def __getitem__(self, arrival: int) -> T:
        return self._fresh[arrival] if arrival in self._fresh else self._requeued[arrival]
