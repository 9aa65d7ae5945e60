"""Which workers make a gang: as many as the layout has, their GPUs of one kind or nearly so, the leader first."""

from dataclasses import dataclass

import numpy as np

from controller.scheduling.inventory.segments import NEVER, Bools, Ints
from controller.scheduling.search.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why there is no gang: so many workers fit together; `mixed`: enough by themselves, but not of like GPUs."""

    workers: int
    mixed: bool


def find_gang(candidates: Candidates, rows: Bools | None = None) -> list[int] | Shortage:
    """The groups of the best gang by rank; of these rows alone where they are given.

    GPUs of one kind are preferred to such as are merely alike. Of GPUs that were named by hand all must take part. The
    leader is the one with the most GPUs, then ranks go by the workers' names.
    """
    fits = candidates.first != NEVER
    if rows is not None:
        fits = fits & rows
    fitting = np.flatnonzero(fits)
    groups = candidates.request.inventory.groups
    size = candidates.layout.workers
    for classes in (groups.kind, groups.alike):
        found = [
            gang
            for number in np.unique(classes[fitting]).tolist()
            if (gang := _best(candidates, fitting[classes[fitting] == number], size)) is not None
        ]
        if found:
            chosen = min(found, key=lambda gang: [(candidates.first[g], candidates.second[g], g) for g in gang])
            return sorted(chosen, key=lambda group: (-int(candidates.wanted[group]), group))
    workers = len(np.unique(groups.worker[fitting]))
    if workers < size:
        return Shortage(workers, mixed=False)
    alike = groups.alike[fitting]
    return Shortage(max(len(np.unique(groups.worker[fitting[alike == n]])) for n in np.unique(alike)), mixed=True)


def _best(candidates: Candidates, fitting: Ints, size: int) -> list[int] | None:
    """The best groups of as many workers, best first; None where there are not so many."""
    order = fitting[np.lexsort((fitting, candidates.second[fitting], candidates.first[fitting]))]
    owners = candidates.request.inventory.groups.worker[order]
    _, firsts = np.unique(owners, return_index=True)
    if len(firsts) < size:
        return None
    return [int(group) for group in order[np.sort(firsts)[:size]]]
