"""Fragmentation: how much free memory the observed demand could not use, and how much a placement adds to it.

After *Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent* (USENIX ATC '23).
Its measure of a node is the free GPU share that a task drawn from the demand could not use there. That is all of it
where the node cannot take the task, else the share on GPUs with too little for the task. An ask takes the same amount
of free memory anywhere, so the least growth of fragments is the least loss of usable memory: the mean, over the demand,
of the free memory of the suitable GPUs on suitable nodes. Here a node is a group of GPUs with its host.

It goes further than the paper, which checks whether a node has the CPU for one such task. Here no more suitable GPUs
count than the host's CPU and memory could serve, by the task's needs per GPU. On the paper's own trace that allocates
0.6 points more (`bench/openb.py`). Summed figures are integers below 2^53, so sums are exact in any order.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.groups import LogReader
from controller.scheduling.inventory.tables import NEVER, UNCLAIMABLE, Bools, Ints
from controller.scheduling.search.candidates import Fitting, Pack, free_memory

Floats = NDArray[np.float64]
_MOST_CLASSES: Final = 256  # rare classes matter: without tasks of 8 GPUs a trace is packed a point less tightly
_WEIGHT: Final = 10_000  # sum over all classes
_AT_ONCE: Final = 4_096  # placements per batch, so that the arrays stay in the processor's cache


class _Cut(NamedTuple):
    """The claim of a class of demand on one GPU."""

    memory_mib: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class _Usable:
    """By placement and cut: the memory of the suitable GPUs, and their number."""

    memory: Floats
    count: Floats


class Fragments:
    """By group: the memory that the demand could use. Kept current like a search."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        known = Counter({demand: count for demand, count in inventory.demand.known.items() if demand.gpus})
        classes = sorted(known.most_common(_MOST_CLASSES))
        cuts = sorted({_Cut(demand.memory_mib, demand.exclusive) for demand, _ in classes})
        number = {cut: i for i, cut in enumerate(cuts)}
        self._cut_mib = np.array([cut.memory_mib for cut in cuts], dtype=np.float64)
        self._cut_whole = np.array([cut.exclusive for cut in cuts], dtype=np.bool_)
        self._cut = np.array([number[_Cut(d.memory_mib, d.exclusive)] for d, _ in classes], dtype=np.int64)
        self._gpus = np.array([d.gpus for d, _ in classes], dtype=np.float64)
        self._host_mib = np.array([d.host_memory_mib for d, _ in classes], dtype=np.int64)
        self._cpu = np.array([d.cpu_milli for d, _ in classes], dtype=np.int64)
        self._host_mib_per_gpu = np.maximum(self._host_mib, 1) / self._gpus
        self._cpu_per_gpu = np.maximum(self._cpu, 1) / self._gpus
        total = sum(count for _, count in classes)
        self._weight = np.array([max(1, round(_WEIGHT * count / total)) for _, count in classes], dtype=np.float64)
        groups, shape = inventory.groups, (len(inventory.groups.worker), len(cuts))
        self._memory: Floats = np.zeros(shape)
        self._count: Floats = np.zeros(shape)
        self._value: Floats = np.zeros(shape[0])
        self._log = LogReader(inventory.log, shape[0])
        self._update(np.arange(len(groups.worker)))

    @property
    def placeholder(self) -> int:
        return len(self._inventory.gpus.uuid)

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        if (rows := self._log.changed()) is not None:
            self._update(rows)

    def loss(self, ask: Ask, layout: Layout, groups: Ints, gpus: Ints) -> Ints:
        """The loss of usable memory by each placement, in weighted MiB.

        `groups`: the group of each placement, one at least. `gpus`: its GPU rows, an array row for each placement.
        """
        parts = [
            self._loss(ask, layout, groups[first : first + _AT_ONCE], gpus[first : first + _AT_ONCE])
            for first in range(0, len(groups), _AT_ONCE)
        ]
        return np.concatenate(parts)

    def _loss(self, ask: Ask, layout: Layout, groups: Ints, gpus: Ints) -> Ints:
        table = self._inventory.gpus
        memory, count = self._memory[groups], self._count[groups]
        for column in range(gpus.shape[1]):
            free, whole = table.free[gpus[:, column]], table.whole[gpus[:, column]]
            left = np.full_like(free, UNCLAIMABLE) if layout.exclusive else free - layout.memory_mib
            before, after = self._usable_of(free, whole), self._usable_of(left, np.full_like(whole, UNCLAIMABLE))
            memory += after.memory - before.memory
            count += after.count - before.count
        value = self._values(_Usable(memory, count), groups, ask.host_memory_mib, ask.cpu_milli)
        return (self._value[groups] - value).astype(np.int64)

    def _usable_of(self, free: Ints, whole: Ints) -> _Usable:
        """For single GPUs. The result has the shape of the input, with a last axis for the cuts."""
        have = np.where(self._cut_whole, whole[..., None], free[..., None])
        fits = have >= self._cut_mib
        return _Usable(np.where(fits, have, 0).astype(np.float64), fits.astype(np.float64))

    def _update(self, rows: Ints) -> None:
        table = self._inventory.gpus
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE]
            slots = self._inventory.groups.gpus[some]
            usable = self._usable_of(table.free[slots], table.whole[slots])
            self._memory[some], self._count[some] = usable.memory.sum(axis=1), usable.count.sum(axis=1)
            self._value[some] = self._values(_Usable(self._memory[some], self._count[some]), some, 0, 0)

    def _values(self, usable: _Usable, groups: Ints, host_mib: int, cpu_milli: int) -> Floats:
        """The memory that the demand could use on these groups after this much of their hosts is claimed."""
        workers, rows = self._inventory.workers, self._inventory.groups.worker[groups]
        memory = workers.memory[rows] - workers.memory_claimed[rows] - host_mib
        cpu = workers.cpu[rows] - workers.cpu_claimed[rows] - cpu_milli
        count = usable.count[:, self._cut]
        fits: Bools = (count >= self._gpus) & (memory[:, None] >= self._host_mib) & (cpu[:, None] >= self._cpu)
        served = np.minimum(cpu[:, None] / self._cpu_per_gpu, memory[:, None] / self._host_mib_per_gpu)
        share = np.minimum(served, count) / np.maximum(count, 1)
        value: Floats = np.floor(np.where(fits, usable.memory[:, self._cut] * share, 0.0)) @ self._weight
        return value


