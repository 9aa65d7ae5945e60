"""Searches for the best place of an ask. Each is kept with the inventory, for the next ask of the same shape."""

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout, Placed, PlannedClaim
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import Bools
from controller.scheduling.search.candidates import Candidates, Choice, Pack, Ranking, Siblings, Spread, siblings_of
from controller.scheduling.search.feasible import Request, resolve
from controller.scheduling.search.fragmentation import Fragments, LeastFragmentation
from controller.scheduling.search.gang import Shortage, find_gang
from controller.scheduling.search.group_misses import GroupMisses

# Limit of kept searches, in rows: one row of about 100 bytes per group, and one per GPU.
_KEPT_ROWS: Final = 8_000_000
_KEPT_AT_LEAST: Final = 8
_KEPT_AT_MOST: Final = 1_000  # of however few rows: each takes some KiB besides


class Search:
    """Candidates and misses of each layout, kept current from the inventory's log."""

    def __init__(self, inventory: Inventory, ask: Ask, siblings: Siblings | None = None) -> None:
        self._siblings = siblings
        self.request: Request = resolve(inventory, ask)
        self._candidates: dict[int, Candidates] = {}
        self._misses: dict[Layout, GroupMisses] = {}

    @property
    def is_of_gone(self) -> bool:
        """Whether it keeps apart from siblings that are not placed any more."""
        return self._siblings is not None and not self._siblings.exist

    def candidates(self, number: int) -> Candidates:
        known = self._candidates.get(number)
        if known is None:
            layout = self.request.ask.layouts[number]
            known = self._candidates[number] = Candidates(self.request, layout, _ranking, self._siblings)
        else:
            known.refresh()
        return known

    def misses(self, layout: Layout) -> GroupMisses:
        known = self._misses.get(layout)
        if known is None:
            known = self._misses[layout] = GroupMisses(self.request, layout)
        else:
            known.refresh()
        return known

    def best(self, rows: Bools | None = None) -> tuple[Layout, Choice] | None:
        """The first layout that fits anywhere, and its best place; among the groups in `rows` if given."""
        for number, layout in enumerate(self.request.ask.layouts):
            choice = _choose(self.candidates(number), rows)
            if choice is not None:
                return layout, choice
        return None


def find(inventory: Inventory, ask: Ask) -> Placed | None:
    """The place for an ask, by the best engine that fits anywhere. Reserves nothing."""
    for by in engine_chain(ask):
        place = _best_place(inventory, by)
        if place is not None:
            return _placed(inventory, by, *place)
    return None


def _placed(inventory: Inventory, ask: Ask, layout: Layout, choice: Choice) -> Placed:
    """The claims of each rank: on its GPUs by index, then on its host."""
    workers, gpus = inventory.workers, inventory.gpus
    claims: list[PlannedClaim] = []
    for rank, (worker, rows) in enumerate(zip(choice.workers, choice.gpus, strict=True)):
        claims += [
            PlannedClaim(
                device=gpus.uuid[row],
                memory_mib=int(gpus.total[row]) if layout.exclusive else layout.memory_mib,
                cpu_milli=0,
                exclusive=layout.exclusive,
                position=position,
                rank=rank,
            )
            for position, row in enumerate(rows.tolist())
        ]
        host = workers.host_uuid[worker]
        claims.append(PlannedClaim(host, ask.host_memory_mib, ask.cpu_milli, False, len(rows), rank))
    ids = tuple(workers.entries[worker].id for worker in choice.workers)
    return Placed(ask.instance, ids, tuple(claims), layout, ask.engine)


def _best_place(inventory: Inventory, ask: Ask) -> tuple[Layout, Choice] | None:
    """The first layout of the ask that fits anywhere, and its best place. Workers to avoid come after all others."""
    if not ask.avoid_workers:
        return _best_among(inventory, ask, None)
    ids = [worker.id in ask.avoid_workers for worker in inventory.workers.entries]
    avoided = np.array(ids, dtype=np.bool_)[inventory.groups.worker]
    return _best_among(inventory, ask, ~avoided) or _best_among(inventory, ask, avoided)


def _best_among(inventory: Inventory, ask: Ask, rows: Bools | None) -> tuple[Layout, Choice] | None:
    """The best place among these groups. An ask that keeps apart shares a GPU with siblings only where it must."""
    siblings = siblings_of(inventory, ask)
    if siblings is None:
        return search_for(inventory, ask).best(rows)
    apart = search_for(inventory, ask, siblings)
    if ask.strategy != "spread":
        return apart.best(rows) or search_for(inventory, ask).best(rows)
    spread = search_for(inventory, ask).best(rows)  # its workers come first
    if spread is None or not siblings.hold_any(spread[1].gpus):
        return spread
    return apart.best(rows) or spread


def engine_chain(ask: Ask) -> Iterator[Ask]:
    """The ask by each of its engines, best first."""
    by: Ask | None = ask
    while by is not None:
        yield by
        by = by.otherwise


def search_for(inventory: Inventory, ask: Ask, siblings: Siblings | None = None) -> Search:
    """The kept search for asks of this shape, or a new search. `siblings`: from which they keep apart."""
    groups, searches = inventory.groups, inventory.searches
    apart_from = None if siblings is None else siblings.deployment_uid
    key = (ask.shape(), apart_from, inventory.demand.version if ask.strategy == "least_fragmentation" else 0)
    search: Search | None = searches.get(key)
    if search is not None:
        searches.move_to_end(key)
        return search
    search = searches[key] = Search(inventory, ask, siblings)
    most = min(max(_KEPT_AT_LEAST, _KEPT_ROWS // max(1, groups.gpus.size)), _KEPT_AT_MOST)
    while len(searches) > most:
        searches.popitem(last=False)
    if siblings is not None:
        _forget_gone(inventory)
    return search


def _forget_gone(inventory: Inventory) -> None:
    """Checks the two oldest searches for each new one that keeps apart; drops searches of deployments that are gone."""
    searches = inventory.searches
    for key in list(itertools.islice(searches, 2)):
        search = searches[key]
        if isinstance(search, Search) and search.is_of_gone:
            del searches[key]
        else:
            searches.move_to_end(key)


def _ranking(inventory: Inventory, ask: Ask, layout: Layout) -> Ranking:
    if ask.strategy == "spread":
        return Spread(inventory, ask, layout)
    pack = Pack(inventory, ask, layout)
    if ask.strategy != "least_fragmentation" or not any(demand.gpus for demand in inventory.demand.known):
        return pack
    return LeastFragmentation(inventory, ask, layout, _fragments(inventory), pack)


def _fragments(inventory: Inventory) -> Fragments:
    """The fragments that all searches share, kept next to them."""
    key = (Fragments, inventory.demand.version)
    fragments: Fragments | None = inventory.searches.get(key)
    if fragments is None:
        fragments = inventory.searches[key] = Fragments(inventory)
    return fragments


def _choose(candidates: Candidates, rows: Bools | None) -> Choice | None:
    groups = candidates.request.inventory.groups
    if candidates.layout.workers == 1:
        best = candidates.best(rows)
        chosen = [] if best is None else [best]
    else:
        gang = find_gang(candidates, rows)
        chosen = [] if isinstance(gang, Shortage) else gang
    if not chosen:
        return None
    workers = tuple(int(groups.worker[group]) for group in chosen)
    return Choice(workers, tuple(candidates.gpus_of(group) for group in chosen))
