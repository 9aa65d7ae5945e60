"""The instances that hold claims, as arrays: what would be free on every GPU without some of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from controller.domain.holdings import Holder
from controller.domain.placement import Layout
from controller.scheduling.inventory.arrays import Bools, Ints
from controller.scheduling.inventory.capacity import Inventory


@contextmanager
def without(inventory: Inventory, holders: Iterable[Holder]) -> Iterator[None]:
    """The inventory as if these holders had ended."""
    excluded = tuple(holders)
    for one in excluded:
        inventory.exclude(one.claims)
    try:
        yield
    finally:
        for one in excluded:
            inventory.restore(one.claims)


class HolderTable:
    """The holders on one inventory. The layout of the inventory must not change while the table is used."""

    def __init__(self, inventory: Inventory, holders: Sequence[Holder]) -> None:
        self._inventory = inventory
        self._number = {one.instance: number for number, one in enumerate(holders)}
        self._priority = np.array([one.priority for one in holders], dtype=np.int64)
        self._stays = np.ones(len(holders), dtype=np.bool_)
        self._on_worker: defaultdict[str, list[Holder]] = defaultdict(list)
        for one in holders:
            for worker in one.workers:
                self._on_worker[worker].append(one)
        held = [
            (number, row, claim.memory_mib, claim.exclusive)
            for number, one in enumerate(holders)
            for claim in one.claims
            if (row := inventory.gpu_row(claim.device)) is not None
        ]
        self._owner, self._row, self._mib, self._whole = np.array(held, dtype=np.int64).reshape(-1, 4).T

    def remove(self, ended: Iterable[Holder]) -> None:
        """Takes these holders out of the table."""
        for one in ended:
            self._stays[self._number[one.instance]] = False

    def levels(self, below: int | None = None) -> list[int]:
        """The priorities of the holders, lowest first."""
        found: list[int] = np.unique(self._priority[self._stays]).tolist()
        return found if below is None else [level for level in found if level < below]

    def on(self, workers: Iterable[str], level: int) -> list[Holder]:
        """The holders on these workers with at most this priority, each once."""
        found = {o.instance: o for worker in workers for o in self._on_worker.get(worker, ())}
        return [o for o in found.values() if o.priority <= level and self._stays[self._number[o.instance]]]

    def would_fit(self, layout: Layout, level: int) -> Bools:
        """By GPU: whether it would have enough for the layout if all holders with at most this priority ended."""
        rows = (self._stays & (self._priority <= level))[self._owner]
        gpus = self._inventory.gpus

        def by_gpu(figures: Ints) -> Ints:
            return np.bincount(self._row[rows], figures[rows], minlength=len(gpus.total)).astype(np.int64)

        free, whole = gpus.without(by_gpu(self._mib), by_gpu(np.ones_like(self._row)), by_gpu(self._whole))
        can: Bools = (whole if layout.exclusive else free) >= layout.memory_mib
        return can
