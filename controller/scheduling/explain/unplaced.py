"""Explains an ask that fits nowhere: the workers counted by reason, the nearest miss in figures, and one line."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from controller.domain.placement import Ask, ContainerRuntime, Layout
from controller.scheduling.explain.worker_misses import COUNTED, WorkerMisses, layouts_shown, worker_misses
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.tables import Bools, Ints
from controller.scheduling.search.cached_search import Search, engine_chain, search_for
from controller.scheduling.search.feasible import FITS, STAGE, STAGES, Request
from schemas.api.explain import Explain, NearestMiss, TriedLayout
from schemas.engine_builds import missing_text
from schemas.placement_reasons import Reason

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
_TOO_SMALL: Final = STAGE[Reason.NEED_GT_CAPACITY]
_SIZED: Final = frozenset({Reason.NEED_GT_CAPACITY, Reason.NEED_GT_FREE})
# Another worker is the cause, or this worker is not selected: not the nearest miss while there is any other.
_NEVER_NEAREST: Final = (STAGE[Reason.NOT_SELECTED], STAGE[Reason.NOT_ALL_SELECTED_READY])
_NEARNESS: Final = np.array([-1 if stage in _NEVER_NEAREST else stage for stage in range(FITS + 1)], dtype=np.int64)
# Short words for reason codes. Other codes are shown with blanks for underscores.
_SHORT: Final = {
    "need_gt_capacity": "VRAM",
    "need_gt_free": "VRAM",
    "host_memory": "RAM",
    "cpu": "CPU",
    "os_arch": "arch",
    "label_mismatch": "labels",
    "runtime_unsupported": "runtime",
    "engine_missing": "without the engine",
    "engine_unsupported": "engine",
    "driver_too_old": "driver",
    "compute_capability": "capability",
    "gpu_model": "GPU model",
    "mig_mode": "in MIG mode",
    "gpu_cordoned": "GPU cordoned",
    "gpu_unhealthy": "unhealthy",
    "gpu_in_use": "in use",
    "exclusive_conflict": "in shared use",
    "heads_indivisible": "heads",
    "vocab_indivisible": "vocabulary",
    "vision_indivisible": "vision heads",
    "mixed_accelerators": "mixed GPUs",
    "count_mismatch": "GPU count",
    "not_all_selected_ready": "other selected workers not ready",
}
_HELD: Final = "held"
_NOTHING: Final[Mapping[str, int]] = {}


def explain_unplaced(inventory: Inventory, ask: Ask) -> Explain:
    """Explains an ask that fits nowhere, by the engine that came nearest.

    `rejected` counts each worker once, and an unknown name as one more worker. A layout that heads or vocabulary rule
    out may be small enough for a worker on which all others are too large. Then that layout's reason, or each of
    several, replaces `need_gt_capacity`.
    """
    searches = [search_for(inventory, by) for by in engine_chain(ask)]
    explained = [(search, worker_misses(search)) for search in searches]
    search, misses = max(explained, key=lambda pair: int(_nearness(pair[0].request, pair[1]).max(initial=-1)))
    explain, parts = _explained(search, misses), (_held(search.request, misses), _outside(search.request, misses))
    explain = msgspec.structs.replace(explain, message=one_line(explain, *parts))
    nearest = explain.nearest
    if nearest is None or nearest.code != Reason.ENGINE_MISSING:
        return explain
    named = msgspec.structs.replace(nearest, message=_missing_engines(searches, nearest.worker))
    explain = msgspec.structs.replace(explain, nearest=named)
    return msgspec.structs.replace(explain, message=one_line(explain, *parts))


def _outside(request: Request, misses: WorkerMisses) -> dict[str, int]:
    """By reason, the number of workers that the spec leaves out."""
    stages = np.bincount(misses.reached[request.outside], minlength=FITS + 1).tolist()
    return {str(_reason(stage)): count for stage, count in enumerate(stages) if count}


def _held(request: Request, misses: WorkerMisses) -> dict[str, int]:
    """By reason, the number of workers whose GPUs are taken only because single instances claim them exclusively."""
    gpus, workers = request.inventory.gpus, len(misses.reached)
    whole = request.chosen & (gpus.exclusive > 0)
    others = {
        Reason.EXCLUSIVE_CONFLICT: request.chosen & (gpus.exclusive == 0) & (gpus.claims > 0),
        Reason.GPU_IN_USE: request.chosen & (gpus.exclusive == 0) & (gpus.foreign > 0),
    }
    held = {}
    for reason, other in others.items():
        here, there = (np.bincount(gpus.worker[some], minlength=workers) > 0 for some in (whole, other))
        count = int(((misses.reached == STAGE[reason]) & here & ~there).sum())
        if count:
            held[str(reason)] = count
    return held


def _missing_engines(searches: Sequence[Search], worker: str) -> str:
    """The possible engines to install there. An engine that fails another check there too would not help."""
    missing = STAGE[Reason.ENGINE_MISSING]
    numbers = {worker.name: n for n, worker in enumerate(searches[0].request.inventory.workers.entries)}
    names = [s.request.ask.compatibility.engine for s in searches if s.request.failed_at[numbers[worker]] == missing]
    return f"{missing_text(names)}, such as on {worker}"


def _explained(search: Search, misses: WorkerMisses) -> Explain:
    request, reached = search.request, misses.reached
    rejected: Counter[str] = Counter()
    for stage, count in enumerate(np.bincount(reached).tolist()):
        if count:
            rejected[str(_reason(stage))] += count
    unknown = request.unknown
    if len(unknown):
        rejected[str(Reason.NOT_ALL_SELECTED_READY if unknown.needed else Reason.NOT_READY)] += len(unknown)
    too_small = reached == _TOO_SMALL
    ruled_out = _ruled_out(search, too_small)
    if ruled_out:
        explained = np.logical_or.reduce(list(ruled_out.values()))
        rejected[str(Reason.NEED_GT_CAPACITY)] -= int(explained.sum())
        rejected.update({str(reason): int(would.sum()) for reason, would in ruled_out.items()})
        rejected = +rejected
    nearest = _nearest(request, misses, ruled_out)
    workers = len(reached) + len(unknown)
    return Explain(
        workers=workers,
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        nearest=nearest,
        gpus=len(request.inventory.gpus.uuid),
        unknown=list(unknown.names),
        ambiguous=list(unknown.ambiguous),
        tried=[
            TriedLayout(gpus=layout.gpus, tp=layout.tp, reason=reason)
            for layout, reason in request.ask.tried
            if _large_enough(search, layout, too_small).any()
        ],
    )


def _ruled_out(search: Search, too_small: Bools) -> dict[Reason, Bools]:
    """By reason: the too small workers on which layouts ruled out for that reason would not be too large."""
    ask = search.request.ask
    if not too_small.any():
        return {}
    if not ask.tried:
        return dict.fromkeys(ask.refused, too_small)
    ruled_out: dict[Reason, Bools] = {}
    for layout, reason in ask.tried:
        would = _large_enough(search, layout, too_small)
        if would.any():
            ruled_out[reason] = ruled_out[reason] | would if reason in ruled_out else would
    return ruled_out


def _large_enough(search: Search, layout: Layout, too_small: Bools) -> Bools:
    """The too small workers on which this layout would not be too large."""
    would = np.zeros_like(too_small)
    if too_small.any():
        would[search.request.inventory.groups.worker[search.misses(layout).reached > _TOO_SMALL]] = True
    return would & too_small


def headline(explain: Explain) -> Reason:
    """The reason code of the status: the most significant of the explanation."""
    if Reason.NOT_ALL_SELECTED_READY in explain.rejected:
        return Reason.NOT_ALL_SELECTED_READY
    nearest = explain.nearest
    if nearest is not None and nearest.code == Reason.NOT_SELECTED and Reason.NOT_READY in explain.rejected:
        return Reason.NOT_READY  # no selected name is known
    if nearest is not None and nearest.code in explain.rejected:
        return Reason(nearest.code)
    return Reason(next(iter(explain.rejected), Reason.NOT_READY))


def _reason(stage: int) -> Reason:
    """The reason of a stage. On a worker that passes all checks, other workers of the gang are missing."""
    return STAGES[stage] if stage < FITS else Reason.COUNT_MISMATCH


def _nearness(request: Request, misses: WorkerMisses) -> Ints:
    """By worker: how far it comes. A worker that the spec leaves out is never the nearest while there is any other."""
    nearness: Ints = np.where(request.outside & ~request.outside.all(), -1, _NEARNESS[misses.reached])
    return nearness


def _nearest(request: Request, misses: WorkerMisses, ruled_out: Mapping[Reason, Bools]) -> NearestMiss | None:
    if not len(misses.reached):
        return None
    nearness = _nearness(request, misses)
    rows = np.flatnonzero(nearness == nearness.max())
    stage = int(misses.reached[rows[0]])
    reason = _reason(stage)
    sized = _is_sized(request, reason, misses, rows)
    need, free = _figures(request, reason, misses, sized=sized)
    best = int(rows[np.argmax((free - need)[rows])])
    worker = request.inventory.workers.entries[best].name
    code = str(next((r for r, would in ruled_out.items() if would[best]), reason))
    ruled = code != reason and not request.ask.layouts  # the worker is not too small
    if (sized or reason == Reason.HOST_MEMORY) and need[best] and not ruled:
        need_gib, free_gib = round(need[best] / _MIB_PER_GIB, 2), round(free[best] / _MIB_PER_GIB, 2)
        message = f"need {need_gib:.2f} GiB, best free {free_gib:.2f} on {worker}"
        return NearestMiss(worker=worker, code=code, need_gib=need_gib, free_gib=free_gib, message=message)
    if code == Reason.NEED_GT_STATED:
        message = f"need {need[best] / _MIB_PER_GIB:.2f} GiB on each GPU, less is stated"
    elif stage == FITS:
        message = f"need {need[best]} such workers, found {free[best]}"
    elif reason == Reason.COUNT_MISMATCH and (named := _named_otherwise(request, misses, best)):
        message = named
    else:
        message = _shortfall(request, reason, best, int(need[best]), int(free[best]))
    return NearestMiss(worker=worker, code=code, message=message)


def _shortfall(request: Request, reason: Reason, worker: int, need: int, free: int) -> str:
    """What the worker lacks, in the unit of the reason."""
    ask = request.ask
    at, oldest = request.inventory.workers.entries[worker], ask.compatibility
    if reason == Reason.CPU:
        return f"need {need / _MILLI:g} cores, best free {free / _MILLI:g} on {at.name}"
    if reason == Reason.DRIVER_TOO_OLD:
        return f"need driver {'.'.join(map(str, oldest.min_driver))}, {at.driver or 'unknown'} on {at.name}"
    if reason == Reason.RUNTIME_UNSUPPORTED:
        return f"{_runtime_problem(at.containers)} on {at.name}"
    if reason not in COUNTED:
        return f"such as {at.name}"
    counted = COUNTED[reason]
    if reason == Reason.GPU_MODEL:
        counted = f"GPUs of model {' or '.join(ask.gpu_models)}"
    if reason == Reason.COMPUTE_CAPABILITY:
        counted = f"GPUs of compute capability {_capabilities(ask)}"
    return f"need {need} {counted if need != 1 else counted.replace('GPUs', 'GPU')}, best {free} on {at.name}"


def _runtime_problem(docker: ContainerRuntime | None) -> str:
    """Why containers do not run on a worker, or not with GPUs, in the words of its agent."""
    if docker is None:
        return "no Docker engine is known"
    return docker.reason or ("containers get no GPUs" if docker.usable else "its Docker engine cannot be used")


def _capabilities(ask: Ask) -> str:
    """The compute capabilities that an ask accepts: `7.0 or more, <9.0`."""
    oldest = ask.compatibility.min_compute_capability
    parts = [] if oldest is None else ["{}.{} or more".format(*oldest)]
    return ", ".join([*parts, *map(str, ask.capability_bounds)])


def _named_otherwise(request: Request, misses: WorkerMisses, worker: int) -> str | None:
    """Why the GPUs named by hand match no layout: their number, or the number of their workers."""
    named, layouts = request.named, layouts_shown(request.ask)
    if named is None or not layouts:
        return None
    layout = layouts[int(misses.layout[worker])]
    if named.count != layout.gpus:
        return f"need {layout.gpus} GPUs, {named.count} are named"
    spread = max(other.workers for other in layouts)
    return (
        f"the named GPUs are on {named.workers} workers, at most {spread} allowed" if named.workers > spread else None
    )


def _is_sized(request: Request, reason: Reason, misses: WorkerMisses, rows: Ints) -> bool:
    """Whether these workers lack memory. Also true where other processes use part of GPUs that may be shared."""
    layouts = layouts_shown(request.ask)
    if reason != Reason.GPU_IN_USE:
        return reason in _SIZED and bool(layouts)
    return bool(misses.free[rows].any()) and not layouts[int(misses.layout[rows[0]])].exclusive


def _figures(request: Request, reason: Reason, misses: WorkerMisses, *, sized: bool) -> tuple[Ints, Ints]:
    """By worker: the needed and the free amount in the unit of the reason; zeros for a reason without figures."""
    workers, ask = request.inventory.workers, request.ask
    need = np.zeros(len(misses.reached), dtype=np.int64)
    if reason == Reason.HOST_MEMORY:
        return need + ask.host_memory_mib, np.maximum(workers.memory - workers.memory_claimed, 0)
    if reason == Reason.CPU:
        return need + ask.cpu_milli, np.maximum(workers.cpu - workers.cpu_claimed, 0)
    if sized:
        least = ask.min_gpu_mib if reason == Reason.NEED_GT_CAPACITY else 0
        return np.array([max(layout.memory_mib, least) for layout in layouts_shown(ask)])[misses.layout], misses.free
    return (misses.wanted, misses.left) if reason in COUNTED else (need, need)


def one_line(explain: Explain, held: Mapping[str, int] = _NOTHING, outside: Mapping[str, int] = _NOTHING) -> str:
    """The headline: `0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch`.

    `held`: by reason code, the number of workers whose GPUs are taken only by exclusive claims. `outside`: by reason
    code, the number of workers that the spec leaves out; they do not count, unless all are.
    """
    if not explain.workers:
        return "0/0 fit: no worker has joined yet"
    if sum(outside.values()) >= explain.workers:
        outside = _NOTHING
    workers = explain.workers - sum(outside.values())
    counts: Counter[str] = Counter()
    for code, count in explain.rejected.items():
        counts[_HELD] += held.get(code, 0)
        counts[short(code)] += count - held.get(code, 0) - outside.get(code, 0)
    counts = +counts
    nearest = explain.nearest
    all_held = nearest is not None and held.get(nearest.code) == explain.rejected.get(nearest.code, 0)
    of_nearest = _HELD if all_held else "" if nearest is None else short(nearest.code)
    parts = []
    for label, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        sizes = f" ({_sizes(nearest)})" if nearest is not None and of_nearest == label else ""
        parts.append(f"{count} {label}{sizes}")
    line = f"{explain.fit}/{workers} fit: {', '.join(parts)}"
    if explain.unknown:
        line += f"; no such worker or GPU: {', '.join(explain.unknown)}"
    if explain.ambiguous:
        line += f"; ambiguous: {', '.join(explain.ambiguous)}"
    return line


def with_note(explain: Explain, note: str) -> Explain:
    """The explanation with a note about the queue, which ends its headline too."""
    if not note:
        return explain
    return msgspec.structs.replace(explain, message=f"{explain.message}; {note}", note=note)


def short(code: str) -> str:
    return _SHORT.get(code, code.replace("_", " "))


def _sizes(nearest: NearestMiss) -> str:
    if nearest.need_gib is None or nearest.free_gib is None:
        return nearest.message or f"such as {nearest.worker}"
    need, free = round(nearest.need_gib, 1), round(nearest.free_gib, 1)
    if need == free:
        need, free = nearest.need_gib, nearest.free_gib  # in two decimals
    return f"need {need:g} GiB, best free {free:g} on {nearest.worker}"
