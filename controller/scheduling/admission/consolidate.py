"""Which running instances to move so that others fit: the fewest, then the smallest.

A move is a new copy that runs before the old one goes. So each copy must fit beside everything that runs now, beside
the copies before it, and beside what the room is made for; then no order of the moves can end in a knot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Placed, PlannedClaim
from controller.scheduling.admission.preempt import Room, find_preemption, lifted
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.search.place import find

MAX_MOVES: Final = 32  # of one plan
_MAX_WAYS: Final = 8  # that are tried for one demand; each leaves out somebody who has nowhere to go


@dataclass(frozen=True, slots=True)
class Movable:
    """A running instance that may be moved: what it holds, and what a new copy of it asks."""

    instance: str
    workers: tuple[str, ...]  # ids by rank
    claims: tuple[PlannedClaim, ...]
    ask: Ask


@dataclass(frozen=True, slots=True)
class Relocation:
    """A move: where the new copy goes."""

    instance: str
    to: Placed


@dataclass(slots=True)
class Consolidation:
    """What is to be moved, which demands then fit, and which do not all the same."""

    moves: list[Relocation] = field(default_factory=list)
    fits: list[Placed] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def consolidate(
    inventory: Inventory,
    demands: Sequence[Ask],
    movable: Sequence[Movable],
    *,
    leaving: Sequence[Holder] = (),
    max_moves: int = MAX_MOVES,
) -> Consolidation:
    """Works out moves for demands in the order given; the inventory is the same afterwards.

    Args:
        inventory: as it is.
        demands: what shall fit, each beside those before it.
        movable: what may be moved. Everything else stays where it is.
        leaving: who ends anyway, and makes room for demands; copies come up before that.
        max_moves: no more than so many in all.
    """
    work = _Work(inventory, {one.instance: one for one in movable}, leaving, max_moves)
    plan = work.plan
    hopeless: set[object] = set()  # what is planned only takes room, so who asks like one that is left is left too
    inventory.begin_pass()
    try:
        for demand in demands:
            shape = demand.shape()
            placed = None if shape in hopeless else _fit(work, demand)
            if placed is not None:
                plan.fits.append(placed)
            else:
                hopeless.add(shape)
                plan.left.append(demand.instance)
    finally:
        inventory.rollback()
    return plan


@dataclass(slots=True)
class _Work:
    """What one call works on."""

    inventory: Inventory
    staying: dict[str, Movable]  # who has not been moved yet
    leaving: Sequence[Holder]
    max_moves: int
    plan: Consolidation = field(default_factory=Consolidation)


def _fit(work: _Work, demand: Ask) -> Placed | None:
    """The place for one demand, reserved, with the moves that it takes added to the plan."""
    with lifted(work.inventory, work.leaving):
        placed = find(work.inventory, demand)
    if placed is None:
        return _make_way(work, demand)
    work.inventory.reserve(placed, demand.deployment_uid)
    return placed


def _make_way(work: _Work, demand: Ask) -> Placed | None:
    """Adds the moves for one demand to the plan, and reserves all that they take; None where there is no way."""
    pool = dict(work.staying)
    for _ in range(_MAX_WAYS):
        with lifted(work.inventory, work.leaving):
            room = _room(work.inventory, demand, pool)
        if room is None or len(room.leave) > work.max_moves - len(work.plan.moves):
            return None
        found = _relocate(work.inventory, demand, room, pool)
        if isinstance(found, str):
            del pool[found]
            continue
        work.plan.moves += found
        for move in found:
            del work.staying[move.instance]
        return room.placed
    return None


def _size(one: Holder | Movable) -> int:
    return sum(claim.memory_mib for claim in one.claims)


def _room(inventory: Inventory, demand: Ask, pool: Mapping[str, Movable]) -> Room | None:
    """Where the fewest have to leave, and of as many the smallest: tried with the large staying, and with the small."""
    found: list[Room] = []
    for sign in (1, -1):
        # All are of one rank; who is to stay counts as older.
        holders = [
            Holder(one.instance, 0, float(sign * _size(one)), frozenset(one.workers), one.claims)
            for one in pool.values()
        ]
        if (room := find_preemption(inventory, demand, holders)) is not None:
            found.append(room)
    return min(found, key=lambda room: (len(room.leave), sum(map(_size, room.leave))), default=None)


def _relocate(inventory: Inventory, demand: Ask, room: Room, pool: Mapping[str, Movable]) -> list[Relocation] | str:
    """New places for all who leave, with the room they make reserved; else who of them has nowhere to go."""
    reserved = [room.placed]
    inventory.reserve(room.placed, demand.deployment_uid)  # upon what still stands there, so that nobody else fits
    moves: list[Relocation] = []
    for one in sorted(room.leave, key=lambda o: (-o.gpus, -_size(o), o.instance)):  # the large ones are hard to place
        ask = pool[one.instance].ask
        copy = find(inventory, ask.for_instance(f"{one.instance}+"))
        if copy is None:
            for placed in reversed(reserved):
                inventory.unreserve(placed)
            return one.instance
        inventory.reserve(copy, ask.deployment_uid)
        reserved.append(copy)
        moves.append(Relocation(one.instance, copy))
    return moves
