"""Whose leaving would make room for an ask: the lowest, then the fewest, then those that lose least.

Everything is tried out on the inventory itself, claims being lifted and put back, and the question whether an ask fits
is put to the very search that places it. So what comes out is enough, and none of it could stay: each of the chosen was
put back, and only where the ask did not fit any more was it lifted again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.inventory.holders import Pool
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.segments import NEVER, Bools, Ints
from controller.scheduling.search.candidates import Candidates
from controller.scheduling.search.place import find
from controller.scheduling.search.search import search_for

# Places that are worked out to the end, of each layout. Those that lack the fewest GPUs come first.
_MAX_SITES: Final = 12
_TRIED_FIRST: Final = 16  # workers that are thought empty together; then four times as many, and so on
_Site = frozenset[str]  # ids of workers


@dataclass(frozen=True, slots=True)
class Room:
    """Where an ask will fit, once `leave` have left: not one of them could stay."""

    placed: Placed
    leave: tuple[Holder, ...] = ()


def find_preemption(inventory: Inventory, ask: Ask, holders: Sequence[Holder]) -> Room | None:
    """`preempt_victims` of any of these."""
    return preempt_victims(inventory, ask, Pool(inventory, holders))


def preempt_victims(inventory: Inventory, ask: Ask, pool: Pool, *, below: int | None = None) -> Room | None:
    """Who has to leave for an ask that does not fit now; None where it would not fit though all of them left.

    Of several ways the one whose highest victim is lowest, then the one of the fewest victims, then that of the fewest
    GPUs, then that of the youngest.

    Args:
        inventory: as it is; it is the same afterwards.
        ask: what does not fit.
        pool: those that may be made to leave.
        below: only those of a lower priority than this.
    """
    levels = pool.levels(below)
    enough = _enough(inventory, ask, pool, levels[-1]) if levels else None
    if enough is None:
        return None
    lowest, highest = 0, len(levels) - 1  # the level that is looked for is between these, and the higher one would do
    while lowest < highest:
        middle = (lowest + highest) // 2
        fewer = _enough(inventory, ask, pool, levels[middle])
        if fewer is None:
            lowest = middle + 1
        else:
            highest, enough = middle, fewer
    return _fewest(inventory, ask, enough)


def await_ends(inventory: Inventory, ask: Ask, pool: Pool) -> Room | None:
    """Where the fewest have to end, whatever their priority: none is made to. Else as `preempt_victims`."""
    levels = pool.levels()
    enough = _enough(inventory, ask, pool, levels[-1]) if levels else None
    return None if enough is None else _fewest(inventory, ask, [replace(one, priority=0) for one in enough])


def _fewest(inventory: Inventory, ask: Ask, pool: Sequence[Holder]) -> Room | None:
    """Who of the pool has to leave, the ask fitting if all do."""
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
def lifted(inventory: Inventory, holders: Iterable[Holder]) -> Iterator[None]:
    """The inventory as if these had left."""
    away = tuple(holders)
    for one in away:
        inventory.lift(one.claims)
    try:
        yield
    finally:
        for one in away:
            inventory.put_back(one.claims)


def _enough(inventory: Inventory, ask: Ask, pool: Pool, level: int) -> list[Holder] | None:
    """Some up to a priority whose leaving is enough, on the workers that lack least; None where all are not enough."""
    workers = _nearest_workers(inventory, ask, pool, level)
    count = _TRIED_FIRST
    while workers:
        some = pool.on(workers[:count], level)
        with lifted(inventory, some):
            if find(inventory, ask) is not None:
                return some
        if count >= len(workers):
            break
        count *= 4
    return None


def _nearest_workers(inventory: Inventory, ask: Ask, pool: Pool, level: int) -> list[str]:
    """Workers that would have GPUs enough if all up to a priority left, those that lack the fewest now first."""
    groups, facts = inventory.groups, inventory.workers.facts
    lacking: Ints = np.full(len(facts), NEVER, dtype=np.int64)
    for one in _chain(ask):
        for number, layout in enumerate(one.layouts):
            candidates = search_for(inventory, one).candidates(number)
            wanted, free = candidates.wanted, _suitable(inventory, layout)
            possible = np.count_nonzero(pool.would_do(layout, level)[groups.gpus], axis=1) >= wanted
            rows = np.flatnonzero(possible & candidates.eligible)
            if len(np.unique(groups.worker[rows])) >= layout.workers:
                np.minimum.at(lacking, groups.worker[rows], np.maximum(wanted - free, 0)[rows])
    near = np.flatnonzero(lacking != NEVER)
    return [facts[worker].id for worker in near[np.lexsort((near, lacking[near]))].tolist()]


def _chain(ask: Ask) -> list[Ask]:
    """The ask by each of its engines."""
    return [ask, *(_chain(ask.otherwise) if ask.otherwise is not None else [])]


def _sites(inventory: Inventory, ask: Ask, pool: Sequence[Holder]) -> list[_Site]:
    """Workers, or sets of them for a gang, on which the ask would fit if all of the pool left."""
    layouts = [(one, number, layout) for one in _chain(ask) for number, layout in enumerate(one.layouts)]
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
    can: Bools = (gpus.whole if layout.exclusive else gpus.room) >= layout.memory_mib
    suitable: Ints = np.count_nonzero(can[inventory.groups.gpus], axis=1).astype(np.int64)
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
    inventory: Inventory, ask: Ask, near: Sequence[Holder], stays_first: Callable[[Holder], tuple[object, ...]]
) -> list[Holder] | None:
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


def _small_stay(one: Holder) -> tuple[object, ...]:
    return (-one.priority, one.gpus, one.born, one.instance)


def _large_stay(one: Holder) -> tuple[object, ...]:
    return (-one.priority, -one.gpus, one.born, one.instance)


def _cost(leave: Sequence[Holder]) -> tuple[object, ...]:
    return (
        max((o.priority for o in leave), default=0),
        len(leave),
        sum(o.gpus for o in leave),
        sorted(-o.born for o in leave),
        sorted(o.instance for o in leave),
    )
