"""By GPU: the check at which an ask fails there. The checks are those of every placement, for each GPU alone."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.explain.unplaced import short
from controller.scheduling.explain.worker_misses import layouts_shown
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import Bools, Ints
from controller.scheduling.search.cached_search import engine_chain
from controller.scheduling.search.feasible import FITS, STAGE, STAGES, Request, Stages, gpu_checks, host_checks, resolve
from schemas.placement_reasons import Reason

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
_NO_GPU: Final = STAGE[Reason.COUNT_MISMATCH]
_TOO_SMALL: Final = STAGE[Reason.NEED_GT_CAPACITY]
_WORDS: Final = {
    Reason.NOT_READY: "not ready",
    Reason.CORDONED: "the worker is cordoned",
    Reason.DISK_PRESSURE: "the disk of the worker is full",
    Reason.LABEL_MISMATCH: "the worker lacks a label that placement.labels requires",
    Reason.OS_ARCH: "the engine does not run on this platform",
    Reason.RUNTIME_UNSUPPORTED: "the worker runs no containers with GPUs",
    Reason.ENGINE_MISSING: "the engine is not installed on the worker",
    Reason.ENGINE_UNSUPPORTED: "the engine does not use the GPUs of the worker",
    Reason.DRIVER_TOO_OLD: "the driver is too old for the engine",
    Reason.GPU_MODEL: "of another model than resources.gpu_models names",
    Reason.MIG_MODE: "in MIG mode: only its slices can be claimed",
    Reason.GPU_CORDONED: "cordoned",
    Reason.GPU_UNHEALTHY: "unhealthy",
    Reason.COMPUTE_CAPABILITY: "of another compute capability than is needed",
    Reason.EXCLUSIVE_CONFLICT: "other instances use it, and a whole GPU is needed",
    Reason.GPU_IN_USE: "a process that Gpuward did not start uses it",
}


@dataclass(frozen=True, slots=True)
class GpuMisses:
    """By GPU, in the inventory's order."""

    reached: Stages  # of the first check that fails, else FITS
    need: Ints  # MiB or thousandths of a core; 0 where the reason has no figures
    have: Ints  # in the same unit
    exclusive: Bools  # another instance claims the GPU exclusively
    refused: Reason | None  # why the model has no layout
    uses_gpus: bool  # the instance takes GPUs

    def code(self, row: int) -> str:
        """The reason code; empty if the GPU passes all checks."""
        stage = int(self.reached[row])
        if stage == FITS:
            return ""
        return str(self.refused) if self.refused is not None and stage == _TOO_SMALL else str(STAGES[stage])

    def texts(self) -> tuple[list[str], list[str]]:
        """The code and the message of each GPU. Equal messages are written once: many GPUs lack the same."""
        known: dict[tuple[int, int, int, bool], tuple[str, str]] = {}
        columns = (self.reached.tolist(), self.need.tolist(), self.have.tolist(), self.exclusive.tolist())
        texts = []
        for row, key in enumerate(zip(*columns, strict=True)):
            if key not in known:
                known[key] = self.code(row), self.message(row)
            texts.append(known[key])
        return [code for code, _ in texts], [message for _, message in texts]

    def message(self, row: int) -> str:
        """The message of the reason, without a time; empty if the GPU passes all checks."""
        stage = int(self.reached[row])
        if self.refused is not None and stage == _TOO_SMALL:
            return f"the model cannot be placed on any GPU: {short(str(self.refused))}"
        return "" if stage == FITS else self._words(row, STAGES[stage])

    def _words(self, row: int, reason: Reason) -> str:
        need, have = int(self.need[row]), int(self.have[row])
        if reason == Reason.COUNT_MISMATCH and need:
            return f"need {need} such GPUs on one worker, {have} there"
        if reason == Reason.COUNT_MISMATCH:
            return "the engine does not use GPUs of its vendor" if self.uses_gpus else "the instance takes no GPU"
        if reason == Reason.CPU:
            return f"need {need / _MILLI:g} cores, {have / _MILLI:g} free on the worker"
        if reason in (Reason.NEED_GT_CAPACITY, Reason.NEED_GT_FREE, Reason.HOST_MEMORY):
            ending = {Reason.NEED_GT_FREE: "free", Reason.HOST_MEMORY: "of main memory free on the worker"}
            figures = f"need {need / _MIB_PER_GIB:.2f} GiB, {have / _MIB_PER_GIB:.2f}"
            return f"{figures} {ending.get(reason, 'in all')}"
        if reason in (Reason.GPU_IN_USE, Reason.EXCLUSIVE_CONFLICT) and self.exclusive[row]:
            return "another instance has it whole"
        return _WORDS.get(reason, short(str(reason)))


