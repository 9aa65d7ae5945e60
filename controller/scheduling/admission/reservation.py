"""Capacity reserved for pending instances that cannot be placed yet, within one placement pass."""

from dataclasses import dataclass, field

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Placed
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import find


@dataclass(frozen=True, slots=True)
class Reservation:
    """Where an ask fits once all `victims` have ended. The set is minimal: without any one of them it does not fit."""

    placed: Placed
    victims: tuple[Holder, ...] = ()


@dataclass(slots=True)
class Reservations:
    """All reservations of one pass. They count as claims in the inventory, so later asks are not placed there."""

    inventory: Inventory
    for_long_wait: bool = False  # one of them is for an instance that has been pending long
    _places: list[tuple[Ask, Placed]] = field(default_factory=list)
    _blocked: dict[object, bool] = field(default_factory=dict)  # by shape: thousands of asks may be alike

    def add(self, ask: Ask, placed: Placed) -> None:
        """Reserves a place for the ask."""
        self.inventory.reserve(placed, ask.deployment_uid)
        self._places.append((ask, placed))
        self._blocked.clear()

    def release(self) -> None:
        """Takes all reservations off the inventory."""
        for _, placed in self._places:
            self.inventory.unreserve(placed)

    def block(self, ask: Ask) -> bool:
        """Whether the ask would fit if nothing were reserved."""
        shape = ask.shape()
        if self._places and shape not in self._blocked:
            self.release()
            try:
                self._blocked[shape] = find(self.inventory, ask) is not None
            finally:
                for reserved_for, placed in self._places:
                    self.inventory.reserve(placed, reserved_for.deployment_uid)
        return self._blocked.get(shape, False)

    def message(self) -> str:
        """What to report to an instance that the reservations block."""
        places = (f"{ask.instance} on {worker_names(self.inventory, placed)}" for ask, placed in self._places)
        return f"it would fit, but capacity is reserved for {', '.join(places)}"


def worker_names(inventory: Inventory, placed: Placed) -> str:
    """The names of a place's workers, by rank."""
    return ", ".join(inventory.worker(worker).name for worker in placed.workers)
