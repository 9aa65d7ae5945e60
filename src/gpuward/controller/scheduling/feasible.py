"""Which workers and GPUs an ask may have: the one filter for automatic and manual selection alike.

Every check is a stage, and the stages have one order. A worker falls to the first that it fails; GPUs fall one by one,
and their worker falls to the stage at which too few are left.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuward.controller.domain.placement import Ask, Layout
from gpuward.controller.scheduling.compatibility import platform_reason
from gpuward.controller.scheduling.inventory import Inventory
from gpuward.controller.scheduling.segments import Bools, Ints, count_true
from gpuward.controller.scheduling.tables import capability_number
from gpuward.schemas.reasons import Reason

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
    Reason.HOST_MEMORY,
    Reason.CPU,
)
STAGE: Final = {reason: stage for stage, reason in enumerate(STAGES)}
FITS: Final = len(STAGES)
Stages = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Request:
    """An ask resolved against an inventory, as far as no reservation changes it."""

    inventory: Inventory
    ask: Ask
    fell_at: Stages  # per worker: stage of the first worker-level check that it fails, else FITS
    claimable: Bools  # per GPU: selected and not split up by MIG
    named: int | None  # GPUs named by hand that exist, None where none was named
    unknown: tuple[str, ...]  # names that no worker and no GPU has


def resolve(inventory: Inventory, ask: Ask) -> Request:
    """Runs all checks on whole workers and looks up what was named by hand."""
    workers, gpus = inventory.workers, inventory.gpus
    selected, chosen, unknown = _selection(inventory, ask)
    fell_at = np.full(len(workers.facts), FITS, dtype=np.int8)
    for reason, passed in _worker_checks(inventory, ask, selected):
        fell_at[~passed & (fell_at == FITS)] = STAGE[reason]
    if ask.workers or ask.gpus:
        whole = fell_at == FITS
        if unknown or (selected & ~whole).any():
            fell_at[selected & whole] = STAGE[Reason.NOT_ALL_SELECTED_READY]
    return Request(
        inventory=inventory,
        ask=ask,
        fell_at=fell_at,
        claimable=chosen & ~gpus.mig,
        named=int(chosen.sum()) if ask.gpus else None,
        unknown=unknown,
    )


def _selection(inventory: Inventory, ask: Ask) -> tuple[Bools, Bools, tuple[str, ...]]:
    """The selected workers, the selected GPUs, and the names that nobody has."""
    workers, gpus = inventory.workers, inventory.gpus
    everyone, every_gpu = np.ones(len(workers.facts), dtype=np.bool_), np.ones(len(gpus.uuid), dtype=np.bool_)
    if not ask.workers and not ask.gpus:
        return everyone, every_gpu, ()
    worker_rows = {name: inventory.row_of_name.get(name) for name in ask.workers}
    gpu_rows = {name: _gpu_row(inventory, name) for name in ask.gpus}
    unknown = tuple(name for name, row in (worker_rows | gpu_rows).items() if row is None)
    selected, chosen = ~everyone, every_gpu
    selected[[row for row in worker_rows.values() if row is not None]] = True
    if ask.gpus:
        chosen = ~every_gpu
        chosen[[row for row in gpu_rows.values() if row is not None]] = True
        if not ask.workers:  # where both are named, GPUs of other workers make the count wrong
            selected[gpus.worker[chosen]] = True
    return selected, chosen, unknown


def _gpu_row(inventory: Inventory, name: str) -> int | None:
    """The row of a GPU named by UUID or worker:index."""
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
    workers = inventory.workers
    # A worker whose host device is not known has not reported fully: unknown, and so not ready.
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


def fixed_gpu_checks(request: Request, layout: Layout) -> Iterator[tuple[Reason, Bools]]:
    """Checks of all GPUs that no reservation changes."""
    gpus, oldest = request.inventory.gpus, request.ask.compatibility.min_compute_capability
    right_count = request.named is None or request.named == layout.gpus
    yield Reason.COUNT_MISMATCH, request.claimable if right_count else np.zeros_like(request.claimable)
    yield Reason.GPU_UNHEALTHY, gpus.healthy
    if oldest is not None:
        yield Reason.COMPUTE_CAPABILITY, gpus.capability >= capability_number(oldest)
    yield Reason.NEED_GT_CAPACITY, gpus.total >= layout.memory_mib


def free_gpu_checks(request: Request, layout: Layout, rows: slice) -> Iterator[tuple[Reason, Bools]]:
    """Checks of some GPUs against what is claimed of them now."""
    gpus = request.inventory.gpus
    if layout.exclusive:
        yield Reason.EXCLUSIVE_CONFLICT, gpus.claims[rows] == 0
    else:
        yield Reason.GPU_IN_USE, gpus.exclusive[rows] == 0
        yield Reason.NEED_GT_FREE, gpus.total[rows] - gpus.claimed[rows] >= layout.memory_mib


def host_checks(request: Request, rows: slice) -> Iterator[tuple[Reason, Bools]]:
    """Checks of some workers' host memory and CPU against what is claimed of them now."""
    workers, ask = request.inventory.workers, request.ask
    if ask.host_memory_mib:
        free = workers.memory[rows] - workers.memory_claimed[rows]
        yield Reason.HOST_MEMORY, free >= ask.host_memory_mib
    if ask.cpu_milli:
        yield Reason.CPU, workers.cpu[rows] - workers.cpu_claimed[rows] >= ask.cpu_milli


def stages_reached(request: Request, layout: Layout) -> tuple[Stages, Ints]:
    """How far this layout comes on every worker. For explanation, not for speed.

    Returns:
        Per worker the stage at which it fails there, FITS where it does not; and how many GPUs were left at that stage.
    """
    workers, everything = request.inventory.workers, slice(None)
    reached, left = request.fell_at.copy(), np.zeros(len(request.fell_at), dtype=np.int64)
    alive = np.ones_like(request.claimable)
    if layout.gpus or request.named is not None:
        checks = [*fixed_gpu_checks(request, layout), *free_gpu_checks(request, layout, everything)]
        for reason, passed in checks:
            alive &= passed
            counts = count_true(alive, workers.first_gpu)
            falls = (counts < max(layout.gpus, 1)) & (reached == FITS)
            reached[falls], left[falls] = STAGE[reason], counts[falls]
    for reason, passed in host_checks(request, everything):
        reached[~passed & (reached == FITS)] = STAGE[reason]
    return reached, left
