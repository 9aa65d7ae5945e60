"""Consolidation: which running instances to relocate so that others fit. The fewest, and of as many the smallest.

A relocation starts a replacement before the old instance ends. So each replacement must fit beside everything that runs
now, beside the earlier replacements, and beside the demands. Then relocations cannot block one another in any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Placed, PlannedClaim
from controller.scheduling.admission.reservation import Reservation
from controller.scheduling.admission.victims import find_victims
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.holders import without
from controller.scheduling.search.place import find

MAX_RELOCATIONS: Final = 32  # of one plan
_MAX_ATTEMPTS: Final = 8  # per demand; each attempt rules out one instance that fits nowhere else


@dataclass(frozen=True, slots=True)
class Movable:
    """A running instance that may be relocated: what it holds, and the ask of its replacement."""

    instance: str
    workers: tuple[str, ...]  # ids by rank
    claims: tuple[PlannedClaim, ...]
    ask: Ask


@dataclass(frozen=True, slots=True)
class Relocation:
    """An instance to relocate, and the place of its replacement."""

    instance: str
    to: Placed


@dataclass(slots=True)
class Consolidation:
    """The relocations, the demands that fit after them, and the demands that still do not."""

    relocations: list[Relocation] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)


def consolidate(
    inventory: Inventory,
    demands: Sequence[Ask],
    movable: Sequence[Movable],
    *,
    leaving: Sequence[Holder] = (),
    max_relocations: int = MAX_RELOCATIONS,
) -> Consolidation:
    """Plans relocations for demands in the order given. The inventory is the same afterwards.

    Args:
        inventory: the current state.
        demands: asks that shall fit, each beside the earlier ones.
        movable: instances that may be relocated. All others stay.
        leaving: holders that end anyway. Their claims are free for demands, but not for replacements.
        max_relocations: limit for the whole plan.
    """
    work = _Work(inventory, {one.instance: one for one in movable}, leaving, max_relocations)
    plan = work.plan
    unplaceable: set[object] = set()  # shapes; the plan only takes capacity, so a later equal ask fits nowhere either
    inventory.begin_pass()
    try:
        for demand in demands:
            shape = demand.shape()
            placed = None if shape in unplaceable else _fit(work, demand)
            if placed is not None:
                plan.placed.append(placed)
            else:
                unplaceable.add(shape)
                plan.unplaced.append(demand.instance)
    finally:
        inventory.rollback()
    return plan


@dataclass(slots=True)
class _Work:
    """The state of one call."""

    inventory: Inventory
    staying: dict[str, Movable]  # not relocated so far
    leaving: Sequence[Holder]
    max_relocations: int
    plan: Consolidation = field(default_factory=Consolidation)


def _fit(work: _Work, demand: Ask) -> Placed | None:
    """The place for one demand, reserved; its relocations are added to the plan."""
    with without(work.inventory, work.leaving):
        placed = find(work.inventory, demand)
    if placed is None:
        return _fit_by_relocations(work, demand)
    work.inventory.reserve(placed, demand.deployment_uid)
    return placed


def _fit_by_relocations(work: _Work, demand: Ask) -> Placed | None:
    """Adds the relocations for one demand to the plan and reserves what they take. None: nothing was found."""
    candidates = dict(work.staying)
    for _ in range(_MAX_ATTEMPTS):
        with without(work.inventory, work.leaving):
            reservation = _reservation(work.inventory, demand, candidates)
        if reservation is None or len(reservation.victims) > work.max_relocations - len(work.plan.relocations):
            return None
        found = _relocate(work.inventory, demand, reservation, candidates)
        if isinstance(found, str):
            del candidates[found]
            continue
        work.plan.relocations += found
        for relocation in found:
            del work.staying[relocation.instance]
        return reservation.placed
    return None


def _size(one: Holder | Movable) -> int:
    return sum(claim.memory_mib for claim in one.claims)


def _reservation(inventory: Inventory, demand: Ask, candidates: Mapping[str, Movable]) -> Reservation | None:
    """The place for which the fewest and smallest instances relocate. Tried twice: large ones stay, small ones stay."""
    found: list[Reservation] = []
    for sign in (1, -1):
        # All have one priority. An instance that shall stay gets the higher age.
        holders = [
            Holder(one.instance, 0, float(sign * _size(one)), frozenset(one.workers), one.claims)
            for one in candidates.values()
        ]
        if (reservation := find_victims(inventory, demand, holders)) is not None:
            found.append(reservation)
    return min(found, key=lambda one: (len(one.victims), sum(map(_size, one.victims))), default=None)


def _relocate(
    inventory: Inventory, demand: Ask, reservation: Reservation, candidates: Mapping[str, Movable]
) -> list[Relocation] | str:
    """Places for all replacements, reserved with the demand's; else the name of an instance that fits nowhere else."""
    reserved = [reservation.placed]
    inventory.reserve(reservation.placed, demand.deployment_uid)  # on top of the old claims: replacements stay out
    relocations: list[Relocation] = []
    # The largest are the hardest to place, so they come first.
    for one in sorted(reservation.victims, key=lambda o: (-o.gpus, -_size(o), o.instance)):
        ask = candidates[one.instance].ask
        replacement = find(inventory, ask.for_instance(f"{one.instance}+"))
        if replacement is None:
            for placed in reversed(reserved):
                inventory.unreserve(placed)
            return one.instance
        inventory.reserve(replacement, ask.deployment_uid)
        reserved.append(replacement)
        relocations.append(Relocation(one.instance, replacement))
    return relocations
