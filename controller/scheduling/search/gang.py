"""Chooses a gang's workers: as many as the layout has, with GPUs of one kind or of alike kinds, leader first."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from controller.scheduling.inventory.groups import OF_ONE_KIND, OF_SLICES, GroupTable
from controller.scheduling.inventory.tables import NEVER, Bools, Ints
from controller.scheduling.search.candidates import Candidates


@dataclass(frozen=True, slots=True)
class Shortage:
    """No gang: only `workers` fit together. `mixed`: enough workers fit, but their GPUs do not match."""

    workers: int
    mixed: bool


def find_gang(candidates: Candidates, rows: Bools | None = None) -> list[int] | Shortage:
    """The groups of the best gang by rank, among these rows if given.

    GPUs of one kind are preferred to kinds that are alike. GPUs that are taken as a user names them need not be alike,
    but of one vendor. The leader is the worker with the most GPUs; the other ranks follow the workers' names.
    """
    fits = candidates.first != NEVER
    if rows is not None:
        fits = fits & rows
    fitting = np.flatnonzero(fits)
    groups = candidates.request.inventory.groups
    size = candidates.layout.workers
    most = 0
    for sets in (_of_one_kind, _of_one_vendor if candidates.request.named is not None else GroupTable.alike):
        together = list(sets(groups, fitting))
        gangs = [gang for some in together if (gang := _best(candidates, some, size)) is not None]
        if gangs:
            chosen = min(gangs, key=lambda gang: [(candidates.first[g], candidates.second[g], g) for g in gang])
            return sorted(chosen, key=lambda group: (-int(candidates.wanted[group]), group))
        most = max((len(np.unique(groups.worker[some])) for some in together), default=0)
    workers = len(np.unique(groups.worker[fitting]))
    return Shortage(workers, mixed=False) if workers < size else Shortage(most, mixed=True)


def gang_sets(candidates: Candidates, rows: Ints) -> Iterator[Ints]:
    """Of these groups, the sets of which a gang may be made; sets of one kind first."""
    groups = candidates.request.inventory.groups
    yield from _of_one_kind(groups, rows)
    yield from _of_one_vendor(groups, rows) if candidates.request.named is not None else groups.alike(rows)


def _of_one_kind(groups: GroupTable, rows: Ints) -> Iterator[Ints]:
    some = rows[groups.level[rows] == OF_ONE_KIND]
    return (some[groups.kind[some] == kind] for kind in np.unique(groups.kind[some]).tolist())


def _of_one_vendor(groups: GroupTable, rows: Ints) -> Iterator[Ints]:
    unsliced = rows[groups.vendor[rows] != OF_SLICES]
    return (unsliced[groups.vendor[unsliced] == vendor] for vendor in np.unique(groups.vendor[unsliced]).tolist())


def _best(candidates: Candidates, fitting: Ints, size: int) -> list[int] | None:
    """The best groups of `size` workers, best first; None if fewer fit."""
    order = fitting[np.lexsort((fitting, candidates.second[fitting], candidates.first[fitting]))]
    owners = candidates.request.inventory.groups.worker[order]
    _, firsts = np.unique(owners, return_index=True)
    if len(firsts) < size:
        return None
    return [int(group) for group in order[np.sort(firsts)[:size]]]
