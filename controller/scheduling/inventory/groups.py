"""Groups: the GPUs of one worker that may serve one instance together. An instance gets one group of each worker.

Most workers have one group: all their GPUs, of one kind. A worker without GPUs has an empty group. A worker with
several kinds of one vendor has more: GPUs of unlike models serve together if they are about equally large. So has a
worker with cards of several sizes under one name (RTX 4060 Ti of 8 and 16 GB): each range of sizes may serve with like
GPUs of another worker. Whether GPUs are alike depends on these GPUs alone, never on other workers. A MIG slice is a
group by itself: it serves with no other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.scheduling.inventory.tables import Bools, GpuTable, Ints, WorkerTable

_MATCHING_PERCENT: Final = 5  # GPUs of two models may serve one instance if their sizes differ by at most this
_EVERY_RANGE_UP_TO: Final = 4  # different sizes on a worker; of more, only the widest ranges become groups
_LOG_ROWS: Final = 8_192
_KEPT_ROWS: Final = 4_096
OF_SLICES: Final = -2  # as a number of a vendor
OF_ONE_KIND: Final = 0
ALIKE: Final = 1  # about equally large: of several kinds, or some of a kind with several sizes
ALL: Final = 2  # all GPUs of a vendor, for instances that take GPUs one by one as a user names them
_STATES_PER_GROUP: Final = 4  # states that are remembered; beyond it they are numbered again


@dataclass(frozen=True, slots=True)
class GroupTable:
    """One row per group, by worker; groups of one kind first, by kind.

    Attributes:
        worker: row of its worker.
        gpus: rows of its GPUs by index, padded with the placeholder GPU.
        level: OF_ONE_KIND, ALIKE or ALL.
        kind: of its GPUs; -1 where it has none, and a number beyond all kinds where it is not OF_ONE_KIND.
        vendor: a number of its GPUs' vendor; -1 where it has none, -2 of a MIG slice.
        smallest: size (MiB) of its smallest GPU.
        largest: size (MiB) of its largest GPU.
        first: worker i has the groups first[i] : first[i + 1].
        of_gpu: the group of one kind of each GPU, by the GPU's row.
        also: further groups of a GPU, by the GPU's row.
    """

    worker: Ints
    gpus: Ints
    level: Ints
    kind: Ints
    vendor: Ints
    smallest: Ints
    largest: Ints
    first: Ints
    of_gpu: Ints
    also: Mapping[int, tuple[int, ...]]

    def alike(self, rows: Ints) -> Iterator[Ints]:
        """Of these groups, the sets that may serve one instance together although their kinds differ."""
        vendors = np.unique(self.vendor[rows])
        for vendor in vendors[vendors != OF_SLICES].tolist():
            of_vendor = rows[self.vendor[rows] == vendor]
            smallest, largest = self.smallest[of_vendor], self.largest[of_vendor]
            for size in np.unique(smallest).tolist():
                yield of_vendor[(smallest >= size) & _alike(size, largest)]


def _alike(smallest: int, sizes: Ints) -> Bools:
    """Whether GPUs of these sizes are about as large as a GPU of size `smallest`, the smallest of them."""
    alike: Bools = sizes * 100 <= smallest * (100 + _MATCHING_PERCENT)
    return alike


def build_groups(workers: WorkerTable, gpus: GpuTable) -> GroupTable:
    count, owners = len(gpus.uuid), len(workers.entries)
    worker, kind = gpus.worker[:count], gpus.kind[:count]
    begins = np.flatnonzero(np.r_[True, (worker[1:] != worker[:-1]) | (kind[1:] != kind[:-1])]) if count else _none()
    sizes = np.diff(np.r_[begins, count]) if count else _none()
    without = np.setdiff1d(np.arange(owners), worker)
    mixed = _mixed_groups(gpus, worker[begins], begins, sizes)
    further = np.array([int(worker[rows[0]]) for _, rows in mixed], dtype=np.int64)
    owner = np.r_[worker[begins], without, further]
    order = np.argsort(owner, kind="stable")
    widths = np.r_[sizes, np.zeros(len(without), np.int64), np.array([len(r) for _, r in mixed], np.int64)]
    rows = np.full((len(owner), int(widths.max(initial=0))), count, dtype=np.int64)
    steps = np.arange(rows.shape[1])
    rows[: len(begins)] = np.where(steps < sizes[:, None], begins[:, None] + steps, count)
    for number, (_, members) in enumerate(mixed, len(begins) + len(without)):
        rows[number, : len(members)] = members
    levels = np.array([level for level, _ in mixed], np.int64)
    level = np.r_[np.zeros(len(begins) + len(without), np.int64), levels][order]
    rows, place = rows[order], np.argsort(order, kind="stable")
    vendors = sorted({kind_.vendor for kind_ in gpus.kinds})
    numbers = (OF_SLICES if kind_.slice else vendors.index(kind_.vendor) for kind_ in gpus.kinds)
    vendor_of_kind = np.array([*numbers, -1], dtype=np.int64)
    leading = rows[:, 0] if rows.shape[1] else np.full(len(owner), count, dtype=np.int64)
    vendor = vendor_of_kind[gpus.kind[leading]]
    real, total = rows < count, gpus.total[rows]
    also: dict[int, tuple[int, ...]] = {}
    for group in np.flatnonzero(level).tolist():
        for row in rows[group][real[group]].tolist():
            also[row] = (*also.get(row, ()), group)
    return GroupTable(
        worker=owner[order],
        gpus=rows,
        level=level,
        kind=np.where(level == OF_ONE_KIND, gpus.kind[leading], len(gpus.kinds) + vendor),
        vendor=vendor,
        smallest=np.where(real, total, np.iinfo(np.int64).max).min(axis=1, initial=np.iinfo(np.int64).max),
        largest=np.where(real, total, 0).max(axis=1, initial=0),
        first=np.searchsorted(owner[order], np.arange(owners + 1)).astype(np.int64),
        of_gpu=np.repeat(place[: len(begins)], sizes),
        also=also,
    )


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _mixed_groups(gpus: GpuTable, owner: Ints, begins: Ints, sizes: Ints) -> list[tuple[int, Ints]]:
    """The groups beyond those of one kind, with their levels: GPU rows by index."""
    mixed: list[tuple[int, Ints]] = []
    for worker in _workers_of_several(gpus, owner, begins, sizes).tolist():
        mine = np.flatnonzero(owner == worker)
        of_one_kind = {frozenset(range(begins[g], begins[g] + sizes[g])) for g in mine.tolist()}
        rows = np.arange(begins[mine[0]], begins[mine[-1]] + sizes[mine[-1]])
        kinds = [gpus.kinds[kind] for kind in gpus.kind[rows].tolist()]
        vendors = np.array(["" if kind.slice else kind.vendor for kind in kinds])
        for vendor in sorted(set(vendors.tolist()) - {""}):
            known = set(of_one_kind)
            of_vendor = rows[vendors == vendor]
            sets = [*((ALIKE, some) for some in _size_ranges(gpus, of_vendor)), (ALL, of_vendor)]
            for level, members in sets:
                key = frozenset(members.tolist())
                if key not in known:
                    known.add(key)
                    mixed.append((level, members[np.lexsort((members, gpus.index[members]))]))
    return mixed


def _workers_of_several(gpus: GpuTable, owner: Ints, begins: Ints, sizes: Ints) -> Ints:
    """The workers with GPUs of several kinds, or of sizes under one kind that are not alike."""
    if not len(owner):
        return _none()
    total = gpus.total[: int(sizes.sum())]
    smallest, largest = np.minimum.reduceat(total, begins), np.maximum.reduceat(total, begins)
    unlike = owner[largest * 100 > smallest * (100 + _MATCHING_PERCENT)]
    return np.union1d(np.flatnonzero(np.bincount(owner) > 1), unlike)


def _size_ranges(gpus: GpuTable, rows: Ints) -> Iterator[Ints]:
    """The GPUs of each range of sizes that are alike."""
    total = gpus.total[rows]
    sizes = np.unique(total)
    for size in sizes.tolist():
        tops = sizes[(sizes >= size) & _alike(size, sizes)]
        for top in tops.tolist() if len(sizes) <= _EVERY_RANGE_UP_TO else tops[-1:].tolist():
            yield rows[(total >= size) & (total <= top)]


class TouchLog:
    """The groups that changed, in order. A reader that knows a position updates only what changed since."""

    def __init__(self) -> None:
        self._rows = np.zeros(_LOG_ROWS, dtype=np.int64)
        self._dropped = 0  # entries no longer in the log
        self._count = 0

    @property
    def position(self) -> int:
        return self._dropped + self._count

    def add(self, row: int) -> None:
        if self._count == _LOG_ROWS:
            self._dropped += _LOG_ROWS - _KEPT_ROWS
            self._rows[:_KEPT_ROWS] = self._rows[_LOG_ROWS - _KEPT_ROWS :]
            self._count = _KEPT_ROWS
        self._rows[self._count] = row
        self._count += 1

    def since(self, position: int) -> Ints | None:
        """The groups that changed since that position, each once; None if the position was dropped from the log."""
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
        """The groups that changed since the last call, all groups if the log is too short; None without a change."""
        position = self._log.position
        if position == self._position:
            return None
        rows = self._log.since(self._position)
        self._position = position
        return np.arange(self._groups) if rows is None else rows


class EqualGroups:
    """Numbers the states of groups: all that checks and rankings read of a group's GPUs and its host."""

    def __init__(self, workers: WorkerTable, gpus: GpuTable, groups: GroupTable, log: TouchLog) -> None:
        self._workers, self._gpus, self._groups = workers, gpus, groups
        self._log = LogReader(log, len(groups.worker))
        self._state: Ints = np.zeros(len(groups.worker), dtype=np.int64)
        self._number: dict[bytes, int] = {}
        self._example: dict[int, int] = {}
        self._number_all()

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        rows = self._log.changed()
        if rows is None:
            return
        if len(rows) == len(self._state) or len(self._number) > _STATES_PER_GROUP * (len(self._state) + 1):
            self._number_all()
            return
        left = set(self._state[rows].tolist())
        self._state[rows] = self._numbers(rows)
        self._example.update(zip(self._state[rows].tolist(), rows.tolist(), strict=True))
        for state in left:
            members = self._state == state
            example = int(members.argmax())
            if members[example]:
                self._example[state] = example
            else:
                self._example.pop(state, None)

    def examples(self, apart: Ints) -> Ints:
        """One group of each state, without the groups set apart."""
        left = set(apart.tolist())
        chosen = [example for example in self._example.values() if example not in left]
        for state in [state for state, example in self._example.items() if example in left]:
            other = self._first_in(self._state == state, apart)
            if other is not None:
                chosen.append(other)
        return np.array(chosen, dtype=np.int64)

    def first_like(self, groups: Ints, apart: Ints) -> int | None:
        """The first group in the state of any of these groups, without the groups set apart; None if all are."""
        states = np.unique(self._state[groups])
        if len(states) != 1:
            return self._first_in(np.isin(self._state, states), apart)
        return self._first_in(self._state == states[0], apart)

    def _first_in(self, members: Bools, apart: Ints) -> int | None:
        members[apart] = False
        first = int(members.argmax())
        return first if members[first] else None

    def _number_all(self) -> None:
        self._number.clear()
        self._state[:] = self._numbers(np.arange(len(self._state)))
        self._example = dict(zip(self._state.tolist(), range(len(self._state)), strict=True))

    def _numbers(self, rows: Ints) -> list[int]:
        gpus, workers = self._gpus, self._workers
        slots, hosts = self._groups.gpus[rows], self._groups.worker[rows]
        of_gpus = (
            gpus.free, gpus.whole, gpus.total, gpus.kind, gpus.capability, gpus.claimed, gpus.claims, gpus.instances,
            gpus.mig, gpus.cordoned,
        )  # fmt: skip
        of_hosts = (workers.memory, workers.memory_claimed, workers.cpu, workers.cpu_claimed, workers.instances)
        width = slots.shape[1]
        figures = np.empty((len(rows), len(of_gpus) * width + len(of_hosts)), dtype=np.int64)
        for number, column in enumerate(of_gpus):
            figures[:, number * width : (number + 1) * width] = column[slots]
        for number, column in enumerate(of_hosts, len(of_gpus) * width):
            figures[:, number] = column[hosts]
        known = self._number
        return [known.setdefault(one.tobytes(), len(known)) for one in figures]
