"""Candidates: the groups that fit one layout of one ask, with their ranking keys, kept from decision to decision.

No key of a group depends on another group. So a repeated search updates only the groups that changed, and finds the
same as a search from the start.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.arrays import NEVER, Bools, Ints
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.groups import OF_ONE_KIND, LogReader
from controller.scheduling.search.feasible import FITS, Request, host_checks
from controller.scheduling.search.rank import Fitting, Ranking

RankingOf = Callable[[Inventory, Ask, Layout], Ranking]


@dataclass(frozen=True, slots=True)
class Choice:
    """A place: by rank, the worker's row and the rows of its GPUs by index."""

    workers: tuple[int, ...]
    gpus: tuple[Ints, ...]


class Candidates:
    """The groups for one layout of one request.

    `first` and `second` are the ranking keys by group; `first` is NEVER where the group does not fit. A group that is
    not `eligible` never fits, whatever is claimed.
    """

    def __init__(self, request: Request, layout: Layout, ranking: RankingOf) -> None:
        self.layout = layout
        self.request = request
        self._ranking = ranking(request.inventory, request.ask, layout)
        groups, gpus = request.inventory.groups, request.inventory.gpus
        self.wanted: Ints = request.wanted(layout)[groups.worker]
        self.eligible: Bools = (request.failed_at == FITS)[groups.worker] & request.may_serve(self.wanted)
        self._of_one_kind: Bools | None = None if not groups.level.any() else groups.level == OF_ONE_KIND
        if not request.allows(layout):
            self.eligible[:] = False
        usable = request.capable
        self._usable: Bools | None = None if usable[:-1].all() else usable
        self._have: Ints = gpus.whole if layout.exclusive else gpus.free
        self.first: Ints = np.full(len(groups.worker), NEVER, dtype=np.int64)
        self.second: Ints = np.zeros(len(groups.worker), dtype=np.int64)
        self._log = LogReader(request.inventory.log, len(groups.worker))
        self._rank(np.arange(len(groups.worker)))

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        if (rows := self._log.changed()) is not None:
            self._rank(rows)

    def best(self, rows: Bools | None = None) -> int | None:
        """The best group, among these rows if given; one of one kind, if any fits. None if no group fits."""
        first = self.first if rows is None else np.where(rows, self.first, NEVER)
        if self._of_one_kind is not None:
            alone = np.where(self._of_one_kind, first, NEVER)
            first = alone if (alone != NEVER).any() else first
        if not len(first):
            return None
        best = int(first.argmin())
        least = first[best]
        if least == NEVER:
            return None
        equal = np.flatnonzero(first == least)
        return best if len(equal) == 1 else int(equal[self.second[equal].argmin()])

    def gpus_of(self, group: int) -> Ints:
        """The GPUs that an instance would get of a fitting group, in row order."""
        wanted = int(self.wanted[group])
        some = self._fitting(np.array([group]))
        suitable = np.flatnonzero(some.suitable[0])
        if len(suitable) > wanted:
            keys = self._ranking.gpu_keys(some)[0][suitable]
            suitable = np.sort(suitable[keys.argsort(kind="stable")[:wanted]])
        chosen: Ints = some.slots[0][suitable]
        return chosen

    def _fitting(self, rows: Ints) -> Fitting:
        groups = self.request.inventory.groups
        slots = groups.gpus[rows]
        have = self._have[slots]
        suitable: Bools = have >= self.layout.memory_mib if self.layout.gpus else np.zeros(slots.shape, dtype=np.bool_)
        if self._usable is not None:
            suitable &= self._usable[slots]
        return Fitting(rows, groups.worker[rows], slots, have, suitable)

    def _rank(self, rows: Ints) -> None:
        some = self._fitting(rows)
        wanted = self.wanted[rows]
        fits = self.eligible[rows]
        if self.layout.gpus:
            fits = fits & (np.count_nonzero(some.suitable, axis=1) >= wanted) & (wanted > 0)
        for _, passed in host_checks(self.request, some.workers):
            fits = fits & passed
        if len(rows) != 1:  # rank only those that fit: ranking is the slower half
            self.first[rows] = NEVER
            kept = np.flatnonzero(fits)
            rows, wanted = rows[kept], wanted[kept]
            some = Fitting(rows, some.workers[kept], some.slots[kept], some.have[kept], some.suitable[kept])
        elif not fits[0]:
            self.first[rows] = NEVER
            return
        self.first[rows], self.second[rows] = self._ranking.keys(some, wanted)
