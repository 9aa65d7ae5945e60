"""Candidates: the groups that fit one layout of one ask, with their ranking keys, kept from decision to decision.

No key of a group depends on another group. So a repeated search updates only the groups that changed, and finds the
same as a search from the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.groups import OF_ONE_KIND, LogReader
from controller.scheduling.inventory.tables import NEVER, Bools, Ints
from controller.scheduling.search.feasible import FITS, Request, host_checks
from controller.scheduling.search.rank import Apart, Fitting, Ranking, Siblings

_FEW: Final = 64  # groups that are ranked one by one
RankingOf = Callable[[Inventory, Ask, Layout], Ranking]


@dataclass(frozen=True, slots=True)
class Choice:
    """A place: by rank, the worker's row and the rows of its GPUs by index."""

    workers: tuple[int, ...]
    gpus: tuple[Ints, ...]


class Candidates:
    """The groups for one layout of one request.

    `first` and `second` are the ranking keys by group; `first` is NEVER where the group does not fit. A group that is
    not `eligible` never fits, whatever is claimed. The keys of all groups are worked out when they are first needed.
    With siblings, GPUs that these hold do not suit, with `spread` none that anything is on.
    """

    def __init__(self, request: Request, layout: Layout, ranking: RankingOf, siblings: Siblings | None = None) -> None:
        self.layout = layout
        self.request = request
        inner = ranking(request.inventory, request.ask, layout)
        # `spread` leaves a worker that it would choose only for a GPU that nothing is on.
        self._empty_alone = siblings is not None and request.ask.strategy == "spread"
        self._ranking: Ranking = inner if siblings is None or self._empty_alone else Apart(inner, siblings)
        self._siblings = siblings
        groups, gpus = request.inventory.groups, request.inventory.gpus
        self.wanted: Ints = request.wanted(layout)[groups.worker]
        self.eligible: Bools = (request.failed_at == FITS)[groups.worker] & request.may_serve(layout, self.wanted)
        self._of_one_kind: Bools | None = None if not groups.level.any() else groups.level == OF_ONE_KIND
        if not request.allows(layout):
            self.eligible[:] = False
        self._usable: Bools | None = request.capable if request.restricted else None
        self._have: Ints = gpus.whole if layout.exclusive else gpus.free
        self._log = LogReader(request.inventory.log, len(groups.worker))
        self._keys: tuple[Ints, Ints] | None = None
        self._best: int | None = None
        if self._states_decide():
            self._best = self._best_by_state()
        else:
            self._rank_all()

    @property
    def first(self) -> Ints:
        """The first key of each group."""
        return (self._keys or self._rank_all())[0]

    @property
    def second(self) -> Ints:
        """The second key of each group."""
        return (self._keys or self._rank_all())[1]

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        if (rows := self._log.changed()) is None:
            return
        if self._keys is None:
            self._rank_all()
        else:
            self._rank(rows, *self._keys)

    def best(self, rows: Bools | None = None) -> int | None:
        """The best group, among these rows if given; one of one kind, if any fits. None if no group fits."""
        if self._keys is None and rows is None:
            return self._best
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
        if self._empty_alone:
            gpus = self.request.inventory.gpus
            suitable &= (gpus.claims[slots] == 0) & (gpus.instances[slots] == 0)
        elif self._siblings is not None and self.layout.gpus:
            suitable &= ~self._siblings.hold(slots)
        return Fitting(rows, groups.worker[rows], slots, have, suitable)

    def _states_decide(self) -> bool:
        """Whether groups in equal states have equal keys, and one of each is enough to find the best."""
        return (
            len(self.eligible) >= _FEW
            and self.layout.workers == 1
            and not self.request.ask.gpus
            and self._of_one_kind is None
            and bool(self.eligible.all())
        )

    def _best_by_state(self) -> int | None:
        """The best of one group of each state, and of the groups that are set apart; the first of equal ones."""
        equal, apart = self.request.inventory.equal_groups, self._ranking.set_apart()
        equal.refresh()
        found: list[tuple[int, int, int]] = []
        for some, alone in ((equal.examples(apart), False), (apart, True)):
            rows, first, second = self._ranked(some)
            if not len(rows):
                continue
            best = np.flatnonzero(first == first.min())
            best = best[second[best] == second[best].min()]
            group = int(rows[best].min()) if alone else equal.first_like(rows[best], apart)
            if group is not None:
                found.append((int(first[best[0]]), int(second[best[0]]), group))
        return min(found)[2] if found else None

    def _rank_all(self) -> tuple[Ints, Ints]:
        size = len(self.eligible)
        keys = self._keys = np.full(size, NEVER, dtype=np.int64), np.zeros(size, dtype=np.int64)
        self._rank(np.flatnonzero(self.eligible), *keys)
        return keys

    def _rank(self, rows: Ints, first: Ints, second: Ints) -> None:
        """Writes the keys of these groups."""
        fitting, *keys = self._ranked(rows)
        first[rows] = NEVER
        first[fitting], second[fitting] = keys

    def _ranked(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Those of these groups that fit, with their keys."""
        some, wanted = self._fitting(rows), self.wanted[rows]
        fits = self.eligible[rows]
        if self.layout.gpus:
            fits = fits & (np.count_nonzero(some.suitable, axis=1) >= wanted) & (wanted > 0)
        for _, passed in host_checks(self.request, some.workers):
            fits = fits & passed
        if not fits.all():  # rank only those that fit: ranking is the slower half
            kept = np.flatnonzero(fits)
            rows, wanted = rows[kept], wanted[kept]
            some = Fitting(rows, some.workers[kept], some.slots[kept], some.have[kept], some.suitable[kept])
        if not len(rows):
            return rows, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return (rows, *self._ranking.keys(some, wanted))
