"""Feasibility: which workers and GPUs an ask may have. One filter for automatic and manual selection.

Every check is a stage, and the stages have a fixed order. A worker is rejected by the first check that it fails. GPUs
are rejected one by one, and their group by the stage that leaves too few of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.arrays import Bools, Ints
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import GpuTable, capability_number
from controller.scheduling.search.compatibility import platform_reason
from schemas.placement_reasons import Reason

STAGES: Final = (
    Reason.NOT_READY,
    Reason.CORDONED,
    Reason.NOT_SELECTED,
    Reason.LABEL_MISMATCH,
    Reason.OS_ARCH,
    Reason.ENGINE_UNSUPPORTED,
    Reason.DRIVER_TOO_OLD,
    Reason.NOT_ALL_SELECTED_READY,
    Reason.COUNT_MISMATCH,
    Reason.GPU_UNHEALTHY,
    Reason.COMPUTE_CAPABILITY,
    Reason.NEED_GT_CAPACITY,
    Reason.EXCLUSIVE_CONFLICT,
    Reason.GPU_IN_USE,
    Reason.NEED_GT_FREE,
    Reason.MIXED_ACCELERATORS,  # enough, but of several kinds
    Reason.HOST_MEMORY,
    Reason.CPU,
)
STAGE: Final = {reason: stage for stage, reason in enumerate(STAGES)}
FITS: Final = len(STAGES)
Stages = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Named:
    """GPUs named by hand."""

    count: int  # of those that exist
    workers: int  # number of their workers
    of_worker: Ints  # their number by worker


@dataclass(frozen=True, slots=True)
class Request:
    """An ask resolved against an inventory: all that does not depend on claims."""

    inventory: Inventory
    ask: Ask
    failed_at: Stages  # by worker: stage of the first failed check of whole workers, else FITS
    claimable: Bools  # by GPU: selected, of an accepted vendor and model, and not in MIG mode
    capable: Bools  # by GPU: claimable, and of sufficient compute capability
    named: Named | None
    unknown: tuple[str, ...]  # names of no worker and no GPU

    def allows(self, layout: Layout) -> bool:
        """Whether the GPUs named by hand match the layout: their number, and the number of their workers."""
        named = self.named
        return named is None or (named.count == layout.gpus and named.workers == layout.workers)

    def wanted(self, layout: Layout) -> Ints:
        """By worker: how many GPUs the layout takes there."""
        if self.named is not None and self.named.workers > 1:
            return self.named.of_worker
        return np.full(len(self.failed_at), layout.gpus // layout.workers, dtype=np.int64)


def resolve(inventory: Inventory, ask: Ask) -> Request:
    """Runs all checks on whole workers and looks up the names selected by hand."""
    workers, gpus = inventory.workers, inventory.gpus
    selected, chosen, unknown = _selection(inventory, ask)
    failed_at = np.full(len(workers.facts), FITS, dtype=np.int8)
    for reason, passed in _worker_checks(inventory, ask, selected):
        failed_at[~passed & (failed_at == FITS)] = STAGE[reason]
    if ask.workers or ask.gpus:
        whole = failed_at == FITS
        if unknown or (selected & ~whole).any():
            failed_at[selected & whole] = STAGE[Reason.NOT_ALL_SELECTED_READY]
    claimable = chosen & ~gpus.mig & _accepted_kinds(ask, gpus)[gpus.kind]
    oldest = ask.compatibility.min_compute_capability
    return Request(
        inventory=inventory,
        ask=ask,
        failed_at=failed_at,
        claimable=claimable,
        capable=claimable if oldest is None else claimable & (gpus.capability >= capability_number(oldest)),
        named=_named(inventory, chosen) if ask.gpus else None,
        unknown=unknown,
    )


def _accepted_kinds(ask: Ask, gpus: GpuTable) -> Bools:
    """By kind: whether the ask accepts it. The last entry is the placeholder GPU's kind, never accepted."""
    vendors, models = ask.compatibility.vendors, ask.gpu_models
    found = [(not vendors or k.vendor in vendors) and (not models or k.model in models) for k in gpus.kinds]
    return np.array([*found, False], dtype=np.bool_)


def _named(inventory: Inventory, chosen: Bools) -> Named:
    of_worker = np.bincount(inventory.gpus.worker[chosen], minlength=len(inventory.workers.facts)).astype(np.int64)
    return Named(int(chosen.sum()), int((of_worker > 0).sum()), of_worker)


