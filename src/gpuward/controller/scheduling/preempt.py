"""Whose leaving would make room for an ask: the lowest, then the fewest, then those that lose least.

Everything is tried out on the inventory itself, claims being lifted and put back, and the question whether an ask fits
is put to the very search that places it. So what comes out is enough, and none of it could stay: each of the chosen was
put back, and only where the ask did not fit any more was it lifted again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuward.controller.domain.placement import Ask, Layout, Placed, PlannedClaim
from gpuward.controller.scheduling.candidates import Candidates
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.place import find
from gpuward.controller.scheduling.search import search_for
from gpuward.controller.scheduling.segments import NEVER, Ints

# Places that are worked out to the end, of each layout. Those that lack the fewest GPUs come first.
_MAX_SITES: Final = 12
_Site = frozenset[str]  # ids of workers


@dataclass(frozen=True, slots=True)
class Occupant:
    """An instance that holds claims and could be made to leave."""

    instance: str
    priority: int
    born: float  # seconds since the epoch, from which its age in the queue counts
    workers: frozenset[str]  # ids
    claims: tuple[PlannedClaim, ...]
    epoch: int = 0  # in which it holds them

    @property
    def gpus(self) -> int:
        """Claims on GPUs, roughly what it would lose."""
        return len(self.claims) - len(self.workers)


@dataclass(frozen=True, slots=True)
class Room:
    """Where an ask will fit, once `leave` have left: not one of them could stay."""

    placed: Placed
    leave: tuple[Occupant, ...] = ()


def make_room(inventory: Inventory, ask: Ask, occupants: Sequence[Occupant]) -> Room | None:
    """Who has to leave for an ask that does not fit now; None where it would not fit though all of them left.

    Of several ways the one whose highest victim is lowest, then the one of the fewest victims, then that of the fewest
    GPUs, then that of the youngest.

    Args:
        inventory: as it is; it is the same afterwards.
        ask: what does not fit.
        occupants: those that may be made to leave.
    """
    level = _lowest_level(inventory, ask, occupants)
    if level is None:
        return None
    pool = [o for o in occupants if o.priority <= level]
    ways = []
    for site in dict.fromkeys(_sites(inventory, ask, pool)):
        near = [o for o in pool if o.workers & site]
        ways += [way for order in (_small_stay, _large_stay) if (way := _leave(inventory, ask, near, order))]
    if not ways:
        return None
    best = min(ways, key=_cost)
    with lifted(inventory, best):
        placed = find(inventory, ask)
    return Room(placed, tuple(sorted(best, key=lambda o: o.instance))) if placed is not None else None


@contextmanager
def lifted(inventory: Inventory, occupants: Iterable[Occupant]) -> Iterator[None]:
    """The inventory as if these had left."""
    away = tuple(occupants)
    for one in away:
        inventory.lift(one.claims)
    try:
        yield
    finally:
        for one in away:
            inventory.put_back(one.claims)


def _lowest_level(inventory: Inventory, ask: Ask, occupants: Sequence[Occupant]) -> int | None:
    """The lowest priority so that the ask fits when all up to it have left."""
    levels = sorted({o.priority for o in occupants})

    def fits(level: int) -> bool:
        with lifted(inventory, (o for o in occupants if o.priority <= level)):
            return find(inventory, ask) is not None

    if not levels or not fits(levels[-1]):
        return None
    return levels[bisect_left(range(len(levels) - 1), x=True, key=lambda n: fits(levels[n]))]


def _sites(inventory: Inventory, ask: Ask, pool: Sequence[Occupant]) -> list[_Site]:
    """Workers, or sets of them for a gang, on which the ask would fit if all of the pool left."""
    chain: list[Ask] = []
    by: Ask | None = ask
    while by is not None:
        chain.append(by)
        by = by.otherwise
    layouts = [(one, number, layout) for one in chain for number, layout in enumerate(one.layouts)]
    free = {layout: _suitable(inventory, layout) for _, _, layout in layouts}
    sites: list[_Site] = []
    with lifted(inventory, pool):
        for one, number, layout in layouts:
            sites += _sites_of(inventory, search_for(inventory, one).candidates(number), free[layout])
        if (placed := find(inventory, ask)) is not None:
            sites.append(frozenset(placed.workers))
    return sites


def _suitable(inventory: Inventory, layout: Layout) -> Ints:
    """By group how many GPUs could be had now."""
    gpus = inventory.gpus
    have = gpus.whole if layout.exclusive else gpus.room
    suitable: Ints = np.count_nonzero(have[inventory.groups.gpus] >= layout.memory_mib, axis=1).astype(np.int64)
    return suitable


def _sites_of(inventory: Inventory, candidates: Candidates, free: Ints) -> Iterator[_Site]:
    groups, facts, layout = inventory.groups, inventory.workers.facts, candidates.layout
    fitting = np.flatnonzero(candidates.first != NEVER)
    missing = np.maximum(candidates.wanted[fitting] - free[fitting], 0)
    nearest = fitting[np.lexsort((fitting, missing))]
    if layout.workers == 1:
        for group in nearest[:_MAX_SITES].tolist():
            yield frozenset({facts[int(groups.worker[group])].id})
        return
    for kind in np.unique(groups.kind[nearest]).tolist():
        owners = dict.fromkeys(groups.worker[nearest[groups.kind[nearest] == kind]].tolist())
        if len(owners) >= layout.workers:
            yield frozenset(facts[worker].id for worker in list(owners)[: layout.workers])


def _leave(
    inventory: Inventory, ask: Ask, near: Sequence[Occupant], stays_first: Callable[[Occupant], tuple[object, ...]]
) -> list[Occupant] | None:
    """Who of these must leave, when as many as possible stay; None where the ask does not fit though all left."""
    leave = sorted(near, key=stays_first)
    for one in leave:
        inventory.lift(one.claims)
    try:
        if find(inventory, ask) is None:
            return None
        for one in tuple(leave):
            inventory.put_back(one.claims)
            if find(inventory, ask) is not None:
                leave.remove(one)
            else:
                inventory.lift(one.claims)
        return list(leave)
    finally:
        for one in leave:
            inventory.put_back(one.claims)


def _small_stay(one: Occupant) -> tuple[object, ...]:
    return (-one.priority, one.gpus, one.born, one.instance)


def _large_stay(one: Occupant) -> tuple[object, ...]:
    return (-one.priority, -one.gpus, one.born, one.instance)


def _cost(leave: Sequence[Occupant]) -> tuple[object, ...]:
    return (
        max((o.priority for o in leave), default=0),
        len(leave),
        sum(o.gpus for o in leave),
        sorted(-o.born for o in leave),
        sorted(o.instance for o in leave),
    )
