"""Sites: where an ask would fit if some holders ended, and which of them have to.

A site is a group of GPUs, or several groups of alike GPUs for a gang. Sites are ordered over the whole fleet by the
number of holders in the way, and only then cut. The holders of one site are few, so that the cheapest set of them is
found by trying sets from the smallest number upwards, within a bound.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from operator import itemgetter
from typing import Final

import numpy as np

from controller.domain.holdings import Holder
from controller.domain.placement import Ask
from controller.scheduling.admission.holder_index import HolderIndex
from controller.scheduling.inventory.arrays import NEVER, Bools
from controller.scheduling.search.cached_search import engine_chain, search_for
from controller.scheduling.search.candidates import Candidates
from controller.scheduling.search.gang import gang_sets

_MAX_SITES: Final = 64  # looked at closely, per layout
_MAX_SETS: Final = 4_000  # sets of holders tried on one site
_SPARE: Final = 4  # groups of a gang's site beyond those that it needs
Cost = Callable[[Sequence[Holder]], tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Site:
    """Groups of GPUs on which one layout would fit. `fewest`: a lower bound of the holders in the way."""

    fewest: int
    candidates: Candidates
    groups: tuple[int, ...]


def sites(index: HolderIndex, ask: Ask, allowed: Bools, limit: int = _MAX_SITES) -> list[Site]:
    """Where the ask would fit if all of the allowed holders ended; the fewest holders in the way first."""
    found: list[Site] = []
    for one in engine_chain(ask):
        for number in range(len(one.layouts)):
            candidates = search_for(index.inventory, one).candidates(number)
            found += _of_layout(index, candidates, allowed, limit)
    return sorted(found, key=lambda site: site.fewest)


def _of_layout(index: HolderIndex, candidates: Candidates, allowed: Bools, limit: int) -> Iterator[Site]:
    fewest = index.in_the_way(candidates, allowed)
    possible = np.flatnonzero(fewest != NEVER)
    others = index.least(possible, allowed)
    nearest = possible[np.lexsort((possible, *reversed(others), fewest[possible]))]
    if candidates.layout.workers == 1:
        for group in nearest[:limit].tolist():
            yield Site(int(fewest[group]), candidates, (group,))
        return
    groups, size = index.inventory.groups, candidates.layout.workers
    for rows in gang_sets(candidates, possible):
        some = nearest[np.isin(nearest, rows)]
        _, first = np.unique(groups.worker[some], return_index=True)
        nearest_of_each = some[np.sort(first)]
        if len(nearest_of_each) >= size:
            chosen = nearest_of_each[: size + _SPARE].tolist()
            yield Site(int(fewest[chosen[size - 1]]), candidates, tuple(chosen))


class SiteProblem:
    """The holders of one site with what each of them frees there."""

    def __init__(self, index: HolderIndex, site: Site, allowed: Bools, excluded: frozenset[str] = frozenset()) -> None:
        self._index, self._site = index, site
        inventory = index.inventory
        groups, gpus = inventory.groups, inventory.gpus
        self._workers = [int(groups.worker[group]) for group in site.groups]
        self._layout, self._ask = site.candidates.layout, site.candidates.request.ask
        self._wanted = [int(site.candidates.wanted[group]) for group in site.groups]
        capable = site.candidates.request.capable & gpus.usable()
        self._group_of: dict[int, int] = {}  # by GPU row
        for place, group in enumerate(site.groups):
            for row in groups.gpus[group].tolist():
                if row < len(gpus.uuid) and capable[row]:
                    self._group_of[row] = place
        self._lacks = {row: self._lack(row) for row in self._group_of}
        self._suitable = [0] * len(site.groups)
        for row, place in self._group_of.items():
            self._suitable[place] += self._lacks[row] is None
        self._host = {row: self._host_lack(row) for row in self._workers}
        self.holders = self._relevant(allowed, excluded)
        self._frees = [self._freed_by(one) for one in self.holders]

    def _lack(self, row: int) -> tuple[int, int] | None:
        """What a GPU lacks: claims that have to go (exclusive ones, or all), and memory. None: nothing."""
        gpus, layout = self._index.inventory.gpus, self._layout
        if layout.exclusive:
            if gpus.foreign[row] or gpus.total[row] < layout.memory_mib:
                return NEVER, NEVER
            return (int(gpus.claims[row]), 0) if gpus.claims[row] else None
        if gpus.free[row] >= layout.memory_mib:
            return None
        had = gpus.total[row] - gpus.reserved[row] - gpus.claimed[row] - gpus.foreign[row]
        return int(gpus.exclusive[row]), int(layout.memory_mib - had)

    def _host_lack(self, row: int) -> tuple[int, int]:
        workers, ask = self._index.inventory.workers, self._ask
        memory = ask.host_memory_mib - int(workers.memory[row] - workers.memory_claimed[row])
        cpu = ask.cpu_milli - int(workers.cpu[row] - workers.cpu_claimed[row])
        return memory if ask.host_memory_mib else 0, cpu if ask.cpu_milli else 0

    def _relevant(self, allowed: Bools, excluded: frozenset[str]) -> list[Holder]:
        """The holders that free anything that the ask lacks."""
        found = []
        inventory = self._index.inventory
        short = {row for row, (memory, cpu) in self._host.items() if memory > 0 or cpu > 0}
        for number in self._index.on_workers(self._workers, allowed):
            one = self._index.holders[number]
            if one.instance in excluded:
                continue
            rows = [inventory.gpu_row(claim.device) for claim in one.claims]
            hosts = [inventory.host_row(claim.device) for claim in one.claims]
            if any(self._lacks.get(row) is not None for row in rows if row is not None) or short.intersection(hosts):
                found.append(one)
        return found

    def _freed_by(self, one: Holder) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Of GPUs that lack something: row, claims, memory. Of hosts: row, memory, CPU."""
        inventory, gpus, hosts = self._index.inventory, [], []
        for claim in one.claims:
            row = inventory.gpu_row(claim.device)
            if row is not None and self._lacks.get(row) is not None:
                gpus.append((row, 1 if self._layout.exclusive else int(claim.exclusive), claim.memory_mib))
            host = inventory.host_row(claim.device)
            if host is not None and host in self._host:
                hosts.append((host, claim.memory_mib, claim.cpu_milli))
        return gpus, hosts

    def fits(self, ended: Sequence[int]) -> bool:
        """Whether the ask fits once the holders at these positions have ended."""
        freed: dict[int, tuple[int, int]] = {}
        hosts: dict[int, tuple[int, int]] = {}
        for position in ended:
            for row, claims, memory in self._frees[position][0]:
                before = freed.get(row, (0, 0))
                freed[row] = before[0] + claims, before[1] + memory
            for row, memory, cpu in self._frees[position][1]:
                before = hosts.get(row, (0, 0))
                hosts[row] = before[0] + memory, before[1] + cpu
        suitable = list(self._suitable)
        for row, (claims, memory) in freed.items():
            lack = self._lacks[row]
            if lack is not None and claims >= lack[0] and memory >= lack[1]:
                suitable[self._group_of[row]] += 1
        ready = set()
        for place, worker in enumerate(self._workers):
            needed, has = self._host[worker], hosts.get(worker, (0, 0))
            enough = suitable[place] >= self._wanted[place] if self._layout.gpus else True
            if enough and has[0] >= needed[0] and has[1] >= needed[1]:
                ready.add(worker)
        return len(ready) >= self._layout.workers

    def cheapest(self, cost: Cost, most: float) -> list[Holder] | None:
        """The set of holders without which the ask fits, at the least cost. None: none of at most `most` holders.

        Sets are tried by their size, up to a bound; beyond it, the set may cost more than needed, but each of its
        holders is needed.
        """
        everything = range(len(self.holders))
        if not self.fits(everything):
            return None
        least, best = min(
            ((cost(some), some) for some in (self._at(self._reduced(order)) for order in self._orders())),
            key=itemgetter(0),
        )
        tries = _MAX_SETS
        for size in range(max(self._site.fewest, 1), len(self.holders) + 1):
            tries -= comb(len(self.holders), size)
            if size > sum(one.weight for one in best) or size > most or tries < 0:
                break
            for positions in combinations(everything, size):
                some = self._at(positions)
                if (costs := cost(some)) < least and self.fits(positions):
                    least, best = costs, some
        return best if len(best) <= most else None

    def _at(self, positions: Sequence[int]) -> list[Holder]:
        return [self.holders[position] for position in positions]

    def _orders(self) -> Iterator[list[int]]:
        """Orders in which holders are spared, those that shall stay first."""

        def size(n: int) -> int:
            return sum(memory for _, _, memory in self._frees[n][0])

        everything = range(len(self.holders))
        for sign in (1, -1):
            yield sorted(everything, key=lambda n: (
                -self.holders[n].level, -self.holders[n].weight, sign * self.holders[n].gpus, sign * size(n),
                self.holders[n].queued_at, self.holders[n].instance))  # fmt: skip

    def _reduced(self, order: Sequence[int]) -> list[int]:
        """All holders less those that need not end, spared in this order."""
        ended = list(order)
        for position in order:
            fewer = [other for other in ended if other != position]
            if self.fits(fewer):
                ended = fewer
        return ended
