"""Why an ask waits: each worker's reason counted, the nearest miss in figures, one line for people."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from controller.domain.placement import Ask, Layout
from controller.scheduling.explain.furthest import Furthest, furthest_of, layouts_shown
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.inventory.segments import Bools, Ints
from controller.scheduling.search.feasible import FITS, STAGE, STAGES, Request
from controller.scheduling.search.search import Search, search_for
from schemas.api.explain import Explain, NearestMiss, TriedLayout
from schemas.reasons import Reason

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
# Reasons of too few GPUs, and what there are too few of.
_COUNTED: Final = {
    Reason.COUNT_MISMATCH: "GPUs",
    Reason.GPU_UNHEALTHY: "healthy GPUs",
    Reason.COMPUTE_CAPABILITY: "GPUs of that compute capability",
    Reason.EXCLUSIVE_CONFLICT: "untouched GPUs",
    Reason.GPU_IN_USE: "GPUs that nobody else uses",
    Reason.MIXED_ACCELERATORS: "that go together",
}
_TOO_SMALL: Final = STAGE[Reason.NEED_GT_CAPACITY]
_SIZED: Final = frozenset({Reason.NEED_GT_CAPACITY, Reason.NEED_GT_FREE})
# Says that another worker is at fault, or that nobody asked for this one: never the nearest while there is another.
_ASIDE: Final = (STAGE[Reason.NOT_SELECTED], STAGE[Reason.NOT_ALL_SELECTED_READY])
_NEARNESS: Final = np.array([-1 if stage in _ASIDE else stage for stage in range(FITS + 1)], dtype=np.int64)


def explain_unplaced(inventory: Inventory, ask: Ask) -> Explain:
    """Explains an ask that fits nowhere, by the engine that came nearest.

    `rejected` counts each worker once; a name that nobody has counts as one worker looked at. Where a layout that was
    ruled out (heads, vocabulary) would not be too large for a worker, its reason stands in place of
    `need_gt_capacity`, and where there are several such reasons each of them does.
    """
    searches = [search_for(inventory, by) for by in _chain(ask)]
    found = [(search, furthest_of(search)) for search in searches]
    search, furthest = max(found, key=lambda pair: int(_NEARNESS[pair[1].reached].max(initial=-1)))
    return _explained(search, furthest)


def _chain(ask: Ask | None) -> Iterator[Ask]:
    while ask is not None:
        yield ask
        ask = ask.otherwise


def _explained(search: Search, furthest: Furthest) -> Explain:
    request, reached = search.request, furthest.reached
    rejected: Counter[str] = Counter()
    for stage, count in enumerate(np.bincount(reached).tolist()):
        if count:
            rejected[str(_reason(stage))] += count
    if request.unknown:
        rejected[str(Reason.NOT_ALL_SELECTED_READY)] += len(request.unknown)
    too_small = reached == _TOO_SMALL
    ruled_out = _ruled_out(search, too_small)
    if ruled_out:
        helped = np.logical_or.reduce(list(ruled_out.values()))
        rejected[str(Reason.NEED_GT_CAPACITY)] -= int(helped.sum())
        rejected.update({str(reason): int(would.sum()) for reason, would in ruled_out.items()})
        rejected = +rejected
    nearest = _nearest(request, furthest, ruled_out)
    workers = len(reached) + len(request.unknown)
    return Explain(
        workers=workers,
        rejected=dict(sorted(rejected.items(), key=lambda item: (-item[1], item[0]))),
        nearest=nearest,
        gpus=len(request.inventory.gpus.uuid),
        unknown=list(request.unknown),
        tried=[
            TriedLayout(gpus=layout.gpus, tp=layout.tp, reason=reason)
            for layout, reason in request.ask.tried
            if _would_do(search, layout, too_small).any()
        ],
        message=_message(workers, rejected, nearest, request.unknown),
    )


def _ruled_out(search: Search, too_small: Bools) -> dict[Reason, Bools]:
    """Reasons for which layouts were ruled out, and which of the workers that are too small they would do for."""
    ask = search.request.ask
    if not too_small.any():
        return {}
    if not ask.tried:
        return dict.fromkeys(ask.refused, too_small)
    found: dict[Reason, Bools] = {}
    for layout, reason in ask.tried:
        would = _would_do(search, layout, too_small)
        if would.any():
            found[reason] = found[reason] | would if reason in found else would
    return found


def _would_do(search: Search, layout: Layout, too_small: Bools) -> Bools:
    """Which of the workers that are too small would not be so by that layout."""
    would = np.zeros_like(too_small)
    if too_small.any():
        would[search.request.inventory.groups.worker[search.standing(layout).reached > _TOO_SMALL]] = True
    return would & too_small


def headline(explain: Explain) -> Reason:
    """The one reason code that stands for an explanation in a status."""
    if Reason.NOT_ALL_SELECTED_READY in explain.rejected:
        return Reason.NOT_ALL_SELECTED_READY
    if explain.nearest is not None and explain.nearest.code in explain.rejected:
        return Reason(explain.nearest.code)
    return Reason(next(iter(explain.rejected), Reason.NOT_READY))


def _reason(stage: int) -> Reason:
    """The reason of a stage; a worker that would do lacks partners."""
    return STAGES[stage] if stage < FITS else Reason.COUNT_MISMATCH


def _nearest(request: Request, furthest: Furthest, ruled_out: Mapping[Reason, Bools]) -> NearestMiss | None:
    if not len(furthest.reached):
        return None
    nearness = _NEARNESS[furthest.reached]
    rows = np.flatnonzero(nearness == nearness.max())
    stage = int(furthest.reached[rows[0]])
    reason = _reason(stage)
    sized = _is_sized(request, reason, furthest, rows)
    need, free = _figures(request, reason, furthest, sized=sized)
    best = int(rows[np.argmax((free - need)[rows])])
    worker = request.inventory.workers.facts[best].name
    code = str(next((r for r, would in ruled_out.items() if would[best]), reason))
    ruled = code != reason and not request.ask.layouts  # not its size speaks against it
    if (sized or reason == Reason.HOST_MEMORY) and need[best] and not ruled:
        need_gib, free_gib = round(need[best] / _MIB_PER_GIB, 2), round(free[best] / _MIB_PER_GIB, 2)
        message = f"need {need_gib:.2f} GiB, best free {free_gib:.2f} on {worker}"
        return NearestMiss(worker=worker, code=code, need_gib=need_gib, free_gib=free_gib, message=message)
    if stage == FITS:
        message = f"need {need[best]} such workers, there are {free[best]}"
    elif reason == Reason.COUNT_MISMATCH and (named := _named_otherwise(request, furthest, best)):
        message = named
    else:
        message = _shortfall(request, reason, best, int(need[best]), int(free[best]))
    return NearestMiss(worker=worker, code=code, message=message)


def _shortfall(request: Request, reason: Reason, worker: int, need: int, free: int) -> str:
    """What a worker has less of than is needed, in the unit of the reason."""
    facts, oldest = request.inventory.workers.facts[worker], request.ask.compatibility
    if reason == Reason.CPU:
        return f"need {need / _MILLI:g} cores, best free {free / _MILLI:g} on {facts.name}"
    if reason == Reason.DRIVER_TOO_OLD:
        return f"need driver {'.'.join(map(str, oldest.min_driver))}, {facts.driver or 'unknown'} on {facts.name}"
    if reason not in _COUNTED:
        return f"such as {facts.name}"
    what = _COUNTED[reason]
    if reason == Reason.COMPUTE_CAPABILITY and oldest.min_compute_capability is not None:
        what = "GPUs of compute capability {}.{} or more".format(*oldest.min_compute_capability)
    return f"need {need} {what if need != 1 else what.replace('GPUs', 'GPU')}, best {free} on {facts.name}"


def _named_otherwise(request: Request, furthest: Furthest, worker: int) -> str | None:
    """What of the GPUs named by hand agrees with no layout: how many they are, or of how many workers."""
    named, layouts = request.named, layouts_shown(request.ask)
    if named is None or not layouts:
        return None
    layout = layouts[int(furthest.layout[worker])]
    if named.count != layout.gpus:
        return f"need {layout.gpus} GPUs, {named.count} are named"
    spread = max(one.workers for one in layouts)
    return f"GPUs of {named.workers} workers are named, of {spread} asked for" if named.workers > spread else None


def _is_sized(request: Request, reason: Reason, furthest: Furthest, rows: Ints) -> bool:
    """Whether memory is what these lack: also where others use some of GPUs that may be shared."""
    layouts = layouts_shown(request.ask)
    if reason != Reason.GPU_IN_USE:
        return reason in _SIZED and bool(layouts)
    return bool(furthest.free[rows].any()) and not layouts[int(furthest.layout[rows[0]])].exclusive


def _figures(request: Request, reason: Reason, furthest: Furthest, *, sized: bool) -> tuple[Ints, Ints]:
    """Per worker what is needed and what there is, in the unit of the reason; zeros where it has none."""
    workers, ask = request.inventory.workers, request.ask
    need = np.zeros(len(furthest.reached), dtype=np.int64)
    if reason == Reason.HOST_MEMORY:
        return need + ask.host_memory_mib, np.maximum(workers.memory - workers.memory_claimed, 0)
    if reason == Reason.CPU:
        return need + ask.cpu_milli, np.maximum(workers.cpu - workers.cpu_claimed, 0)
    if sized:
        return np.array([layout.memory_mib for layout in layouts_shown(ask)])[furthest.layout], furthest.free
    return (furthest.wanted, furthest.left) if reason in _COUNTED else (need, need)


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
