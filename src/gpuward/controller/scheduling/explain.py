"""Why an ask waits: each worker's reason counted, the nearest miss in figures, one line for people."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuward.controller.domain.placement import Layout
from gpuward.controller.scheduling.feasible import STAGE, STAGES, Request, Stages, stages_reached
from gpuward.controller.scheduling.segments import NEVER, Ints, nth_smallest
from gpuward.schemas.objects import Explain, NearestMiss
from gpuward.schemas.reasons import Reason

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
# Reasons of too few GPUs, and what there are too few of.
_COUNTED: Final = {
    Reason.COUNT_MISMATCH: "GPUs",
    Reason.GPU_UNHEALTHY: "healthy GPUs",
    Reason.COMPUTE_CAPABILITY: "GPUs of that compute capability",
    Reason.EXCLUSIVE_CONFLICT: "untouched GPUs",
    Reason.GPU_IN_USE: "GPUs that may be shared",
}
_SIZED: Final = frozenset({Reason.NEED_GT_CAPACITY, Reason.NEED_GT_FREE})
# Says that another worker is at fault, or that nobody asked for this one: never the nearest while there is another.
_ASIDE: Final = (STAGE[Reason.NOT_SELECTED], STAGE[Reason.NOT_ALL_SELECTED_READY])


@dataclass(frozen=True, slots=True)
class _Furthest:
    """Per worker: how far the layout that came furthest came there, which one that was, how many GPUs were left."""

    reached: Stages
    layout: Ints
    left: Ints


def explain_unplaced(request: Request) -> Explain:
    """Explains an ask that fits nowhere.

    `rejected` counts each worker once; a name that nobody has counts as one worker looked at. Where larger layouts
    were refused (heads, vocabulary), their reasons stand in place of `need_gt_capacity`, since with them it would fit.
    """
    furthest = _furthest(request)
    reached = furthest.reached
    rejected = Counter({str(STAGES[stage]): int(n) for stage, n in enumerate(np.bincount(reached)) if n})
    if request.unknown:
        rejected[str(Reason.NOT_ALL_SELECTED_READY)] += len(request.unknown)
    if request.ask.refused and (too_small := rejected.pop(str(Reason.NEED_GT_CAPACITY), 0)):
        rejected.update({str(reason): too_small for reason in request.ask.refused})
    nearest = _nearest(request, furthest)
    workers = len(reached) + len(request.unknown)
    return Explain(
        workers=workers,
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        nearest=nearest,
        gpus=len(request.inventory.gpus.uuid),
        message=_message(workers, rejected, nearest, request.unknown),
    )


def headline(explain: Explain) -> Reason:
    """The one reason code that stands for an explanation in a status."""
    if Reason.NOT_ALL_SELECTED_READY in explain.rejected:
        return Reason.NOT_ALL_SELECTED_READY
    if explain.nearest is not None and explain.nearest.code in explain.rejected:
        return Reason(explain.nearest.code)
    return Reason(next(iter(explain.rejected), Reason.NOT_READY))


def _furthest(request: Request) -> _Furthest:
    nothing = np.zeros(len(request.fell_at), dtype=np.int64)
    if not request.ask.layouts:  # every layout was refused beforehand, so each GPU is too small by itself
        too_small = np.minimum(request.fell_at, STAGE[Reason.NEED_GT_CAPACITY]).astype(np.int8)
        return _Furthest(too_small, nothing, nothing)
    reached, left = stages_reached(request, request.ask.layouts[0])
    layout_of = nothing
    for number, layout in enumerate(request.ask.layouts[1:], start=1):
        other, other_left = stages_reached(request, layout)
        further = other >= reached
        layout_of = np.where(further, number, layout_of)
        left = np.where(further, other_left, left)
        reached = np.maximum(reached, other)
    return _Furthest(reached, layout_of, left)


def _nearest(request: Request, furthest: _Furthest) -> NearestMiss | None:
    reached = furthest.reached
    if not len(reached):
        return None
    nearness = np.where(np.isin(reached, _ASIDE), -1, reached.astype(np.int64))
    rows = np.flatnonzero(nearness == nearness.max())
    reason = STAGES[int(reached[rows[0]])]
    need, free = _figures(request, reason, furthest)
    best = int(rows[np.argmax((free - need)[rows])])
    worker = request.inventory.workers.facts[best].name
    code = str(request.ask.refused[0] if reason == Reason.NEED_GT_CAPACITY and request.ask.refused else reason)
    if reason in _SIZED | {Reason.HOST_MEMORY} and need[best]:
        need_gib, free_gib = round(need[best] / _MIB_PER_GIB, 2), round(free[best] / _MIB_PER_GIB, 2)
        message = f"need {need_gib:.2f} GiB, best free {free_gib:.2f} on {worker}"
        return NearestMiss(worker=worker, code=code, need_gib=need_gib, free_gib=free_gib, message=message)
    message = f"such as {worker}"
    if reason in _COUNTED:
        message = f"need {need[best]} {_COUNTED[reason]}, best {free[best]} on {worker}"
    elif reason == Reason.CPU:
        message = f"need {need[best] / _MILLI:g} cores, best free {free[best] / _MILLI:g} on {worker}"
    return NearestMiss(worker=worker, code=code, message=message)


def _figures(request: Request, reason: Reason, furthest: _Furthest) -> tuple[Ints, Ints]:
    """Per worker what is needed and what there is, in the unit of the reason; zeros where it has none."""
    workers, ask = request.inventory.workers, request.ask
    need, free = np.zeros(len(furthest.reached), dtype=np.int64), np.zeros(len(furthest.reached), dtype=np.int64)
    if reason == Reason.HOST_MEMORY:
        return need + ask.host_memory_mib, workers.memory - workers.memory_claimed
    if reason == Reason.CPU:
        return need + ask.cpu_milli, workers.cpu - workers.cpu_claimed
    for number, layout in enumerate(ask.layouts):
        mine = furthest.layout == number
        if reason in _COUNTED:
            need[mine], free[mine] = layout.gpus, furthest.left[mine]
        elif reason in _SIZED:
            need[mine], free[mine] = layout.memory_mib, _free_of_best(request, layout)[mine]
    return need, free


def _free_of_best(request: Request, layout: Layout) -> Ints:
    """Free memory of each worker's n-th best GPU, n being the layout's count: the one that decides. 0 where too few."""
    gpus = request.inventory.gpus
    free = np.where(gpus.exclusive > 0, 0, np.maximum(gpus.total - gpus.claimed, 0))
    taken = nth_smallest(
        np.where(request.claimable & gpus.healthy, -free, NEVER), request.inventory.workers.first_gpu, layout.gpus
    )
    return np.where(taken == NEVER, 0, -taken)


def _message(workers: int, rejected: Counter[str], nearest: NearestMiss | None, unknown: tuple[str, ...]) -> str:
    if not workers:
        return "0/0 fit: no worker has joined yet"
    parts = []
    for code, count in sorted(rejected.items(), key=lambda item: (-item[1], item[0])):
        figures = f" ({nearest.message})" if nearest is not None and nearest.code == code else ""
        parts.append(f"{count} {code}{figures}")
    line = f"0/{workers} fit: {', '.join(parts)}"
    if unknown:
        line += f"; no such worker or GPU: {', '.join(unknown)}"
    return line
