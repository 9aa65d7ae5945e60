"""A search for asks of one shape over one inventory, kept for the next ask of that shape."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.arrays import Bools
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.candidates import Candidates, Choice
from controller.scheduling.search.feasible import Request, resolve
from controller.scheduling.search.fragmentation import Fragments, LeastFragmentation
from controller.scheduling.search.gang import Shortage, find_gang
from controller.scheduling.search.group_misses import GroupMisses
from controller.scheduling.search.rank import Pack, Ranking, Spread

# Limit of kept searches, in rows: one row of about 100 bytes per group, and one per GPU.
_KEPT_ROWS: Final = 8_000_000
_KEPT_AT_LEAST: Final = 8


class Search:
    """Candidates and misses of each layout, kept current from the inventory's log."""

    def __init__(self, inventory: Inventory, ask: Ask) -> None:
        self.request: Request = resolve(inventory, ask)
        self._inventory = inventory
        self._candidates: dict[int, Candidates] = {}
        self._misses: dict[Layout, GroupMisses] = {}

    def candidates(self, number: int) -> Candidates:
        """The candidates of one layout, current."""
        found = self._candidates.get(number)
        if found is None:
            found = self._candidates[number] = Candidates(self.request, self.request.ask.layouts[number], _ranking)
        else:
            found.refresh()
        return found

    def misses(self, layout: Layout) -> GroupMisses:
        """By group, the check at which a layout fails; current."""
        found = self._misses.get(layout)
        if found is None:
            found = self._misses[layout] = GroupMisses(self.request, layout)
        else:
            found.refresh()
        return found

    def best(self, avoid: frozenset[str] = frozenset()) -> tuple[Layout, Choice] | None:
        """The first layout that fits anywhere, and its best place. Workers to avoid come last, after all layouts."""
        rounds: tuple[Bools | None, ...] = (None,)
        if avoid:
            ids = [worker.id in avoid for worker in self._inventory.workers.facts]
            avoided = np.array(ids, dtype=np.bool_)[self._inventory.groups.worker]
            rounds = (~avoided, avoided)
        for rows in rounds:
            for number, layout in enumerate(self.request.ask.layouts):
                choice = _choose(self.candidates(number), rows)
                if choice is not None:
                    return layout, choice
        return None


def engine_chain(ask: Ask) -> Iterator[Ask]:
    """The ask by each of its engines, best first."""
    by: Ask | None = ask
    while by is not None:
        yield by
        by = by.otherwise


def search_for(inventory: Inventory, ask: Ask) -> Search:
    """The kept search for asks of this shape, or a new one."""
    groups, searches = inventory.groups, inventory.searches
    key = (ask.shape(), inventory.demand.version if ask.strategy == "least_fragmentation" else 0)
    found: Search | None = searches.get(key)
    if found is not None:
        searches.move_to_end(key)
        return found
    found = searches[key] = Search(inventory, ask)
    if len(searches) > max(_KEPT_AT_LEAST, _KEPT_ROWS // max(1, groups.gpus.size)):
        searches.popitem(last=False)
    return found


def _ranking(inventory: Inventory, ask: Ask, layout: Layout) -> Ranking:
    if ask.strategy == "spread":
        return Spread(inventory, ask, layout)
    pack = Pack(inventory, ask, layout)
    if ask.strategy == "pack" or not any(demand.gpus for demand in inventory.demand.known):
        return pack
    return LeastFragmentation(inventory, ask, layout, _fragments(inventory), pack)


def _fragments(inventory: Inventory) -> Fragments:
    """The fragments that all searches share, kept with them."""
    key = (Fragments, inventory.demand.version)
    found: Fragments | None = inventory.searches.get(key)
    if found is None:
        found = inventory.searches[key] = Fragments(inventory)
    return found


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
