"""By worker: the check at which an ask fails, for the layout that passes the most checks there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.groups import OF_ONE_KIND, GroupTable
from controller.scheduling.inventory.tables import Bools, Ints
from controller.scheduling.search.cached_search import Search
from controller.scheduling.search.feasible import FITS, STAGE, STAGES, Stages
from controller.scheduling.search.gang import Shortage, find_gang
from controller.scheduling.search.group_misses import GroupMisses
from schemas.placement_reasons import Reason

# Reasons of too few GPUs, and a message's word for the GPUs.
COUNTED: Final = {
    Reason.COUNT_MISMATCH: "GPUs",
    Reason.GPU_CORDONED: "GPUs that are not cordoned",
    Reason.GPU_UNHEALTHY: "healthy GPUs",
    Reason.GPU_MODEL: "GPUs of that model",
    Reason.MIG_MODE: "GPUs not in MIG mode",
    Reason.COMPUTE_CAPABILITY: "GPUs of that compute capability",
    Reason.EXCLUSIVE_CONFLICT: "unclaimed GPUs",
    Reason.GPU_IN_USE: "unused GPUs",
    Reason.MIXED_ACCELERATORS: "of matching models",
}
_MIXED: Final = STAGE[Reason.MIXED_ACCELERATORS]
_TOO_SMALL: Final = STAGE[Reason.NEED_GT_CAPACITY]
# By stage: whether GPUs or workers are missing, not their memory.
_IS_COUNTED: Final = np.array([*(reason in COUNTED for reason in STAGES), True], dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class WorkerMisses:
    """By worker: the stage reached and its figures.

    Attributes:
        reached: stage of the failed check; FITS where all pass, and there are too few such workers for the gang.
        layout: number of the layout.
        wanted: GPUs that the layout needs on the worker; at FITS the number of workers that it needs.
        left: GPUs that passed the checks before; at FITS the number of workers that pass all checks.
        free: free memory (MiB) of the deciding GPU: the last of those that the layout would get.
        lacks: GPUs or workers that are missing; of GPUs named by hand, how far their number is from the layout's.
    """

    reached: Stages
    layout: Ints
    wanted: Ints
    left: Ints
    free: Ints
    lacks: Ints


def worker_misses(search: Search) -> WorkerMisses:
    """Takes the layout that passes the most checks on each worker.

    Of equal layouts it takes the nearest where GPUs or workers are too few: it lacks the fewest. Where GPUs are too
    small it takes the later layout, which has more GPUs.
    """
    layouts = layouts_shown(search.request.ask)
    if not layouts:  # the model cannot be split, and each GPU is too small by itself
        reached = np.minimum(search.request.failed_at, _TOO_SMALL).astype(np.int8)
        nothing = np.zeros(len(reached), dtype=np.int64)
        return WorkerMisses(reached, *[nothing] * 5)
    best = _of_layout(search, layouts, 0)
    for number in range(1, len(layouts)):
        other = _of_layout(search, layouts, number)
        nearer = (other.lacks <= best.lacks) | ~_IS_COUNTED[other.reached]
        further = (other.reached > best.reached) | ((other.reached == best.reached) & nearer)
        best = WorkerMisses(
            np.maximum(best.reached, other.reached),
            np.where(further, other.layout, best.layout),
            np.where(further, other.wanted, best.wanted),
            np.where(further, other.left, best.left),
            np.where(further, other.free, best.free),
            np.where(further, other.lacks, best.lacks),
        )
    return best


def layouts_shown(ask: Ask) -> tuple[Layout, ...]:
    """The layouts that explain an ask: its own, or without any the layouts that the model rules out."""
    return ask.layouts or tuple(layout for layout, _ in ask.tried)


def _of_layout(search: Search, layouts: Sequence[Layout], number: int) -> WorkerMisses:
    layout = layouts[number]
    misses = search.misses(layout)
    groups, workers = search.request.inventory.groups, len(search.request.failed_at)
    if len(groups.worker) == workers:
        rows: Ints = np.arange(workers)
        reached = misses.reached.copy()
    else:
        order = np.lexsort((misses.left, misses.reached, groups.worker))
        rows = order[np.searchsorted(groups.worker[order], np.arange(workers), side="right") - 1]
        reached = misses.reached[rows]
        reached[_enough_if_mixed(misses, groups, reached)] = _MIXED
    wanted, left = misses.wanted[rows], misses.left[rows]
    if not search.request.ask.layouts:  # a worker with enough GPUs is too small for the layouts that the model allows
        reached = np.minimum(reached, _TOO_SMALL).astype(np.int8)
    fits = reached == FITS
    if fits.any() and layout.workers > 1:
        short = find_gang(search.candidates(number))
        if isinstance(short, Shortage):
            if short.mixed:
                reached[fits] = _MIXED
            wanted, left = np.where(fits, layout.workers, wanted), np.where(fits, short.workers, left)
    named, lacks = search.request.named, wanted - left
    if named is not None and named.count != layout.gpus:
        lacks = np.full(workers, abs(named.count - layout.gpus), dtype=np.int64)
    return WorkerMisses(reached, np.full(workers, number, dtype=np.int64), wanted, left, misses.free[rows], lacks)


def _enough_if_mixed(misses: GroupMisses, groups: GroupTable, reached: Stages) -> Bools:
    """By worker: it would have enough suitable GPUs if they were all of one kind."""
    owner = groups.worker
    suitable = np.where(groups.level == OF_ONE_KIND, misses.suitable, 0)
    together = np.bincount(owner, weights=suitable, minlength=len(reached))
    wanted = np.zeros(len(reached), dtype=np.int64)
    wanted[owner] = misses.wanted
    lacks_gpus = (reached >= STAGE[Reason.COUNT_MISMATCH]) & (reached < _MIXED)
    enough: Bools = lacks_gpus & (together >= wanted) & (wanted > 1)
    return enough
