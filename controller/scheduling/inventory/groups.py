"""Groups: the GPUs of one worker that are of one kind. What an instance gets of a worker is of one group.

Most workers have one group; one without GPUs has an empty one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.inventory.segments import Ints
from controller.scheduling.inventory.tables import GpuTable, WorkerTable

_ALIKE_PERCENT: Final = 5  # GPUs of two models whose sizes differ by no more may share the work of one instance
_LOGGED: Final = 8_192
_KEPT: Final = 4_096


@dataclass(frozen=True, slots=True)
class GroupTable:
    """A row per group, by worker and kind.

    Attributes:
        worker: row of its worker.
        gpus: rows of its GPUs by index, and nobody's GPU where there are no more.
        kind: of its GPUs, -1 where it has none.
        alike: groups of one number may share the work of one instance.
        first: the groups of worker i are first[i] : first[i + 1].
        of_gpu: by row of the GPU.
    """

    worker: Ints
    gpus: Ints
    kind: Ints
    alike: Ints
    first: Ints
    of_gpu: Ints


def build_groups(workers: WorkerTable, gpus: GpuTable) -> GroupTable:
    """Lays out the groups of these tables."""
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
        alike=np.r_[_alike(gpus), -1][kinds],
        first=np.searchsorted(owner[order], np.arange(owners + 1)).astype(np.int64),
        of_gpu=np.repeat(np.arange(len(sizes)), sizes),
    )


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _alike(gpus: GpuTable) -> Ints:
    """By kind a number that those of one vendor share whose GPUs are about as large."""
    smallest = [int(gpus.total[gpus.kind == number].min()) for number in range(len(gpus.kinds))]
    numbers = np.zeros(len(smallest), dtype=np.int64)
    begun: tuple[str, int] | None = None
    current = -1
    for vendor, size, kind in sorted((k.vendor, smallest[number], number) for number, k in enumerate(gpus.kinds)):
        if begun is None or vendor != begun[0] or size * 100 > begun[1] * (100 + _ALIKE_PERCENT):
            begun, current = (vendor, size), current + 1
        numbers[kind] = current
    return numbers


class TouchLog:
    """Which groups changed, in order, so that whoever knew them before looks at those alone again."""

    def __init__(self) -> None:
        self._rows = np.zeros(_LOGGED, dtype=np.int64)
        self._dropped = 0  # entries that are no longer kept
        self._count = 0

    @property
    def position(self) -> int:
        """Where the log ends now."""
        return self._dropped + self._count

    def add(self, row: int) -> None:
        """Notes a group."""
        if self._count == _LOGGED:
            self._dropped += _LOGGED - _KEPT
            self._rows[:_KEPT] = self._rows[_LOGGED - _KEPT :]
            self._count = _KEPT
        self._rows[self._count] = row
        self._count += 1

    def since(self, position: int) -> Ints | None:
        """The groups that changed since the log ended there, each once; None where it does not know any more."""
        if position < self._dropped:
            return None
        rows = self._rows[position - self._dropped : self._count]
        return rows.copy() if len(rows) <= 1 else np.unique(rows)
