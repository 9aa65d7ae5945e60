"""Capacity reserved for pending instances that cannot be placed yet, within one placement pass.

Where holders have to end first, only the part that exceeds their claims is taken from the capacity that is free now. So
other instances may use the rest without delaying the pending instance.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Placed, PlannedClaim
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where an ask fits once all `victims` have ended. The set is minimal: all of them have to end."""

    placed: Placed
    victims: tuple[Holder, ...] = ()


# Of one holder on one device: memory or CPU.
_Part = tuple[str, str, Literal["memory", "cpu"]]


@dataclass(frozen=True, slots=True)
class _Place:
    """A reserved place, and the part of it that is free now. `covered`: the rest, left by holders that end."""

    ask: Ask
    placed: Placed
    now: Placed
    covered: Counter[_Part]


@dataclass(slots=True)
class Reservations:
    """All reservations of one pass. They count as claims in the inventory, so later asks are not placed there."""

    inventory: Inventory
    for_long_wait: bool = False  # any of them is for an instance that has been pending long
    _places: dict[str, _Place] = field(default_factory=dict)  # by instance
    _covered: Counter[_Part] = field(default_factory=Counter)  # left by holders for all of them
    _blocked: dict[object, bool] = field(default_factory=dict)  # by shape: thousands of asks may be alike

    def add(self, ask: Ask, placed: Placed, ending: Sequence[Holder] = ()) -> None:
        """Reserves a place for the ask. `ending`: holders that end before it is placed."""
        now, covered = self._beyond(placed, ending)
        self._put(_Place(ask, placed, now, covered))
        self._blocked.clear()

    def remove(self, instance: str) -> None:
        self._take(instance)
        self._blocked.clear()

    @contextmanager
    def without(self, instances: Collection[str]) -> Iterator[list[_Place]]:
        """The inventory without the reservations of these instances.

        Yields:
            Their places, which are reserved again at the end. The caller clears the list to give them up.
        """
        blocked, self._blocked = self._blocked, {}
        some = [self._take(instance) for instance in instances]
        try:
            yield some
        finally:
            for place in some:
                self._put(place)
            self._blocked = blocked if some else {}

    def _put(self, place: _Place) -> None:
        self.inventory.reserve(place.now, place.ask.deployment_uid)
        self._places[place.ask.instance] = place
        self._covered += place.covered

    def _take(self, instance: str) -> _Place:
        place = self._places.pop(instance)
        self.inventory.unreserve(place.now)
        self._covered -= place.covered
        return place

    def release(self) -> None:
        """Takes all reservations off the inventory."""
        for place in reversed(self._places.values()):
            self.inventory.unreserve(place.now)

    @contextmanager
    def released(self) -> Iterator[None]:
        """The inventory without reservations."""
        self.release()
        try:
            yield
        finally:
            for place in self._places.values():
                self.inventory.reserve(place.now, place.ask.deployment_uid)

    @contextmanager
    def all_claimed(self) -> Iterator[None]:
        """The inventory with the complete reserved places claimed, for a search without the holders that end."""
        partial = [place for place in self._places.values() if place.now is not place.placed]
        for place in partial:
            self.inventory.unreserve(place.now)
            self.inventory.reserve(place.placed, place.ask.deployment_uid)
        try:
            yield
        finally:
            for place in partial:
                self.inventory.unreserve(place.placed)
                self.inventory.reserve(place.now, place.ask.deployment_uid)

    def _beyond(self, placed: Placed, ending: Sequence[Holder]) -> tuple[Placed, Counter[_Part]]:
        """The part of a place beyond the claims that end, and their part. An exclusive claim is not divided.

        The capacity that a holder leaves is given away once, though several places may share it.
        """
        leave: defaultdict[str, list[tuple[str, PlannedClaim]]] = defaultdict(list)
        devices = {claim.device for claim in placed.claims if not claim.exclusive}
        for holder in ending:
            for claim in holder.claims:
                if claim.device in devices:
                    leave[claim.device].append((holder.instance, claim))
        covered: Counter[_Part] = Counter()
        if not leave:
            return placed, covered

        def beyond(device: str, kind: Literal["memory", "cpu"], needed: int) -> int:
            for instance, claim in leave.get(device, ()):
                part = instance, device, kind
                left = (claim.memory_mib if kind == "memory" else claim.cpu_milli) - self._covered[part]
                covered[part] = max(0, min(needed, left))
                needed -= covered[part]
            return needed

        claims = tuple(
            claim
            if claim.exclusive
            else replace(
                claim,
                memory_mib=beyond(claim.device, "memory", claim.memory_mib),
                cpu_milli=beyond(claim.device, "cpu", claim.cpu_milli),
            )
            for claim in placed.claims
        )
        return replace(placed, claims=claims), covered

    def block(self, ask: Ask) -> bool:
        """Whether the ask would fit without the reservations."""
        shape = ask.shape()
        if self._places and shape not in self._blocked:
            with self.released():
                self._blocked[shape] = find(self.inventory, ask) is not None
        return self._blocked.get(shape, False)

    def __len__(self) -> int:
        return len(self._places)

    def message(self) -> str:
        """The message for an instance that the reservations block."""
        places = (
            f"{place.ask.instance} on {worker_names(self.inventory, place.placed)}" for place in self._places.values()
        )
        return f"it would fit, but capacity is reserved for {', '.join(places)}"


def workers_of(inventory: Inventory, placed: Placed) -> tuple[str, ...]:
    """The names of a place's workers, by rank."""
    return tuple(inventory.worker(worker).name for worker in placed.workers)


def worker_names(inventory: Inventory, placed: Placed) -> str:
    return ", ".join(workers_of(inventory, placed))
