"""Whose leaving would make room for an ask: the lowest, then the fewest, then those that lose least.

Everything is tried out on the inventory itself, claims being lifted and put back, and the question whether an ask fits
is put to the very search that places it. So what comes out is enough, and none of it could stay: each of the chosen was
put back, and only where the ask did not fit any more was it lifted again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gpuward.controller.domain.placement import Ask, Layout, Placed, PlannedClaim
from gpuward.controller.scheduling.candidates import Candidates
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.place import find
from gpuward.controller.scheduling.search import search_for
from gpuward.controller.scheduling.segments import NEVER, Bools, Ints

# Places that are worked out to the end, of each layout. Those that lack the fewest GPUs come first.
_MAX_SITES: Final = 12
_TRIED_FIRST: Final = 16  # workers that are thought empty together; then four times as many, and so on
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


def make_room(inventory: Inventory, ask: Ask, occupants: Sequence[Occupant], *, ranked: bool = True) -> Room | None:
    """Who has to leave for an ask that does not fit now; None where it would not fit though all of them left.

    Of several ways the one whose highest victim is lowest, then the one of the fewest victims, then that of the fewest
    GPUs, then that of the youngest.

    Args:
        inventory: as it is; it is the same afterwards.
        ask: what does not fit.
        occupants: those that may be made to leave.
        ranked: False where their priority does not matter, since they end by themselves.
    """
    if not ranked:
        pool = _enough(inventory, ask, occupants)
        return None if pool is None else _fewest(inventory, ask, [replace(o, priority=0) for o in pool])
    for level in sorted({o.priority for o in occupants}):
        pool = _enough(inventory, ask, [o for o in occupants if o.priority <= level])
        if pool is not None:
            return _fewest(inventory, ask, pool)
    return None


def _fewest(inventory: Inventory, ask: Ask, pool: Sequence[Occupant]) -> Room | None:
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


def _enough(inventory: Inventory, ask: Ask, pool: Sequence[Occupant]) -> list[Occupant] | None:
    """Some of the pool whose leaving is enough, those on the workers that lack least; None where all are not enough."""
    on_worker: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
    for one in pool:
        for worker in one.workers:
            on_worker[worker][one.instance] = one
    workers = _nearest_workers(inventory, ask, pool)
    count = _TRIED_FIRST
    while workers:
        some = {i: o for worker in workers[:count] for i, o in on_worker[worker].items()}
        with lifted(inventory, some.values()):
            if find(inventory, ask) is not None:
                return list(some.values())
        if count >= len(workers):
            break
        count *= 4
    return None


def _nearest_workers(inventory: Inventory, ask: Ask, pool: Sequence[Occupant]) -> list[str]:
    """Workers that might have GPUs enough if all of the pool left, those that lack the fewest now first."""
    held = np.zeros(len(inventory.gpus.uuid) + 1, dtype=np.bool_)
    rows = [inventory.gpu_row(claim.device) for one in pool for claim in one.claims]
    held[[row for row in rows if row is not None]] = True
    groups, facts = inventory.groups, inventory.workers.facts
    lacking: dict[int, int] = {}
    for one in _chain(ask):
        for number, layout in enumerate(one.layouts):
            wanted = search_for(inventory, one).candidates(number).wanted
            free, possible = _suitable(inventory, layout), _suitable(inventory, layout, held)
            for group in np.flatnonzero(possible >= wanted).tolist():
                worker, lacks = int(groups.worker[group]), max(int(wanted[group] - free[group]), 0)
                lacking[worker] = min(lacking.get(worker, lacks), lacks)
    return [facts[worker].id for worker in sorted(lacking, key=lambda w: (lacking[w], w))]


def _chain(ask: Ask) -> list[Ask]:
    """The ask by each of its engines."""
    return [ask, *(_chain(ask.otherwise) if ask.otherwise is not None else [])]


def _sites(inventory: Inventory, ask: Ask, pool: Sequence[Occupant]) -> list[_Site]:
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


def _suitable(inventory: Inventory, layout: Layout, held: Bools | None = None) -> Ints:
    """By group how many GPUs could be had now, or at the very best if what is held on some were gone."""
    gpus = inventory.gpus
    can: Bools = (gpus.whole if layout.exclusive else gpus.room) >= layout.memory_mib
    if held is not None:
        can = can | held
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
