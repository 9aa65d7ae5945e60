"""Chooses a gang's workers: as many as the layout has, with GPUs of one kind or of matching kinds, leader first."""

from dataclasses import dataclass

import numpy as np

from controller.scheduling.inventory.arrays import NEVER, Bools, Ints
from controller.scheduling.search.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Shortage:
    """A missing gang: only `workers` fit together. `mixed`: enough workers fit, but their GPUs do not match."""

    workers: int
    mixed: bool


def find_gang(candidates: Candidates, rows: Bools | None = None) -> list[int] | Shortage:
    """The groups of the best gang by rank, among these rows if given.

    GPUs of one kind are preferred to matching kinds. All GPUs that are named by hand must take part. The leader is the
    worker with the most GPUs; the other ranks follow the workers' names.
    """
    fits = candidates.first != NEVER
    if rows is not None:
        fits = fits & rows
    fitting = np.flatnonzero(fits)
    groups = candidates.request.inventory.groups
    size = candidates.layout.workers
    for classes in (groups.kind, groups.matching):
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
    matching = groups.matching[fitting]
    return Shortage(max(len(np.unique(groups.worker[fitting[matching == n]])) for n in np.unique(matching)), mixed=True)


def _best(candidates: Candidates, fitting: Ints, size: int) -> list[int] | None:
    """The best groups of `size` workers, best first; None if fewer fit."""
    order = fitting[np.lexsort((fitting, candidates.second[fitting], candidates.first[fitting]))]
    owners = candidates.request.inventory.groups.worker[order]
    _, firsts = np.unique(owners, return_index=True)
    if len(firsts) < size:
        return None
    return [int(group) for group in order[np.sort(firsts)[:size]]]
