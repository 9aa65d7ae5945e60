"""Capacity reserved for pending instances that cannot be placed yet, within one placement pass.

Where holders have to end first, only what exceeds their claims is taken from what is free now. So others may use the
rest beside the holders without delaying the instance: it fits beside both.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Placed
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import find


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where an ask fits once all `victims` have ended. The set is minimal: without any one of them it does not fit."""

    placed: Placed
    victims: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """A reserved place, and the part of it that is free now."""

    ask: Ask
    placed: Placed
    now: Placed


@dataclass(slots=True)
class Reservations:
    """All reservations of one pass. They count as claims in the inventory, so later asks are not placed there."""

    inventory: Inventory
    for_long_wait: bool = False  # one of them is for an instance that has been pending long
    _places: list[_Place] = field(default_factory=list)
    _blocked: dict[object, bool] = field(default_factory=dict)  # by shape: thousands of asks may be alike

    def add(self, ask: Ask, placed: Placed, ending: Sequence[Holder] = ()) -> None:
        """Reserves a place for the ask. `ending`: holders that end before it is placed."""
        now = _beyond(placed, ending)
        self.inventory.reserve(now, ask.deployment_uid)
        self._places.append(_Place(ask, placed, now))
        self._blocked.clear()

    def release(self) -> None:
        """Takes all reservations off the inventory."""
        for place in reversed(self._places):
            self.inventory.unreserve(place.now)

    @contextmanager
    def released(self) -> Iterator[None]:
        """The inventory as if nothing were reserved."""
        self.release()
        try:
            yield
        finally:
            for place in self._places:
                self.inventory.reserve(place.now, place.ask.deployment_uid)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The inventory with all that will be claimed, for a look at it without the holders that end."""
        partial = [place for place in self._places if place.now is not place.placed]
        for place in partial:
            self.inventory.unreserve(place.now)
            self.inventory.reserve(place.placed, place.ask.deployment_uid)
        try:
            yield
        finally:
            for place in partial:
                self.inventory.unreserve(place.placed)
                self.inventory.reserve(place.now, place.ask.deployment_uid)

    def block(self, ask: Ask) -> bool:
        """Whether the ask would fit if nothing were reserved."""
        shape = ask.shape()
        if self._places and shape not in self._blocked:
            with self.released():
                self._blocked[shape] = find(self.inventory, ask) is not None
        return self._blocked.get(shape, False)

    def __len__(self) -> int:
        return len(self._places)

    def message(self) -> str:
        """What to report to an instance that the reservations block."""
        places = (f"{one.ask.instance} on {worker_names(self.inventory, one.placed)}" for one in self._places)
        return f"it would fit, but capacity is reserved for {', '.join(places)}"


def _beyond(placed: Placed, ending: Sequence[Holder]) -> Placed:
    """What a place takes beyond the claims that end. A whole GPU stays closed to all others."""
    memory, cpu = Counter[str](), Counter[str]()
    for claim in (claim for one in ending for claim in one.claims):
        memory[claim.device] += claim.memory_mib
        cpu[claim.device] += claim.cpu_milli
    if not any(claim.device in memory and not claim.exclusive for claim in placed.claims):
        return placed
    claims = tuple(
        claim
        if claim.exclusive
        else replace(
            claim,
            memory_mib=max(0, claim.memory_mib - memory[claim.device]),
            cpu_milli=max(0, claim.cpu_milli - cpu[claim.device]),
        )
        for claim in placed.claims
    )
    return replace(placed, claims=claims)


def workers_of(inventory: Inventory, placed: Placed) -> tuple[str, ...]:
    """The names of a place's workers, by rank."""
    return tuple(inventory.worker(worker).name for worker in placed.workers)


def worker_names(inventory: Inventory, placed: Placed) -> str:
    """The same in a sentence."""
    return ", ".join(workers_of(inventory, placed))