@dataclass(slots=True)
class LeastFragmentation:
    """Ranks by the loss of usable memory, then by the least free memory."""

    inventory: Inventory
    ask: Ask
    layout: Layout
    fragments: Fragments
    pack: Pack

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        self.fragments.refresh()
        free = free_memory(self.inventory, some.slots)
        if self.layout.gpus != self.layout.workers:
            return self.fragments.loss(self.ask, self.layout, some.groups, self._packed(some, wanted)), free
        keys = np.where(some.suitable, self.pack.gpu_keys(some), NEVER)
        order = keys.argsort(axis=1, kind="stable")
        keys = np.take_along_axis(keys, order, axis=1)
        # Equally full GPUs of a group have equal losses, so the first is enough.
        different = keys != NEVER
        different[:, 1:] &= keys[:, 1:] != keys[:, :-1]
        rows, columns = np.nonzero(different)
        slots = some.slots[rows, order[rows, columns]]
        loss = self.fragments.loss(self.ask, self.layout, some.groups[rows], slots[:, None])
        return np.minimum.reduceat(loss, np.searchsorted(rows, np.arange(len(some.groups)))), free

    def gpu_keys(self, some: Fitting) -> Ints:
        """One GPU: by the least loss, then as pack. Several GPUs: as pack."""
        keys = self.pack.gpu_keys(some)
        if self.layout.gpus != self.layout.workers:
            return keys
        self.fragments.refresh()
        shape = some.slots.shape
        slots = some.slots.ravel()
        loss = self.fragments.loss(self.ask, self.layout, np.repeat(some.groups, shape[1]), slots[:, None])
        ranks = np.empty(loss.size, dtype=np.int64)
        ranks[np.lexsort((keys.ravel(), loss))] = np.arange(loss.size)
        return ranks.reshape(shape)

    def set_apart(self) -> Ints:
        # The demand is the same for all groups, so it sets none apart.
        return self.pack.set_apart()

    def _packed(self, some: Fitting, wanted: Ints) -> Ints:
        """The GPUs that pack would take of each group, padded with the placeholder where a group gives fewer."""
        if not self.layout.gpus:
            return np.zeros((len(wanted), 0), dtype=np.int64)
        keys = np.where(some.suitable, self.pack.gpu_keys(some), NEVER)
        most = int(wanted.max())
        order = keys.argsort(axis=1, kind="stable")[:, :most]
        slots = np.take_along_axis(some.slots, order, axis=1)
        return np.where(np.arange(most) < wanted[:, None], slots, self.fragments.placeholder)