def _selection(inventory: Inventory, ask: Ask) -> tuple[Bools, Bools, tuple[str, ...]]:
    """The selected workers, the selected GPUs, and the unknown names."""
    workers, gpus = inventory.workers, inventory.gpus
    all_workers, all_gpus = np.ones(len(workers.facts), dtype=np.bool_), np.ones(len(gpus.uuid) + 1, dtype=np.bool_)
    all_gpus[-1] = False
    if not ask.workers and not ask.gpus:
        return all_workers, all_gpus, ()
    worker_rows = {name: inventory.row_of_name.get(name) for name in ask.workers}
    gpu_rows = {name: _gpu_row(inventory, name) for name in ask.gpus}
    unknown = tuple(name for name, row in (worker_rows | gpu_rows).items() if row is None)
    selected, chosen = np.zeros_like(all_workers), all_gpus
    selected[[row for row in worker_rows.values() if row is not None]] = True
    if ask.gpus:
        chosen = np.zeros_like(all_gpus)
        chosen[[row for row in gpu_rows.values() if row is not None]] = True
        if not ask.workers:  # if both are named, GPUs of other workers give count_mismatch
            selected[gpus.worker[chosen]] = True
    return selected, chosen, unknown


def _gpu_row(inventory: Inventory, name: str) -> int | None:
    """The row of a GPU given as UUID or worker:index."""
    row = inventory.gpu_row(name)
    if row is not None:
        return row
    worker_name, _, index = name.rpartition(":")
    worker = inventory.row_of_name.get(worker_name)
    if worker is None or not index.isdecimal():
        return None
    first, end = inventory.workers.first_gpu[worker : worker + 2]
    matches = np.flatnonzero(inventory.gpus.index[first:end] == int(index))
    return int(first + matches[0]) if len(matches) else None


def _worker_checks(inventory: Inventory, ask: Ask, selected: Bools) -> Iterator[tuple[Reason, Bools]]:
    workers, gpus = inventory.workers, inventory.gpus
    # A worker without a known host device has not reported fully: unknown, and so not ready.
    yield Reason.NOT_READY, workers.ready & workers.host_ok
    yield Reason.CORDONED, workers.schedulable
    yield Reason.NOT_SELECTED, selected
    for key, value in ask.labels.items():
        yield Reason.LABEL_MISMATCH, inventory.label_mask(key, value)
    needs_gpu = any(layout.gpus for layout in ask.layouts)
    reasons = [platform_reason(ask.compatibility, p, needs_gpu=needs_gpu) for p in workers.platforms]
    for reason in (Reason.OS_ARCH, Reason.ENGINE_UNSUPPORTED, Reason.DRIVER_TOO_OLD):
        if reason in reasons:
            yield reason, np.array([r != reason for r in reasons], dtype=np.bool_)[workers.platform]
    if needs_gpu and (ask.compatibility.vendors or ask.gpu_models):
        # Rejects workers without any GPU of an accepted kind. Those without GPUs get count_mismatch instead.
        accepted = _accepted_kinds(ask, gpus)[gpus.kind]
        has = np.zeros(len(workers.facts), dtype=np.bool_)
        has[gpus.worker[accepted]] = True
        yield Reason.ENGINE_UNSUPPORTED, has | (np.diff(workers.first_gpu) == 0)


def gpu_checks(request: Request, layout: Layout, rows: Ints) -> Iterator[tuple[Reason, Bools]]:
    """The checks of the GPUs in these rows. Each result has the shape of `rows`."""
    gpus, need = request.inventory.gpus, layout.memory_mib
    yield Reason.COUNT_MISMATCH, request.claimable[rows] & request.allows(layout)
    yield Reason.GPU_UNHEALTHY, gpus.healthy[rows]
    yield Reason.COMPUTE_CAPABILITY, request.capable[rows]
    capacity = gpus.total[rows] if layout.exclusive else gpus.total[rows] - gpus.reserved[rows]
    yield Reason.NEED_GT_CAPACITY, capacity >= need
    if layout.exclusive:
        yield Reason.EXCLUSIVE_CONFLICT, gpus.claims[rows] == 0
        yield Reason.GPU_IN_USE, gpus.foreign[rows] == 0
    else:
        free = capacity - gpus.claimed[rows]
        # In use: the ledger has enough free, and the measurement does not.
        yield Reason.GPU_IN_USE, (gpus.exclusive[rows] == 0) & ((free < need) | (free - gpus.foreign[rows] >= need))
        yield Reason.NEED_GT_FREE, free >= need


def host_checks(request: Request, rows: Ints) -> Iterator[tuple[Reason, Bools]]:
    """The checks of host memory and CPU of some workers against present claims."""
    workers, ask = request.inventory.workers, request.ask
    if ask.host_memory_mib:
        yield Reason.HOST_MEMORY, workers.memory[rows] - workers.memory_claimed[rows] >= ask.host_memory_mib
    if ask.cpu_milli:
        yield Reason.CPU, workers.cpu[rows] - workers.cpu_claimed[rows] >= ask.cpu_milli
