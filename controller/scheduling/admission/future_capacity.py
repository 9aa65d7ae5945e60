"""Where an ask would fit later: once holders have ended, were preempted or were relocated."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final

import numpy as np

from controller.domain.holdings import Holder, Holders
from controller.domain.pending import PendingInstance
from controller.domain.placement import Ask, Placed
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.admission.reservation import Reservation, Reservations
from controller.scheduling.admission.victims import choose_victims, earliest_capacity
from controller.scheduling.inventory.holders import without
from controller.scheduling.search.place import find

# Holders and reservations that one pass takes off the inventory and puts back for those that preempt nothing: 0.3 s.
_MAX_TOGGLED: Final = 20_000


class FutureCapacity:
    """The holders during one pass, with results kept by the shape of asks.

    A pass only takes capacity. So an ask for which nothing was found needs no second search, nor does an equal ask of
    the same or a lower priority.
    """

    def __init__(self, reservations: Reservations, holders: Holders) -> None:
        self._inventory = reservations.inventory
        self._reservations = reservations
        self._staying = holders.staying
        self._leaving = list(holders.leaving)
        self._relocating = list(holders.relocating)
        # By shape: the highest priority for which preemption was ruled out, and the message that says why.
        self._no_preemption: dict[object, tuple[int, str]] = {}
        # By shape, and whether servers may have to end: those that would not fit if all such holders ended.
        self._never: set[tuple[object, bool]] = set()
        self._not_later: set[object] = set()  # shapes that do not fit either once the leaving holders have ended
        self._toggles = _MAX_TOGGLED
        self._queue: list[PendingInstance] = []  # remain pending, in order, without a reservation

    @cached_property
    def _index(self) -> HolderIndex:
        return HolderIndex(self._inventory, [one for one in self._staying if not one.protected])

    @cached_property
    def _all(self) -> HolderIndex:
        """All that stay, also those that may not be preempted yet."""
        return HolderIndex(self._inventory, self._staying)

    @contextmanager
    def _later(self, also: Sequence[Holder] = ()) -> Iterator[None]:
        """The inventory once the leaving holders, and these, have ended and all reservations are claimed."""
        with self._reservations.whole(), without(self._inventory, [*self._leaving, *also]):
            yield

    def enqueue(self, pending: PendingInstance) -> None:
        """Notes an instance that remains pending. In the next pass it comes before all of a lower priority."""
        self._queue.append(pending)

    def after_leaving(self, ask: Ask, *, bounded: bool = False) -> Reservation | None:
        """Where the ask fits once the leaving holders have ended.

        Args:
            ask: what does not fit now.
            bounded: None also where this pass has looked for many already.
        """
        shape = ask.shape()
        if not self._leaving or shape in self._not_later or (bounded and self._toggles <= 0):
            return None
        self._toggles -= len(self._leaving) + len(self._reservations)
        with self._later():
            placed = find(self._inventory, ask)
        if placed is None:
            self._not_later.add(shape)
            return None
        return Reservation(placed, tuple(self._leaving))

    def relocation_target(self, target: Ask) -> Reservation | None:
        """The place that this ask names, if it is free once leaving and relocating holders have ended."""
        return self._at(target, self._relocating)

    def promised(self, target: Ask) -> Reservation | None:
        """The place that this ask names, if it is free once the leaving holders have ended."""
        return self._at(target, ())

    def _at(self, target: Ask, also: Sequence[Holder]) -> Reservation | None:
        with self._later(also):
            placed = find(self._inventory, target)
        return None if placed is None else Reservation(placed, (*self._leaving, *also))

    @contextmanager
    def apart(self) -> Iterator[None]:
        """For a look at more capacity than the pass has: what did not fit before may fit, and nothing is noted."""
        kept = self._no_preemption, self._never, self._not_later
        self._no_preemption, self._never, self._not_later = {}, set(), set()
        try:
            yield
        finally:
            self._no_preemption, self._never, self._not_later = kept

    def forget(self) -> None:
        """Forgets what did not fit, since capacity has become free within the pass."""
        self._no_preemption.clear()
        self._never.clear()
        self._not_later.clear()

    def preempt(self, pending: PendingInstance) -> Reservation | str:
        """The place that preemption frees; its victims then count as leaving. Else a message, which may be empty."""
        shape = pending.ask.shape()
        upto, message = self._no_preemption.get(shape, (-1, ""))
        if pending.priority <= upto:
            return message
        with self._later():
            reservation = choose_victims(self._inventory, pending.ask, self._index, below=pending.priority)
            taker = self._taken_by(pending, reservation) if reservation is not None else None
        if reservation is None or taker is not None:
            message = (
                f"preempts nothing: {taker} is ahead in the queue and would take the freed capacity" if taker else ""
            )
            self._no_preemption[shape] = (pending.priority, message)
            return message
        self._index.remove(reservation.victims)
        self._all.remove(reservation.victims)
        self._leaving += reservation.victims
        self._not_later.clear()
        self._relocating = [one for one in self._relocating if one not in reservation.victims]
        return reservation

    def _taken_by(self, pending: PendingInstance, reservation: Reservation) -> str | None:
        """The instance ahead in the queue that would take the freed capacity, so that preemption would be in vain."""
        taken: list[Placed] = []
        unplaceable: set[object] = set()
        with without(self._inventory, reservation.victims):
            try:
                for ask in (one.ask for one in self._queue if one.priority > pending.priority):
                    shape = ask.shape()
                    # Under another name, since capacity may be reserved for it elsewhere.
                    other = ask.for_instance(f"{ask.instance}+", ask.avoid_workers)
                    placed = None if shape in unplaceable else find(self._inventory, other)
                    if placed is None:
                        unplaceable.add(shape)
                        continue
                    self._inventory.reserve(placed, ask.deployment_uid)
                    taken.append(placed)
                    if find(self._inventory, pending.ask) is None:
                        return ask.instance
            finally:
                for placed in reversed(taken):
                    self._inventory.unreserve(placed)
        return None

    def earliest(self, ask: Ask, *, servers: bool) -> Reservation | None:
        """The place for which the fewest holders have to end.

        Args:
            ask: what does not fit now.
            servers: whether holders count that do not end by themselves, beside tasks and relocations.
        """
        key = ask.shape(), servers
        if key in self._never:
            return None
        relocating = {one.instance for one in self._relocating}
        index = self._all
        among = index.up_to()
        if not servers:
            among = among & np.array(
                [one.ends_by_itself or one.instance in relocating for one in index.holders], dtype=np.bool_
            )
        with self._later():
            placed = find(self._inventory, ask)
            found = earliest_capacity(self._inventory, ask, index, among) if placed is None else Reservation(placed)
        if found is None:
            self._never.add(key)
            return None
        return Reservation(found.placed, (*found.victims, *self._leaving))
