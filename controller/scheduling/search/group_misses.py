"""By group: the check at which one layout fails, for explanations. Kept current like a search."""

from typing import Final

import numpy as np

from controller.domain.placement import Layout
from controller.scheduling.inventory.groups import LogReader
from controller.scheduling.inventory.tables import Bools, Ints
from controller.scheduling.search.feasible import FITS, STAGE, Request, Stages, gpu_checks, host_checks

_NEVER: Final = -1


class GroupMisses:
    """By group of GPUs: the stage reached and its figures.

    Attributes:
        reached: stage of the first check that leaves too few GPUs or that the worker fails, else FITS. Below all
            stages where the instance may not have the GPUs together.
        left: number of GPUs that pass up to that check.
        suitable: number of GPUs that pass all checks.
        free: free memory (MiB) of the last GPU that the layout would get, best first.
    """

    def __init__(self, request: Request, layout: Layout) -> None:
        self.layout = layout
        self._request = request
        groups = request.inventory.groups
        size = len(groups.worker)
        self.wanted: Ints = request.wanted(layout)[groups.worker]
        self.reached: Stages = np.full(size, FITS, dtype=np.int8)
        self.left: Ints = np.zeros(size, dtype=np.int64)
        self.suitable: Ints = np.zeros(size, dtype=np.int64)
        self.free: Ints = np.zeros(size, dtype=np.int64)
        self._may_serve = request.may_serve(layout, self.wanted)
        self._log = LogReader(request.inventory.log, size)
        self._update(np.arange(size))

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        if (rows := self._log.changed()) is not None:
            self._update(rows)

    def _update(self, rows: Ints) -> None:
        request, groups = self._request, self._request.inventory.groups
        workers, slots = groups.worker[rows], groups.gpus[rows]
        reached, left = request.failed_at[workers], np.zeros(len(rows), dtype=np.int64)
        alive: Bools = np.ones(slots.shape, dtype=np.bool_)
        if self.layout.gpus or request.named is not None:
            wanted = np.maximum(self.wanted[rows], 1)
            for reason, passed in gpu_checks(request, self.layout, slots):
                alive &= passed
                counts = np.count_nonzero(alive, axis=1)
                falls = (counts < wanted) & (reached == FITS)
                reached[falls], left[falls] = STAGE[reason], counts[falls]
        for reason, passed in host_checks(request, workers):
            reached[~passed & (reached == FITS)] = STAGE[reason]
        self.reached[rows], self.left[rows] = np.where(self._may_serve[rows], reached, _NEVER), left
        self.suitable[rows] = np.count_nonzero(alive, axis=1)
        self.free[rows] = self._free(slots, self.wanted[rows])

    def _free(self, slots: Ints, wanted: Ints) -> Ints:
        request, gpus = self._request, self._request.inventory.gpus
        free = gpus.total[slots] - gpus.reserved[slots] - gpus.claimed[slots] - gpus.foreign[slots]
        counts = request.claimable[slots] & gpus.healthy[slots] & ~gpus.cordoned[slots]
        free = np.where(counts & (gpus.exclusive[slots] == 0), np.maximum(free, 0), 0)
        if not free.shape[1]:
            return np.zeros(len(free), dtype=np.int64)
        ordered = np.sort(free, axis=1)[:, ::-1]
        last: Ints = ordered[np.arange(len(free)), np.minimum(np.maximum(wanted, 1), free.shape[1]) - 1]
        return last
