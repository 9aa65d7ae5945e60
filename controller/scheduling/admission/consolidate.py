"""Consolidation: relocates running instances so that others fit. The fewest, then the smallest are chosen.

A relocation starts a replacement before the old instance ends. So each replacement must fit next to all that runs now,
the earlier replacements and the demands. Then relocations cannot block one another in any order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final

import numpy as np

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Layout, Placed, PlannedClaim
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.admission.site_problem import SiteProblem
from controller.scheduling.admission.sites import Site, sites, worth_solving
from controller.scheduling.admission.victims import spared
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.inventory.tables import Bools
from controller.scheduling.search.cached_search import engine_chain, find

MAX_RELOCATIONS: Final = 32  # of one plan
_MAX_ATTEMPTS: Final = 32  # per demand; each tries to place the replacements of one set


@dataclass(frozen=True, slots=True)
class Movable:
    """A running instance that may be relocated: its claims, and the ask of its replacement."""

    instance: str
    workers: tuple[str, ...]  # ids by rank
    claims: tuple[PlannedClaim, ...]
    ask: Ask
    priority: int = 0


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
    priorities: Mapping[str, int] | None = None,
    promised: Mapping[str, Ask] = MappingProxyType({}),
) -> Consolidation:
    """Plans relocations for demands in the order given. The inventory is the same afterwards.

    Args:
        inventory: the current state.
        demands: asks that shall fit, each next to the earlier asks.
        movable: instances that may be relocated. All others stay.
        leaving: holders that end anyway. Their claims are free for demands, but not for replacements.
        max_relocations: limit of the plan.
        priorities: of the demands, by instance; no instance of a higher priority is relocated. None for no limit.
        promised: by instance of a demand, the ask for the place that its victims leave. All others keep clear of it.
    """
    inventory.begin_pass()
    work = _Work(inventory, movable, leaving, max_relocations)
    plan = work.plan
    unplaceable: dict[object, float] = {}  # by shape: the highest priority for which nothing was found
    try:
        kept = {one.instance: placed for one in promised.values() if (placed := _fit_now(work, one)) is not None}
        for demand in demands:
            if demand.instance in kept:
                plan.placed.append(kept[demand.instance])
                continue
            shape = demand.shape()
            priority = math.inf if priorities is None else priorities.get(demand.instance, 0)
            placed = None if priority <= unplaceable.get(shape, -1) else _fit(work, demand, priority)
            if placed is not None:
                plan.placed.append(placed)
            else:  # the plan only takes capacity, so a later equal ask fits nowhere either
                unplaceable[shape] = priority
                plan.unplaced.append(demand.instance)
    finally:
        inventory.rollback()
    return plan


class _Work:
    """The state of one plan."""

    def __init__(
        self, inventory: Inventory, movable: Sequence[Movable], leaving: Sequence[Holder], max_relocations: int
    ) -> None:
        self.inventory = inventory
        self.leaving = leaving
        self.plan = Consolidation()
        self.max_relocations = max_relocations
        self.asks = {one.instance: one.ask for one in movable}
        self._movable = movable
        self._index: HolderIndex | None = None

    @property
    def index(self) -> HolderIndex:
        """The instances that may be relocated and whose replacement may fit somewhere."""
        if self._index is None:
            may = replaceable(self.inventory, [movable.ask for movable in self._movable])
            holders = [
                Holder(movable.instance, movable.priority, 0.0, frozenset(movable.workers), movable.claims)
                for movable, fits in zip(self._movable, may, strict=True)
                if fits
            ]
            self._index = HolderIndex(self.inventory, holders)
        return self._index

    def allowed(self, priority: float) -> Bools:
        """By holder: whether it may be relocated for a demand of this priority."""
        if priority == math.inf:
            return self.index.up_to()
        return self.index.up_to(2 * int(priority) + 1)


def _fit(work: _Work, demand: Ask, priority: float) -> Placed | None:
    """The place for one demand, reserved; its relocations are added to the plan."""
    return _fit_now(work, demand) or _fit_by_relocations(work, demand, priority)


def _fit_now(work: _Work, demand: Ask) -> Placed | None:
    """The place for one demand once leaving holders have ended, reserved. None if it needs relocations."""
    with without(work.inventory, work.leaving):
        placed = find(work.inventory, demand)
    if placed is not None:
        work.inventory.reserve(placed, demand.deployment_uid)
    return placed


@dataclass(order=True, slots=True)
class _Attempt:
    """Holders of a site to relocate; the cheapest first."""

    cost: tuple[object, ...]
    number: int  # of the site
    site: Site = field(compare=False)
    excluded: frozenset[str] = field(compare=False)
    moved: list[Holder] = field(compare=False)


def _fit_by_relocations(work: _Work, demand: Ask, priority: float) -> Placed | None:
    """Adds the relocations for one demand to the plan and reserves their claims. None if it does not fit so either."""
    most = work.max_relocations - len(work.plan.relocations)
    allowed = work.allowed(priority)
    if most <= 0 or not allowed.any():
        return None
    with without(work.inventory, work.leaving):
        remaining = iter(sites(work.index, demand, allowed))
    queue: list[_Attempt] = []
    solved, site = 0, next(remaining, None)

    def solve(number: int, site: Site, excluded: frozenset[str]) -> None:
        with without(work.inventory, work.leaving):
            moved = SiteProblem(work.index, site, allowed, excluded).cheapest(_cost, most)
        if moved:
            heappush(queue, _Attempt(_cost(moved), number, site, excluded, moved))

    for _ in range(_MAX_ATTEMPTS):
        while site is not None and worth_solving(solved, site, len(queue[0].moved) if queue else most + 1):
            solve(solved, site, frozenset())
            solved, site = solved + 1, next(remaining, None)
        if not queue:
            return None
        attempt = heappop(queue)
        placed = _relocate(work, demand, attempt.moved)
        if isinstance(placed, Placed):
            return placed
        solve(attempt.number, attempt.site, attempt.excluded | {placed})
    return None


def _size(holder: Holder) -> int:
    return sum(claim.memory_mib for claim in holder.claims)


def _cost(moved: Sequence[Holder]) -> tuple[object, ...]:
    return len(moved), sum(map(_size, moved)), sorted(holder.instance for holder in moved)


def _relocate(work: _Work, demand: Ask, moved: Sequence[Holder]) -> Placed | str:
    """The demand's place, reserved with those of all replacements; else the name of an instance that fits nowhere else.

    The demand's place is reserved on top of the old claims: replacements stay out of it.
    """
    inventory = work.inventory
    with without(inventory, work.leaving):
        placed, moved = spared(inventory, demand, moved)
    if placed is None:  # the search knows a reason against this site
        return moved[0].instance
    reserved = [placed]
    inventory.reserve(placed, demand.deployment_uid)
    relocations: list[Relocation] = []
    # The largest are the hardest to place, so they come first.
    for holder in sorted(moved, key=lambda h: (-h.gpus, -_size(h), h.instance)):
        ask = work.asks[holder.instance]
        replacement = find_replacement(inventory, ask.for_instance(f"{holder.instance}+"), holder)
        if replacement is None:
            for taken in reversed(reserved):
                inventory.unreserve(taken)
            return holder.instance
        inventory.reserve(replacement, ask.deployment_uid)
        reserved.append(replacement)
        relocations.append(Relocation(holder.instance, replacement))
    work.plan.relocations += relocations
    work.index.remove(moved)
    return placed


def replaceable(inventory: Inventory, asks: Sequence[Ask]) -> list[bool]:
    """For each ask, whether any host has enough free for it. A search may still know a reason against each of them."""
    free = -np.sort(-inventory.gpus.free[inventory.groups.gpus], axis=1)
    whole = -np.sort(-inventory.gpus.whole[inventory.groups.gpus], axis=1)
    workers, rows = inventory.workers, inventory.groups.worker
    memory = (workers.memory - workers.memory_claimed)[rows]
    cpu = (workers.cpu - workers.cpu_claimed)[rows]
    known: dict[tuple[object, ...], bool] = {}

    def has(ask: Ask, layout: Layout) -> bool:
        key = layout.gpus // layout.workers, layout.memory_mib, layout.exclusive, ask.host_memory_mib, ask.cpu_milli
        if key not in known:
            each = layout.gpus // layout.workers
            enough: Bools = np.ones(len(rows), dtype=np.bool_)
            if ask.host_memory_mib:
                enough &= memory >= ask.host_memory_mib
            if ask.cpu_milli:
                enough &= cpu >= ask.cpu_milli
            if each > free.shape[1]:
                enough[:] = False
            elif each:
                enough &= (whole if layout.exclusive else free)[:, each - 1] >= layout.memory_mib
            known[key] = bool(enough.any())
        return known[key]

    # GPUs that are named by hand may be distributed unevenly.
    return [
        any(
            by_engine.gpus or any(has(by_engine, layout) for layout in by_engine.layouts)
            for by_engine in engine_chain(ask)
        )
        for ask in asks
    ]


def find_replacement(inventory: Inventory, ask: Ask, old: Holder) -> Placed | None:
    """The place for the replacement of an instance; None where more instances of its deployment would run than now.

    With `spread` workers count before GPUs, with `pack` neither counts, else GPUs alone.
    """
    placed = find(inventory, ask)
    if placed is None or not ask.keeps_apart:
        return placed
    on_workers, on_gpus = inventory.deployment_on(ask.deployment_uid)

    def crowded(counts: dict[str, int], there: Sequence[str], here: Sequence[str]) -> bool:
        most = max((counts.get(key, 1) for key in here), default=1)
        return any(counts.get(key, 0) + (key not in here) > most for key in there)

    workers = dict(on_workers), placed.workers, tuple(old.workers)
    gpus = dict(on_gpus), [c.device for c in placed.claims], [c.device for c in old.claims]
    if ask.strategy != "spread":
        return None if crowded(*gpus) else placed
    if crowded(*workers):
        return None
    return None if set(placed.workers) <= old.workers and crowded(*gpus) else placed