def gpu_misses(inventory: Inventory, ask: Ask) -> GpuMisses:
    """Judges every GPU by itself, as if the spec named no workers and no GPUs.

    A GPU passes if it and its worker pass all checks for one GPU of any layout by any engine, and as many GPUs as a
    layout on one worker takes pass them there. So an instance that takes one GPU would get it if it were selected.
    """
    best: GpuMisses | None = None
    for by in engine_chain(ask):
        free_choice = replace(by, workers=(), gpus=(), all_workers=False, all_gpus=False)
        other = _by_engine(inventory, free_choice)
        best = other if best is None else _further(best, other, later=False)
    assert best is not None  # noqa: S101 - the chain has one engine at least
    return best


def _by_engine(inventory: Inventory, ask: Ask) -> GpuMisses:
    request = resolve(inventory, ask)
    refused = None
    if not ask.layouts:
        refused = next(iter([*ask.refused, *(reason for _, reason in ask.tried)]), Reason.NEED_GT_CAPACITY)
    best: GpuMisses | None = None
    for layout in layouts_shown(ask) or (Layout(1, 0, exclusive=False),):
        other = _of_layout(request, layout, refused)
        best = other if best is None else _further(best, other, later=True)
    assert best is not None  # noqa: S101 - there is one layout at least
    return best


def _of_layout(request: Request, layout: Layout, refused: Reason | None) -> GpuMisses:
    inventory, ask = request.inventory, request.ask
    gpus, workers = inventory.gpus, inventory.workers
    rows: Ints = np.arange(len(gpus.uuid))
    owner = gpus.worker[rows]
    reached = request.failed_at[owner]
    for reason, passed in gpu_checks(request, layout, rows):
        reached[~passed & (reached == FITS)] = STAGE[reason]
    for reason, passed in host_checks(request, owner):
        reached[~passed & (reached == FITS)] = STAGE[reason]
    short_of, there = _short_of_gpus(layout, owner, reached == FITS)
    reached[short_of] = STAGE[Reason.COUNT_MISMATCH]
    if not layout.gpus:
        reached = np.minimum(reached, _NO_GPU).astype(np.int8)
    if refused is not None:
        reached = np.minimum(reached, _TOO_SMALL).astype(np.int8)
    need, have = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    capacity = gpus.total[rows] if layout.exclusive else gpus.total[rows] - gpus.reserved[rows]
    for reason, needed, has in (
        (Reason.NEED_GT_CAPACITY, max(layout.memory_mib, ask.min_gpu_mib), capacity),
        (Reason.NEED_GT_FREE, layout.memory_mib, capacity - gpus.claimed[rows]),
        (Reason.HOST_MEMORY, ask.host_memory_mib, (workers.memory - workers.memory_claimed)[owner]),
        (Reason.CPU, ask.cpu_milli, (workers.cpu - workers.cpu_claimed)[owner]),
    ):
        mine = reached == STAGE[reason]
        need[mine], have[mine] = needed, np.maximum(has, 0)[mine]
    need[short_of], have[short_of] = layout.gpus, there[short_of]
    return GpuMisses(reached, need, have, gpus.exclusive[rows] > 0, refused, layout.gpus > 0)


def _short_of_gpus(layout: Layout, owner: Ints, passes: Bools) -> tuple[Bools, Ints]:
    """The passing GPUs on workers with too few passing GPUs, and the number of passing GPUs there, both by GPU.

    A layout over several workers needs only one GPU of each: selected by hand, they may be spread unevenly.
    """
    there: Ints = np.bincount(owner[passes], minlength=int(owner.max(initial=0)) + 1)[owner]
    return passes & (there < layout.gpus) & (layout.workers == 1), there


def _further(first: GpuMisses, other: GpuMisses, *, later: bool) -> GpuMisses:
    """By GPU, the result that passes more checks; of equal results the first, or the `later`."""
    takes = other.reached >= first.reached if later else other.reached > first.reached
    return replace(
        first,
        reached=np.where(takes, other.reached, first.reached),
        need=np.where(takes, other.need, first.need),
        have=np.where(takes, other.have, first.have),
        refused=first.refused if first.refused is None else other.refused,
        uses_gpus=first.uses_gpus or other.uses_gpus,
    )
