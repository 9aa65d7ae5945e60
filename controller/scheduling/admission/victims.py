"""Chooses a preemption's victims: the lowest priorities, then the fewest instances, then those that lose the least.

Every choice is tried on the inventory itself, with claims excluded and restored. The search that places an ask decides
whether it fits. So the victims are enough, and none is needless: each was restored on trial, and excluded again only
where the ask no longer fitted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from controller.domain.holdings import Holder
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.admission.reservation import Reservation
from controller.scheduling.inventory.arrays import NEVER, Bools, Ints
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.holders import HolderTable, without
from controller.scheduling.search.cached_search import engine_chain, search_for
from controller.scheduling.search.candidates import Candidates
from controller.scheduling.search.place import find

_MAX_SITES: Final = 12  # sites per layout for which victims are worked out; those that lack the fewest GPUs come first
_TRIED_FIRST: Final = 16  # workers tried empty together at first; each further try takes four times as many
_Site = frozenset[str]  # ids of workers


def find_victims(inventory: Inventory, ask: Ask, holders: Sequence[Holder]) -> Reservation | None:
    """`choose_victims` among all of these holders."""
    return choose_victims(inventory, ask, HolderTable(inventory, holders))


def choose_victims(
    inventory: Inventory, ask: Ask, table: HolderTable, *, below: int | None = None
) -> Reservation | None:
    """The victims for an ask that does not fit now. None: it would not fit even without all of the holders.

    Of several sets, the one whose highest priority is lowest wins; then the one with the fewest victims, then the one
    with the fewest GPUs, then the one with the youngest victims.

    Args:
        inventory: the current state. It is the same afterwards.
        ask: the ask that does not fit.
        table: the holders that may be preempted.
        below: only holders of a lower priority than this.
    """
    levels = table.levels(below)
    enough = _sufficient(inventory, ask, table, levels[-1]) if levels else None
    if enough is None:
        return None
    lowest, highest = 0, len(levels) - 1  # the lowest sufficient level lies between these; `highest` is sufficient
    while lowest < highest:
        middle = (lowest + highest) // 2
        fewer = _sufficient(inventory, ask, table, levels[middle])
        if fewer is None:
            lowest = middle + 1
        else:
            highest, enough = middle, fewer
    return _fewest(inventory, ask, enough)


def earliest_capacity(inventory: Inventory, ask: Ask, table: HolderTable) -> Placed | None:
    """The place for which the fewest holders have to end, whatever their priority. Ends nothing."""
    levels = table.levels()
    enough = _sufficient(inventory, ask, table, levels[-1]) if levels else None
    if enough is None:
        return None
    found = _fewest(inventory, ask, [replace(one, priority=0) for one in enough])
    return None if found is None else found.placed


def _fewest(inventory: Inventory, ask: Ask, holders: Sequence[Holder]) -> Reservation | None:
    """The best set of victims among holders that are enough together."""
    sets = []
    for site in dict.fromkeys(_sites(inventory, ask, holders)):
        near = [o for o in holders if o.workers & site]
        sets += [
            found for order in (_small_first, _large_first) if (found := minimize_victims(inventory, ask, near, order))
        ]
    if not sets:
        return None
    best = min(sets, key=_cost)
    with without(inventory, best):
        placed = find(inventory, ask)
    return Reservation(placed, tuple(sorted(best, key=lambda o: o.instance))) if placed is not None else None


def _sufficient(inventory: Inventory, ask: Ask, table: HolderTable, level: int) -> list[Holder] | None:
    """Holders up to a priority without which the ask fits, on the workers that lack least. None: all are too few."""
    workers = _nearest_workers(inventory, ask, table, level)
    count = _TRIED_FIRST
    while workers:
        some = table.on(workers[:count], level)
        with without(inventory, some):
            if find(inventory, ask) is not None:
                return some
        if count >= len(workers):
            break
        count *= 4
    return None


def _nearest_workers(inventory: Inventory, ask: Ask, table: HolderTable, level: int) -> list[str]:
    """Workers with enough GPUs if all holders up to a priority ended; those that lack the fewest GPUs now first."""
    groups, facts = inventory.groups, inventory.workers.facts
    lacking: Ints = np.full(len(facts), NEVER, dtype=np.int64)
    for one in engine_chain(ask):
        for number, layout in enumerate(one.layouts):
            candidates = search_for(inventory, one).candidates(number)
            wanted, free = candidates.wanted, _suitable(inventory, layout)
            possible = np.count_nonzero(table.would_fit(layout, level)[groups.gpus], axis=1) >= wanted
            rows = np.flatnonzero(possible & candidates.eligible)
            if len(np.unique(groups.worker[rows])) >= layout.workers:
                np.minimum.at(lacking, groups.worker[rows], np.maximum(wanted - free, 0)[rows])
    near = np.flatnonzero(lacking != NEVER)
    return [facts[worker].id for worker in near[np.lexsort((near, lacking[near]))].tolist()]


def _sites(inventory: Inventory, ask: Ask, holders: Sequence[Holder]) -> list[_Site]:
    """Workers, or sets of workers for a gang, on which the ask would fit if all of the holders ended."""
    layouts = [(one, number, layout) for one in engine_chain(ask) for number, layout in enumerate(one.layouts)]
    free = {layout: _suitable(inventory, layout) for _, _, layout in layouts}
    sites: list[_Site] = []
    with without(inventory, holders):
        for one, number, layout in layouts:
            sites += _sites_of(inventory, search_for(inventory, one).candidates(number), free[layout])
        if (placed := find(inventory, ask)) is not None:
            sites.append(frozenset(placed.workers))
    return sites


def _suitable(inventory: Inventory, layout: Layout) -> Ints:
    """By group: how many GPUs are free for the layout now."""
    gpus = inventory.gpus
    can: Bools = (gpus.whole if layout.exclusive else gpus.free) >= layout.memory_mib
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


def minimize_victims(
    inventory: Inventory, ask: Ask, holders: Sequence[Holder], order: Callable[[Holder], tuple[object, ...]]
) -> list[Holder] | None:
    """The holders that have to end for the ask. As many as possible are restored, in this order.

    None: the ask does not fit even without all of these holders.
    """
    victims = sorted(holders, key=order)
    for one in victims:
        inventory.exclude(one.claims)
    try:
        if find(inventory, ask) is None:
            return None
        for one in tuple(victims):
            inventory.restore(one.claims)
            if find(inventory, ask) is not None:
                victims.remove(one)
            else:
                inventory.exclude(one.claims)
        return list(victims)
    finally:
        for one in victims:
            inventory.restore(one.claims)


def _small_first(one: Holder) -> tuple[object, ...]:
    return (-one.priority, one.gpus, one.born, one.instance)


def _large_first(one: Holder) -> tuple[object, ...]:
    return (-one.priority, -one.gpus, one.born, one.instance)


def _cost(victims: Sequence[Holder]) -> tuple[object, ...]:
    return (
        max((o.priority for o in victims), default=0),
        len(victims),
        sum(o.gpus for o in victims),
        sorted(-o.born for o in victims),
        sorted(o.instance for o in victims),
    )
