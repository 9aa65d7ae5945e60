"""Where an ask would fit later: once holders have ended, were preempted or were relocated.

A place that victims leave is promised to the instance that preempted them, until that is placed. A promise holds
against all instances of the same or a lower priority. An instance of a higher priority takes such a place only if it
fits nowhere else. Then another place is searched for the preemptor where holders are ending, before it preempts again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final, TypeVar

import numpy as np

from controller.domain.admission import Destination, Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Placed
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.admission.reservation import Reservation, Reservations, workers_of
from controller.scheduling.admission.victims import choose_victims, earliest_capacity
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.search.cached_search import find

# Holders and reservations that a pass takes off the inventory and puts back for instances that may not preempt: 0.3 s.
_MAX_TOGGLED: Final = 20_000
T = TypeVar("T")
_NONE: Final = -1  # lower than any priority


class FutureCapacity:
    """The holders during one pass, with results kept by the shape of asks.

    A pass only takes capacity. So an ask without a place needs no second search, nor does an equal ask of the same or a
    lower priority.
    """

    def __init__(self, reservations: Reservations, holders: Holders) -> None:
        self._inventory = reservations.inventory
        self._reservations = reservations
        self._staying = holders.staying
        self._leaving = list(holders.leaving)
        self._relocating = list(holders.relocating)
        # By shape: the highest priority for which preemption was ruled out, and the message with the reason.
        self._no_preemption: dict[object, tuple[int, str]] = {}
        # By shape, and whether servers may have to end: asks that would not fit if all such holders ended.
        self._never: set[tuple[object, bool]] = set()
        self._not_later: set[object] = set()  # shapes that do not fit either once the leaving holders have ended
        self._toggles = _MAX_TOGGLED
        self._queue: list[PendingInstance] = []  # remain pending, in order, without a reservation

    @cached_property
    def _index(self) -> HolderIndex:
        return HolderIndex(self._inventory, [holder for holder in self._staying if not holder.protected])

    @cached_property
    def _all(self) -> HolderIndex:
        """All that stay, also those that may not be preempted yet."""
        return HolderIndex(self._inventory, self._staying)

    @contextmanager
    def _later(self, also: Sequence[Holder] = ()) -> Iterator[None]:
        """The inventory once the leaving holders, and these, have ended and all reservations are claimed."""
        with self._reservations.all_claimed(), without(self._inventory, [*self._leaving, *also]):
            yield

    def enqueue(self, pending: PendingInstance) -> None:
        """Adds an instance that remains pending. In the next pass it comes before all of a lower priority."""
        self._queue.append(pending)

    def after_leaving(self, ask: Ask, *, bounded: bool = False) -> Reservation | None:
        """Where the ask fits once the leaving holders have ended.

        `bounded`: returns None once this pass has searched for many asks.
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
        """For searches with more capacity than the pass has: earlier failures do not count, nor are new ones kept."""
        kept = self._no_preemption, self._never, self._not_later
        self._no_preemption, self._never, self._not_later = {}, set(), set()
        try:
            yield
        finally:
            self._no_preemption, self._never, self._not_later = kept

    def forget(self) -> None:
        """Forgets the asks that did not fit, since capacity has become free within the pass."""
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
        self._relocating = [holder for holder in self._relocating if holder not in reservation.victims]
        return reservation

    def _taken_by(self, pending: PendingInstance, reservation: Reservation) -> str | None:
        """The instance ahead in the queue that would take the freed capacity, so that preemption would be useless."""
        taken: list[Placed] = []
        unplaceable: set[object] = set()
        with without(self._inventory, reservation.victims):
            try:
                for ask in (ahead.ask for ahead in self._queue if ahead.priority > pending.priority):
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

        `servers`: whether holders count that do not end by themselves, in addition to tasks and relocations.
        """
        key = ask.shape(), servers
        if key in self._never:
            return None
        relocating = {holder.instance for holder in self._relocating}
        index = self._all
        among = index.up_to()
        if not servers:
            among = among & np.array(
                [holder.ends_by_itself or holder.instance in relocating for holder in index.holders], dtype=np.bool_
            )
        with self._later():
            placed = find(self._inventory, ask)
            place = earliest_capacity(self._inventory, ask, index, among) if placed is None else Reservation(placed)
        if place is None:
            self._never.add(key)
            return None
        return Reservation(place.placed, (*place.victims, *self._leaving))


class Promises:
    """The promises of one pass: reservations until their instance has its turn in the queue."""

    def __init__(
        self, reservations: Reservations, future: FutureCapacity, preemptors: Iterable[PendingInstance]
    ) -> None:
        """Reserves the promised places, those of the first of `preemptors` first."""
        self._reservations = reservations
        self._future = future
        self._preemptors = {one.ask.instance: one for one in preemptors}  # that had no turn yet
        self._kept: dict[str, Reservation] = {}
        self._futile: dict[object, int] = {}  # by search: the highest priority for which it failed
        self._settle(self._preemptors)

    def _settle(self, instances: Iterable[str]) -> None:
        """Reserves each own place, then other places that are being freed for instances whose place is taken."""
        without: list[PendingInstance] = []
        for pending in (self._preemptors[instance] for instance in instances):
            place = None if pending.promised is None else self._future.promised(pending.bound_for(pending.promised))
            if place is None:
                without.append(pending)
            else:
                self._keep(pending, place)
        for pending in without:
            if (other := self._future.after_leaving(pending.ask)) is not None:
                self._keep(pending, other)

    def _keep(self, pending: PendingInstance, place: Reservation) -> None:
        self._reservations.add(pending.ask, place.placed, place.victims)
        self._kept[pending.ask.instance] = place

    def redeem(self, instance: str) -> Reservation | None:
        """The place that is promised to the instance whose turn it is; no longer reserved."""
        self._preemptors.pop(instance, None)
        kept = self._kept.pop(instance, None)
        if kept is not None:
            self._reservations.remove(instance)
        return kept

    def take(self, pending: PendingInstance, kind: str, search: Callable[[], T | None]) -> T | None:
        """The result of a search in which the places promised to lower priorities count as free.

        Args:
            pending: the instance for which is searched.
            kind: of the search. If it fails, it fails for an equal ask of the same or a lower priority too.
            search: reserves its result; places are then searched for the other instances again.
        """
        lower = [id_ for id_ in self._kept if self._preemptors[id_].priority < pending.priority]
        key = kind, pending.ask.shape(), pending.preempt
        if not lower or pending.priority <= self._futile.get(key, _NONE):
            return None
        with self._reservations.without(lower) as places, self._future.apart():
            result = search()
            if result is not None:
                places.clear()
        if result is None:
            self._futile[key] = pending.priority
            return None
        for instance in lower:
            del self._kept[instance]
        self.forget()
        self._settle(lower)
        return result

    def forget(self) -> None:
        """Forgets the failed searches, since capacity has become free within the pass."""
        self._futile.clear()

        self._future.forget()


def destination(inventory: Inventory, placed: Placed) -> Destination:
    """A place by the names of its workers and the UUIDs of its GPUs."""
    gpus = tuple(claim.device for claim in placed.claims if inventory.gpu_row(claim.device) is not None)
    return Destination(workers_of(inventory, placed), gpus)
