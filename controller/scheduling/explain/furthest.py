"""How far an ask comes on every worker, by the layout that comes furthest there."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.inventory.segments import Bools, Ints
from controller.scheduling.search.feasible import FITS, STAGE, Stages
from controller.scheduling.search.gang import Shortage, find_gang
from controller.scheduling.search.search import Search
from controller.scheduling.search.standing import Standing
from schemas.reasons import Reason

_MIXED: Final = STAGE[Reason.MIXED_ACCELERATORS]
_TOO_SMALL: Final = STAGE[Reason.NEED_GT_CAPACITY]


@dataclass(frozen=True, slots=True)
class Furthest:
    """By worker: the stage that was reached, by which layout, and what was left there of what it wants.

    Attributes:
        reached: FITS where the worker would do, and there are too few such workers for the gang.
        layout: number of the layout.
        wanted: GPUs that it wants there; of a worker that would do, how many workers it wants.
        left: GPUs that are left of all; of a worker that would do, how many workers there are.
        free: free memory (MiB) of the GPU that decides.
    """

    reached: Stages
    layout: Ints
    wanted: Ints
    left: Ints
    free: Ints


def furthest_of(search: Search) -> Furthest:
    """Takes of each worker the layout that came furthest; of two that came as far the later, larger one."""
    layouts = layouts_shown(search.request.ask)
    if not layouts:  # there is no way at all to run it, so each GPU is too small by itself
        reached = np.minimum(search.request.fell_at, _TOO_SMALL).astype(np.int8)
        nothing = np.zeros(len(reached), dtype=np.int64)
        return Furthest(reached, nothing, nothing, nothing, nothing)
    best = _of_layout(search, layouts, 0)
    for number in range(1, len(layouts)):
        other = _of_layout(search, layouts, number)
        further = other.reached >= best.reached
        best = Furthest(
            np.maximum(best.reached, other.reached),
            np.where(further, other.layout, best.layout),
            np.where(further, other.wanted, best.wanted),
            np.where(further, other.left, best.left),
            np.where(further, other.free, best.free),
        )
    return best


def layouts_shown(ask: Ask) -> tuple[Layout, ...]:
    """The layouts by which an ask is explained: its own, or where the model rules out each of them those."""
    return ask.layouts or tuple(layout for layout, _ in ask.tried)


def _of_layout(search: Search, layouts: Sequence[Layout], number: int) -> Furthest:
    layout = layouts[number]
    standing = search.standing(layout)
    groups, workers = search.request.inventory.groups, len(search.request.fell_at)
    if len(groups.worker) == workers:
        rows: Ints = np.arange(workers)
        reached = standing.reached.copy()
    else:
        order = np.lexsort((standing.left, standing.reached, groups.worker))
        rows = order[np.searchsorted(groups.worker[order], np.arange(workers), side="right") - 1]
        reached = standing.reached[rows]
        reached[_would_do_together(standing, groups.worker, reached)] = _MIXED
    wanted, left = standing.wanted[rows], standing.left[rows]
    if not search.request.ask.layouts:  # a worker that has the GPUs is too small for what the model leaves
        reached = np.minimum(reached, _TOO_SMALL).astype(np.int8)
    do = reached == FITS
    if do.any() and layout.workers > 1:
        short = find_gang(search.candidates(number))
        if isinstance(short, Shortage):
            if short.mixed:
                reached[do] = _MIXED
            wanted, left = np.where(do, layout.workers, wanted), np.where(do, short.workers, left)
    return Furthest(reached, np.full(workers, number, dtype=np.int64), wanted, left, standing.free[rows])


def _would_do_together(standing: Standing, owner: Ints, reached: Stages) -> Bools:
    """By worker: it has enough GPUs that would do, were they all of one kind."""
    together = np.bincount(owner, weights=standing.suitable, minlength=len(reached))
    wanted = np.zeros(len(reached), dtype=np.int64)
    wanted[owner] = standing.wanted
    fell_for_gpus = (reached >= STAGE[Reason.COUNT_MISMATCH]) & (reached < _MIXED)
    enough: Bools = fell_for_gpus & (together >= wanted) & (wanted > 1)
    return enough
