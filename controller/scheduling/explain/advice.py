"""What would make an ask fit: each advice is a changed ask or a changed host that the scheduler really was asked about.

Nothing is guessed, so what is said here holds on this inventory; and the questions are few, whatever its size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.domain.need_view import need_view
from controller.domain.placement import Ask, Layout, Need, Placed, WorkerFacts
from controller.domain.splits import MORE_WORKERS
from controller.scheduling.admission.preempt import find_preemption
from controller.scheduling.estimate import EngineFacts, asks_for
from controller.scheduling.inventory.holders import Holder
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.search.place import find
from schemas.api.explain import Explain
from schemas.manifest.deployment import DeploymentSpec, Parallel, Placement
from schemas.reasons import Reason

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
_MAX_NAMED: Final = 4
_CACHE: Final = "cache"  # the part of a need that less memory makes smaller, down to that of one sequence
_MADE_UP: Final = "simulated"  # and one that is as large as it is said to be
_SIZED: Final = frozenset({Reason.NEED_GT_FREE, Reason.NEED_GT_CAPACITY, Reason.GPU_IN_USE})


@dataclass(frozen=True, slots=True)
class Unfit:
    """An instance that fits nowhere: what it asks by, and why it does not."""

    spec: DeploymentSpec
    need: Need
    engine: EngineFacts
    deployment_uid: str
    explain: Explain
    holders: Sequence[Holder] = ()  # who hold claims and could leave

    def ask(self, spec: DeploymentSpec) -> Ask:
        """What an instance of that spec asks."""
        return asks_for(spec, self.need, self.engine, instance="advice", deployment_uid=self.deployment_uid)

    def asked(self, inventory: Inventory, spec: DeploymentSpec) -> Placed | None:
        """Where an instance of that spec would go, if it may be asked for. The inventory stays as it is."""
        placed = find(inventory, self.ask(spec))
        return placed if placed is not None and self._takes(spec, placed.engine) else None

    def _takes(self, spec: DeploymentSpec, engine: str) -> bool:
        try:
            self.engine.chosen(engine).validate(spec)
        except ValueError:
            return False
        return True


def advise(inventory: Inventory, unfit: Unfit) -> list[str]:
    """What would make it fit, the smallest change first; empty where nothing that was tried does."""
    return [line for question in _QUESTIONS for line in question(inventory, unfit)]


def _less_gpu_memory(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    """As much as the GPU with the most room has, or else the nearest miss; never less than all but the cache.

    An engine that is given less than that and the cache of one sequence does not start.
    """
    nearest = unfit.explain.nearest
    if nearest is None or not _SIZED.intersection(unfit.explain.rejected):
        return
    widest = int(inventory.gpus.room.max(initial=0))
    # What is said of the nearest is rounded to hundredths, maybe upwards.
    sizes = {widest * 10 // _MIB_PER_GIB, int((max(nearest.free_gib or 0, 0.01) - 0.01) * 10)}
    for tenths in sorted(sizes, reverse=True):
        memory_mib = tenths * _MIB_PER_GIB // 10
        placed = unfit.asked(inventory, _with(unfit.spec, "resources", gpu_memory=memory_mib)) if tenths > 0 else None
        if placed is not None and memory_mib >= _least_mib(unfit, placed):
            count = placed.layout.gpus
            yield f"fits with gpu_memory <= {tenths / 10:g}GiB on {count} GPU{'s' * (count > 1)}"
            return


def _least_mib(unfit: Unfit, placed: Placed) -> int:
    """What each of these GPUs must hold at least, where anything is known of it."""
    shown = need_view(unfit.need, unfit.spec.resources, placed.engine, placed.layout)
    fixed_mib = sum(size for part, size in shown.parts.items() if part not in (_CACHE, _MADE_UP))
    least_mib = fixed_mib + shown.parts.get(_CACHE, 0) // (shown.sequences or 1)
    return least_mib if shown.per_gpu else least_mib // max(placed.layout.gpus // placed.layout.dp, 1)


def _less_host_memory(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    """As much as the nearest miss has, where more was asked than the engine by itself would need."""
    nearest = unfit.explain.nearest
    if nearest is None or nearest.code != Reason.HOST_MEMORY or not nearest.free_gib:
        return
    tenths = int((nearest.free_gib - 0.01) * 10)
    memory_mib = tenths * _MIB_PER_GIB // 10
    least_mib = min(need.host_memory_mib for _, need in unfit.need.by_engine or (("", unfit.need),))
    spec = _with(unfit.spec, "resources", host_memory=memory_mib)
    if tenths > 0 and memory_mib > least_mib and unfit.asked(inventory, spec) is not None:
        yield f"fits with host_memory <= {tenths / 10:g}GiB"


def _fewer_cpus(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    cpus = unfit.spec.resources.cpus
    if cpus == "auto" or Reason.CPU not in unfit.explain.rejected:
        return
    workers = inventory.workers
    most = int((workers.cpu - workers.cpu_claimed).max(initial=0)) / _MILLI
    if 0 < most < cpus and unfit.asked(inventory, _with(unfit.spec, "resources", cpus=most)) is not None:
        yield f"fits with cpus <= {most:g}"


def _other_degrees(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    if unfit.spec.parallel.world is None:
        return
    placed = unfit.asked(inventory, unfit.spec.model_copy(update={"parallel": Parallel()}))
    if placed is not None:
        yield f"fits with tp: {placed.layout.tp}, pp: {placed.layout.pp}, dp: {placed.layout.dp}"


def _more_workers(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    for workers in MORE_WORKERS:
        if workers > unfit.spec.resources.max_workers:
            placed = unfit.asked(inventory, _with(unfit.spec, "resources", max_workers=workers))
            if placed is not None:
                yield f"fits with max_workers: {workers}{_on(placed.layout)}"
                return


def _free_choice(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    placement = unfit.spec.placement
    chosen = [name for name in ("workers", "gpus", "labels") if getattr(placement, name)]
    if chosen:
        spec = unfit.spec.model_copy(update={"placement": Placement(strategy=placement.strategy)})
        if (placed := unfit.asked(inventory, spec)) is not None:
            names = ", ".join(f"placement.{name}" for name in chosen)
            yield f"fits on {_listed(_names(inventory, placed))} without {names}"


def _uncordoned(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    closed = [w for w in inventory.workers.facts if w.ready and not w.schedulable]
    opened = [replace(worker, schedulable=True) for worker in closed]
    if (placed := _with_workers(inventory, unfit, closed, opened)) is not None:
        commands = (f"gpuward uncordon {name}" for name in _names(inventory, placed, among=closed))
        yield f"fits after: {'; '.join(commands)}"


def _all_ready(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    away = [w for w in inventory.workers.facts if not w.ready and w.schedulable]
    back = [replace(worker, ready=True) for worker in away]
    if (placed := _with_workers(inventory, unfit, away, back)) is not None:
        names = _names(inventory, placed, among=away)
        yield f"fits as soon as {_listed(names)} {_is(names)} ready"


def _others_gone(inventory: Inventory, unfit: Unfit) -> Iterator[str]:
    room = find_preemption(inventory, unfit.ask(unfit.spec), unfit.holders) if unfit.holders else None
    if room is not None and room.leave:
        names = _names(inventory, room.placed)
        yield f"fits when {_listed(names)} {_is(names)} free of {_listed([o.instance for o in room.leave])}"


def _with_workers(
    inventory: Inventory, unfit: Unfit, real: list[WorkerFacts], thought: list[WorkerFacts]
) -> Placed | None:
    """Where it would go if these workers were as thought."""
    if not real:
        return None
    inventory.upsert_workers(thought)
    try:
        return unfit.asked(inventory, unfit.spec)
    finally:
        inventory.upsert_workers(real)


def _with(spec: DeploymentSpec, part: str, **changes: Any) -> DeploymentSpec:
    return spec.model_copy(update={part: getattr(spec, part).model_copy(update=changes)})


def _on(layout: Layout) -> str:
    """How it would be spread, where that is no matter of course."""
    over = f" of {layout.workers} workers" if layout.workers > 1 else ""
    return f" on {layout.gpus} GPUs{over}" if layout.gpus > 1 else ""


def _listed(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _names(inventory: Inventory, placed: Placed, among: list[WorkerFacts] | None = None) -> list[str]:
    ids = placed.workers if among is None else {w.id for w in among}.intersection(placed.workers)
    return sorted(w.name for w in inventory.workers.facts if w.id in ids)


_QUESTIONS: Final[tuple[Callable[[Inventory, Unfit], Iterator[str]], ...]] = (
    _other_degrees, _free_choice, _uncordoned, _all_ready, _less_gpu_memory, _less_host_memory, _fewer_cpus,
    _more_workers, _others_gone,
)  # fmt: skip
