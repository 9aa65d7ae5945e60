"""Groups: the GPUs of one kind on one worker. An instance gets GPUs of one group on each worker.

Most workers have one group. A worker without GPUs has an empty one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.inventory.arrays import Ints
from controller.scheduling.inventory.tables import GpuTable, WorkerTable

_MATCHING_PERCENT: Final = 5  # GPUs of two models may serve one instance if their sizes differ by at most this
_LOG_ROWS: Final = 8_192
_KEPT_ROWS: Final = 4_096


@dataclass(frozen=True, slots=True)
class GroupTable:
    """One row per group, by worker and kind.

    Attributes:
        worker: row of its worker.
        gpus: rows of its GPUs by index, padded with the placeholder GPU.
        kind: of its GPUs, -1 where it has none.
        matching: groups of one number may serve one instance together.
        first: worker i has the groups first[i] : first[i + 1].
        of_gpu: the group of each GPU, by the GPU's row.
    """

    worker: Ints
    gpus: Ints
    kind: Ints
    matching: Ints
    first: Ints
    of_gpu: Ints


def build_groups(workers: WorkerTable, gpus: GpuTable) -> GroupTable:
    """Builds the groups of these tables."""
    count, owners = len(gpus.uuid), len(workers.facts)
    worker, kind = gpus.worker[:count], gpus.kind[:count]
    begins = np.flatnonzero(np.r_[True, (worker[1:] != worker[:-1]) | (kind[1:] != kind[:-1])]) if count else _none()
    without = np.setdiff1d(np.arange(owners), worker)
    owner = np.r_[worker[begins], without]
    order = np.argsort(owner, kind="stable")
    sizes = np.r_[np.diff(np.r_[begins, count]) if count else _none(), np.zeros(len(without), np.int64)][order]
    starts = np.r_[begins, np.zeros(len(without), np.int64)][order]
    steps = np.arange(int(sizes.max(initial=0)))
    rows = np.where(steps < sizes[:, None], starts[:, None] + steps, count)
    kinds = np.r_[kind[begins], np.full(len(without), -1, np.int64)][order]
    return GroupTable(
        worker=owner[order],
        gpus=rows,
        kind=kinds,
        matching=np.r_[_matching(gpus), -1][kinds],
        first=np.searchsorted(owner[order], np.arange(owners + 1)).astype(np.int64),
        of_gpu=np.repeat(np.arange(len(sizes)), sizes),
    )


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _matching(gpus: GpuTable) -> Ints:
    """By kind: a number shared by kinds of one vendor whose GPUs are about equally large."""
    smallest = [int(gpus.total[gpus.kind == number].min()) for number in range(len(gpus.kinds))]
    numbers = np.zeros(len(smallest), dtype=np.int64)
    begun: tuple[str, int] | None = None
    current = -1
    for vendor, size, kind in sorted((k.vendor, smallest[number], number) for number, k in enumerate(gpus.kinds)):
        if begun is None or vendor != begun[0] or size * 100 > begun[1] * (100 + _MATCHING_PERCENT):
            begun, current = (vendor, size), current + 1
        numbers[kind] = current
    return numbers


class TouchLog:
    """The groups that changed, in order. A reader that knows a position updates only what changed since."""

    def __init__(self) -> None:
        self._rows = np.zeros(_LOG_ROWS, dtype=np.int64)
        self._dropped = 0  # entries no longer in the log
        self._count = 0

    @property
    def position(self) -> int:
        """The present end of the log."""
        return self._dropped + self._count

    def add(self, row: int) -> None:
        """Notes that a group changed."""
        if self._count == _LOG_ROWS:
            self._dropped += _LOG_ROWS - _KEPT_ROWS
            self._rows[:_KEPT_ROWS] = self._rows[_LOG_ROWS - _KEPT_ROWS :]
            self._count = _KEPT_ROWS
        self._rows[self._count] = row
        self._count += 1

    def since(self, position: int) -> Ints | None:
        """The groups that changed since that position, each once. None: the position was dropped from the log."""
        if position < self._dropped:
            return None
        rows = self._rows[position - self._dropped : self._count]
        return rows.copy() if len(rows) <= 1 else np.unique(rows)


class LogReader:
    """Reads a log from its present end on."""

    def __init__(self, log: TouchLog, groups: int) -> None:
        self._log = log
        self._groups = groups
        self._position = log.position

    def changed(self) -> Ints | None:
        """The groups that changed since the last call; all groups if the log is too short. None: no change."""
        position = self._log.position
        if position == self._position:
            return None
        rows = self._log.since(self._position)
        self._position = position
        return np.arange(self._groups) if rows is None else rows
