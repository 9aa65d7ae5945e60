"""Promises: places that victims leave, each kept for the instance that preempted them, until it is placed.

A promise holds against all instances of the same or a lower priority. An instance of a higher priority takes such a
place only if nothing else fits. Then the preemptor is placed again among what is ending, before anything is preempted
for it once more.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from controller.domain.pending import Destination, PendingInstance
from controller.domain.placement import Placed
from controller.scheduling.admission.future_capacity import FutureCapacity
from controller.scheduling.admission.reservation import Reservation, Reservations, workers_of
from controller.scheduling.inventory.capacity import Inventory

T = TypeVar("T")
_NONE: Final = -1  # lower than any priority


class Promises:
    """The promises of one pass. They are reservations until their instance has its turn in the queue."""

    def __init__(
        self, reservations: Reservations, future: FutureCapacity, preemptors: Iterable[PendingInstance]
    ) -> None:
        """Reserves the promised places, those of the first of `preemptors` first."""
        self._reservations = reservations
        self._future = future
        self._preemptors = {one.ask.instance: one for one in preemptors}  # that had no turn yet
        self._kept: dict[str, Reservation] = {}
        self._futile: dict[object, int] = {}  # by search: the highest priority for which it found nothing
        self._settle(self._preemptors)

    def _settle(self, instances: Iterable[str]) -> None:
        """Each in its own place; those whose place is taken then in others that are being freed."""
        without: list[PendingInstance] = []
        for pending in (self._preemptors[instance] for instance in instances):
            own = None if pending.promised is None else self._future.promised(pending.bound_for(pending.promised))
            if own is None:
                without.append(pending)
            else:
                self._keep(pending, own)
        for pending in without:
            if (other := self._future.after_leaving(pending.ask)) is not None:
                self._keep(pending, other)

    def _keep(self, pending: PendingInstance, place: Reservation) -> None:
        self._reservations.add(pending.ask, place.placed, place.victims)
        self._kept[pending.ask.instance] = place

    def redeem(self, instance: str) -> Reservation | None:
        """The place that is promised to the instance whose turn it is; no longer reserved. None: it has none."""
        self._preemptors.pop(instance, None)
        kept = self._kept.pop(instance, None)
        if kept is not None:
            self._reservations.remove(instance)
        return kept

    def take(self, pending: PendingInstance, kind: str, search: Callable[[], T | None]) -> T | None:
        """The result of a search in which the places promised to lower priorities count as free.

        Args:
            pending: for which is searched.
            kind: of the search. It finds nothing for an equal ask of the same or a lower priority either.
            search: reserves what it finds; the other instances are then placed again.
        """
        lower = [one for one in self._kept if self._preemptors[one].priority < pending.priority]
        key = kind, pending.ask.shape(), pending.preempt
        if not lower or pending.priority <= self._futile.get(key, _NONE):
            return None
        with self._reservations.without(lower) as places, self._future.apart():
            found = search()
            if found is not None:
                places.clear()
        if found is None:
            self._futile[key] = pending.priority
            return None
        for instance in lower:
            del self._kept[instance]
        self.forget()
        self._settle(lower)
        return found

    def forget(self) -> None:
        """Forgets what did not fit, since capacity has become free within the pass."""
        self._futile.clear()
        self._future.forget()


def destination(inventory: Inventory, placed: Placed) -> Destination:
    """A place by the names of its workers and the UUIDs of its GPUs."""
    gpus = tuple(claim.device for claim in placed.claims if inventory.gpu_row(claim.device) is not None)
    return Destination(workers_of(inventory, placed), gpus)
