"""Chooses a preemption's victims: the lowest priorities, then the fewest instances, then the least lost work.

Every choice is tried on the inventory itself, with claims excluded and restored: the search that places an ask decides
whether it fits.
"""

from collections.abc import Sequence

import numpy as np

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Placed
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.admission.reservation import Reservation
from controller.scheduling.admission.site_problem import Cost, SiteProblem, most_worth_trying
from controller.scheduling.admission.sites import fits_without, sites, worth_solving
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.inventory.tables import Bools
from controller.scheduling.search.cached_search import find


def find_victims(inventory: Inventory, ask: Ask, holders: Sequence[Holder]) -> Reservation | None:
    """`choose_victims` among all of these holders."""
    return choose_victims(inventory, ask, HolderIndex(inventory, holders))


def choose_victims(
    inventory: Inventory, ask: Ask, index: HolderIndex, *, below: int | None = None
) -> Reservation | None:
    """The victims for an ask that does not fit now. None if it would not fit even without all of the holders.

    Of several sets, the set whose highest priority is lowest wins, then a set without instances that may not be moved.
    Then the fewest count, a task as much as two servers; then the least lost work, the fewest GPUs, and the youngest
    victims.

    The inventory is the same afterwards. `below`: only holders of a lower priority than this.
    """
    levels = index.levels(below)
    if not levels or not fits_without(index, ask, index.up_to(levels[-1])):
        return None
    lowest, highest = 0, len(levels) - 1  # the lowest sufficient level lies between these; `highest` is sufficient
    while lowest < highest:
        middle = (lowest + highest) // 2
        if fits_without(index, ask, index.up_to(levels[middle])):
            highest = middle
        else:
            lowest = middle + 1
    for level in levels[highest:]:  # the first of them, unless the search knows a reason against its sites
        if (chosen := _fewest(inventory, ask, index, index.up_to(level), preemption_cost)) is not None:
            return chosen
    return None


def earliest_capacity(inventory: Inventory, ask: Ask, index: HolderIndex, among: Bools) -> Reservation | None:
    """The place for which the fewest of some holders have to end, whatever their priority. Ends nothing."""
    return _fewest(inventory, ask, index, among & index.up_to(), _number_cost)


def _fewest(inventory: Inventory, ask: Ask, index: HolderIndex, allowed: Bools, cost: Cost) -> Reservation | None:
    """The cheapest set of the allowed holders without which the ask fits."""
    sets: list[tuple[tuple[object, ...], list[Holder]]] = []
    least = np.inf
    for number, site in enumerate(sites(index, ask, allowed)):
        if not worth_solving(number, site, least):
            break
        chosen = SiteProblem(index, site, allowed).cheapest(cost, np.inf)
        if chosen is not None:
            sets.append((cost(chosen), chosen))
            least = min(least, most_worth_trying(chosen))
    for _, ended in sorted(sets, key=lambda pair: pair[0]):
        placed, needed = spared(inventory, ask, ended)
        if placed is not None:
            return Reservation(placed, tuple(sorted(needed, key=lambda o: o.instance)))
    return None


def spared(inventory: Inventory, ask: Ask, ended: Sequence[Holder]) -> tuple[Placed | None, list[Holder]]:
    """The place once these have ended, and those of them without whose end the search finds none."""
    needed = list(ended)
    with without(inventory, needed):
        placed = find(inventory, ask)
    if placed is None or len(needed) <= 1:
        return placed, needed
    for one in sorted(ended, key=lambda o: (-o.level, -o.weight, -o.lost_s, o.gpus, o.queued_at, o.instance)):
        fewer = [other for other in needed if other is not one]
        with without(inventory, fewer):
            other = find(inventory, ask)
        if other is not None:
            placed, needed = other, fewer
    return placed, needed


def preemption_cost(victims: Sequence[Holder]) -> tuple[object, ...]:
    """What `choose_victims` compares."""
    highest = max((one.level for one in victims), default=0)
    return (highest, sum(not one.movable for one in victims if one.level == highest), *_end_cost(victims))


def _end_cost(victims: Sequence[Holder]) -> tuple[object, ...]:
    return (
        sum(one.weight for one in victims),
        sum(one.lost_s for one in victims),
        sum(one.gpus for one in victims),
        sorted(-one.queued_at for one in victims),
        sorted(one.instance for one in victims),
    )


def _number_cost(ending: Sequence[Holder]) -> tuple[object, ...]:
    return len(ending), sum(one.gpus for one in ending), sorted(one.instance for one in ending)
