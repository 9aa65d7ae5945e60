"""One computation as it is kept while it waits or runs, and who holds the slots. Starts and ends nothing."""

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """What to compute.

    Attributes:
        purpose: a short fixed word for metrics.
        input_hash: names the input wholly: equal hashes are computed once.
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


class Lane(Enum):
    """By order of arrival, or the newest first."""

    ORDINARY = "ordinary"
    EXPRESS = "express"


@dataclass(slots=True, eq=False)
class Computation:
    """One computation from its admission to its end; `task` is set while it has a child."""

    work: Work
    arrival: int
    owners: dict[Hashable, None]
    lane: Lane = Lane.ORDINARY
    task: asyncio.Task[Any] | None = None
    slice_timer: asyncio.TimerHandle | None = None
    slice_over: bool = False
    put_back: bool = False
    committed_at: datetime | None = None


@dataclass(slots=True)
class Slots:
    """Who holds the slots: at most `size` children, of which at most one in the express lane."""

    size: int
    held: set[Computation] = field(default_factory=set)
    # With one slot there is no lane to keep free, so the lanes take turns.
    express_turn: bool = False

    @property
    def express(self) -> Computation | None:
        """Who is in the express lane."""
        return next((held for held in self.held if held.lane is Lane.EXPRESS), None)

    def free_lane(self) -> Lane | None:
        """Return the lane in which a slot is free, the ordinary one first; None if there is none."""
        if len(self.held) >= self.size:
            return None
        if self.size == 1:
            return Lane.EXPRESS if self.express_turn else Lane.ORDINARY
        ordinary = len(self.held) - (self.express is not None)
        return Lane.ORDINARY if ordinary < self.size - 1 else Lane.EXPRESS
