"""Sites: where an ask would fit if some holders ended.

A site is a group of GPUs, or for a gang the groups of GPUs of which it may be made. Sites are ordered over the complete
fleet by how much is in the way, and solved in that order (`site_problem.py`) until no later site can be better.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Final

import numpy as np

from controller.domain.placement import Ask
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.inventory.tables import NEVER, Bools, Ints
from controller.scheduling.search.cached_search import engine_chain, search_for
from controller.scheduling.search.candidates import Candidates
from controller.scheduling.search.gang import gang_sets

_MAX_SOLVED: Final = 1_000  # sites
_AS_GOOD: Final = 64  # sites solved though they can only equal the best of the earlier sites
_MAX_HOSTS: Final = 96  # of a gang's site, beyond those that fit already


@dataclass(frozen=True, slots=True)
class Site:
    """Groups of GPUs on which one layout would fit.

    Attributes:
        fewest: a lower bound of the holders in the way.
        weight: a lower bound of their weight.
        candidates: of the layout.
        groups: a gang needs only some of them.
    """

    fewest: int
    weight: int
    candidates: Candidates
    groups: tuple[int, ...]


def worth_solving(number: int, site: Site, least: float) -> bool:
    """Whether a site may be better than all earlier sites, or is among the first that are as good.

    `number`: of the site, from 0. `least`: the least weight on the earlier sites.
    """
    return number < (_MAX_SOLVED if site.weight < least else _AS_GOOD if site.weight == least else 0)


def fits_without(index: HolderIndex, ask: Ask, allowed: Bools) -> bool:
    """Whether the ask would fit if all of the allowed holders ended. A search may still find a reason against it."""
    for candidates in _layouts(index, ask):
        possible = np.flatnonzero(index.in_the_way(candidates, allowed) != NEVER)
        for rows in _sets(candidates, possible):
            if len(np.unique(index.inventory.groups.worker[rows])) >= candidates.layout.workers:
                return True
    return False


def sites(index: HolderIndex, ask: Ask, allowed: Bools) -> Iterator[Site]:
    """Where the ask would fit if all of the allowed holders ended; sites where the least has to end come first."""
    return merge(
        *(_of_layout(index, candidates, allowed) for candidates in _layouts(index, ask)), key=attrgetter("weight")
    )


def _layouts(index: HolderIndex, ask: Ask) -> Iterator[Candidates]:
    for by_engine in engine_chain(ask):
        for number in range(len(by_engine.layouts)):
            yield search_for(index.inventory, by_engine).candidates(number)


def _sets(candidates: Candidates, possible: Ints) -> Iterator[Ints]:
    return iter((possible,)) if candidates.layout.workers == 1 else gang_sets(candidates, possible)


def _of_layout(index: HolderIndex, candidates: Candidates, allowed: Bools) -> Iterator[Site]:
    fewest = index.in_the_way(candidates, allowed)
    possible = np.flatnonzero(fewest != NEVER)
    if not len(possible):
        return iter(())
    fewest, weight = index.bounds(candidates, fewest, allowed)
    if candidates.layout.workers > 1:
        gangs = [_of_gang(index, candidates, rows, (fewest, weight), allowed) for rows in _sets(candidates, possible)]
        return iter(sorted((site for site in gangs if site is not None), key=attrgetter("weight")))
    others = index.least(possible, allowed)
    nearest = possible[np.lexsort((possible, *reversed(others), fewest[possible], weight[possible]))]
    return (Site(int(fewest[group]), int(weight[group]), candidates, (group,)) for group in nearest.tolist())


def _of_gang(
    index: HolderIndex, candidates: Candidates, rows: Ints, bounds: tuple[Ints, Ints], allowed: Bools
) -> Site | None:
    """The hosts of which a gang may be made. Of many, hosts that share their holders come first and together."""
    _, weight = bounds
    groups, size = index.inventory.groups, candidates.layout.workers
    cost, leader = index.shared(rows, allowed, size)
    order = np.lexsort((rows, weight[rows], leader, cost * weight[rows]))
    order = order[np.argsort(weight[rows[order]] > 0, kind="stable")]
    chosen, hosts = rows[order], groups.worker[rows[order]]
    _, first, where = np.unique(hosts, return_index=True, return_inverse=True)
    if len(first) < size:
        return None
    place = np.argsort(np.argsort(first))[where]  # by group: the number of its host in this order
    free = len(np.unique(hosts[weight[chosen] == 0]))
    chosen = chosen[place < max(size, min(free, size - 1) + _MAX_HOSTS)]
    number, least = (np.sort(_of_hosts(groups.worker[chosen], bound[chosen]))[size - 1] for bound in bounds)
    return Site(int(number), int(least), candidates, tuple(chosen.tolist()))


def _of_hosts(workers: Ints, bound: Ints) -> Ints:
    """The least bound of each host's groups."""
    _, where = np.unique(workers, return_inverse=True)
    least = np.full(int(where.max(initial=-1)) + 1, NEVER, dtype=np.int64)
    np.minimum.at(least, where, bound)
    return least
