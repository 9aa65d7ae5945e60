"""Advice: changes that make an ask fit. Each was tried on the inventory as a changed ask, host or set of holders.

So each line holds on this inventory. The number of trials is small and does not depend on the inventory's size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from controller.domain.admission import Holder
from controller.domain.placement import Ask, Need, Placed, PlacementWorker, need_view
from controller.domain.splits import MORE_WORKERS
from controller.scheduling.admission.victims import find_victims
from controller.scheduling.estimate import EstimatedEngine, asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from schemas.api.explain import Explain
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.resources import Parallel, Placement
from schemas.placement_reasons import Reason
from schemas.printing import first_of

_MIB_PER_GIB: Final = 1024
_MILLI: Final = 1000
_MAX_NAMED: Final = 4
_ANY_KIND: Final = {"gpu_models": (), "min_gpu_memory": "none", "compute_capability": "none"}
_CACHE: Final = "cache"  # the part of a need that can shrink, down to the cache of one sequence
_SIMULATED: Final = "simulated"  # the part of a simulated need, which can shrink at will
_SIZED: Final = frozenset({Reason.NEED_GT_FREE, Reason.NEED_GT_CAPACITY, Reason.GPU_IN_USE})


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """An instance that fits nowhere: the parts of its ask, and why it does not fit."""

    spec: DeploymentSpec
    need: Need
    engine: EstimatedEngine
    deployment_uid: str
    explain: Explain
    holders: Sequence[Holder] = ()  # that could be preempted

    def ask(self, spec: DeploymentSpec) -> Ask:
        return asks_for(spec, self.need, self.engine, instance="advice", deployment_uid=self.deployment_uid)

    def place(self, inventory: Inventory, changed: DeploymentSpec) -> Placed | None:
        """The place of an instance with this spec, if an apply would accept the spec. Reserves nothing."""
        try:
            spec = DeploymentSpec.model_validate(changed.model_dump(mode="json"))
        except ValueError:
            return None
        if spec.count_problem() is not None:
            return None
        placed = find(inventory, self.ask(spec))
        return placed if placed is not None and self._accepts(spec, placed.engine) else None

    def _accepts(self, spec: DeploymentSpec, engine: str) -> bool:
        try:
            self.engine.chosen(engine).validate(spec)
        except ValueError:
            return False
        return True


def advise(inventory: Inventory, request: AdviceRequest) -> list[str]:
    """The changes that make it fit, the smallest first; empty where none of the tried changes does."""
    return [line for trial in _TRIALS for line in trial(inventory, request)]


def _less_gpu_memory(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    """Tries the free memory of the GPU with the most, then that of the nearest miss.

    Never advises less than all parts but the cache and the cache of one sequence: the engine would not start.
    """
    nearest = request.explain.nearest
    if nearest is None or not _SIZED.intersection(request.explain.rejected):
        return
    most = int(inventory.gpus.free.max(initial=0))
    # The figure of the nearest miss is rounded to hundredths, maybe upwards.
    sizes = {most * 10 // _MIB_PER_GIB, int((max(nearest.free_gib or 0, 0.01) - 0.01) * 10)}
    for tenths in sorted(sizes, reverse=True):
        placed = _with_gpu_memory(inventory, request, tenths)
        if placed is not None:
            least = _tenths_of(_least_mib(request, placed))
            lowest = _with_gpu_memory(inventory, request, least) if least < tenths else None
            yield f"fits with gpu_memory{_up_to(tenths, least, tried=lowest is not None)}{_on_gpus(placed, lowest)}"
            return


def _with_gpu_memory(inventory: Inventory, request: AdviceRequest, tenths: int) -> Placed | None:
    """The place of the instance with this memory on each GPU, if its engine starts with that."""
    memory_mib = _as_read(tenths)
    spec = _with(request.spec, "resources", gpu_memory=memory_mib)
    placed = request.place(inventory, spec)
    return placed if placed is not None and memory_mib >= _least_mib(request, placed) else None


def _tenths_of(memory_mib: int) -> int:
    """The least text of a manifest, in tenths of a GiB, that is not less than this memory."""
    return max(-(-memory_mib * 10 // _MIB_PER_GIB), 1)


def _as_read(tenths: int) -> int:
    """The MiB of a manifest's text in tenths of a GiB."""
    return -(-tenths * _MIB_PER_GIB // 10)


def _more_gpu_memory(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    """Tries the least that the model needs on each GPU, where less is stated: of the fewest GPUs on which it fits."""
    ask: Ask | None = request.ask(request.spec)
    short: set[int] = set()
    while ask is not None:
        short |= {layout.memory_mib for layout, reason in ask.tried if reason is Reason.NEED_GT_STATED}
        ask = ask.otherwise
    for least_mib in sorted(short, reverse=True)[:_MAX_NAMED]:
        tenths = _tenths_of(least_mib)
        placed = request.place(inventory, _with(request.spec, "resources", gpu_memory=_as_read(tenths)))
        if placed is not None:
            yield f"fits with gpu_memory: {tenths / 10:g}GiB{_on_gpus(placed)}"
            return


def _least_mib(request: AdviceRequest, placed: Placed) -> int:
    """The least memory that the engine needs on each of these GPUs; 0 if unknown."""
    own = dict(request.need.by_engine).get(placed.engine, request.need)
    share = own.share_of(placed.layout)
    if share is not None and share.least_mib:
        return share.least_mib
    shown = need_view(request.need, request.spec.resources, placed.engine, placed.layout)
    fixed_mib = sum(size for part, size in shown.parts.items() if part not in (_CACHE, _SIMULATED))
    least_mib = fixed_mib + shown.parts.get(_CACHE, 0) // (shown.sequences or 1)
    return least_mib if shown.per_gpu else least_mib // max(placed.layout.gpus // placed.layout.dp, 1)


def _less_host_memory(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    """Tries the free memory of the nearest miss, where the ask is for more than the engine itself needs."""
    nearest = request.explain.nearest
    if nearest is None or nearest.code != Reason.HOST_MEMORY or not nearest.free_gib:
        return
    tenths = int((nearest.free_gib - 0.01) * 10)
    least_mib = min(need.host_memory_mib for _, need in request.need.by_engine or (("", request.need),))
    least = _tenths_of(least_mib + 1)

    def fits(size: int) -> bool:
        spec = _with(request.spec, "resources", host_memory=_as_read(size))
        return request.place(inventory, spec) is not None

    if tenths >= least and fits(tenths):
        yield f"fits with host_memory{_up_to(tenths, least, tried=least < tenths and fits(least))}"


def _fewer_cpus(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    cpus = request.spec.resources.cpus
    if cpus == "auto" or Reason.CPU not in request.explain.rejected:
        return
    workers = inventory.workers
    most = int((workers.cpu - workers.cpu_claimed).max(initial=0)) / _MILLI
    if 0 < most < cpus and request.place(inventory, _with(request.spec, "resources", cpus=most)) is not None:
        yield f"fits with cpus <= {f'{most:.3f}'.rstrip('0').rstrip('.')}"


def _other_degrees(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    if request.spec.parallel.world is None:
        return
    placed = request.place(inventory, request.spec.model_copy(update={"parallel": Parallel()}))
    if placed is None:
        return
    layout = placed.layout
    degrees = Parallel(tp=layout.tp, pp=layout.pp, dp=layout.dp)
    if request.place(inventory, request.spec.model_copy(update={"parallel": degrees})) is not None:
        yield f"fits with tp: {layout.tp}, pp: {layout.pp}, dp: {layout.dp}"


def _more_workers(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    for workers in MORE_WORKERS:
        if workers > request.spec.resources.max_workers:
            placed = request.place(inventory, _with(request.spec, "resources", max_workers=workers))
            if placed is not None:
                layout = placed.layout
                yield f"fits with max_workers: {workers} on {layout.gpus} GPUs of {layout.workers} workers"
                return


def _free_choice(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    """Tries the spec without its conditions on workers and GPUs: where they are, of which kind, and then both."""
    placement, resources = request.spec.placement, request.spec.resources
    anywhere = {"placement": Placement(strategy=placement.strategy)}
    any_kind = {"resources": resources.model_copy(update=_ANY_KIND)}
    named = [f"placement.{name}" for name in ("workers", "gpus", "labels", "all_of") if getattr(placement, name)]
    kinds = [f"resources.{name}" for name, free in _ANY_KIND.items() if getattr(resources, name) != free]
    both = [*named, *kinds] if named and kinds else []
    for names, update in ((named, anywhere), (kinds, any_kind), (both, anywhere | any_kind)):
        placed = request.place(inventory, request.spec.model_copy(update=update)) if names else None
        if placed is not None:
            yield f"fits on {first_of(_names(inventory, placed), _MAX_NAMED)} without {', '.join(names)}"
            return


def _uncordoned(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    closed = [w for w in inventory.workers.entries if w.ready and not w.schedulable]
    if names := _workers_to_change(inventory, request, closed, lambda worker: replace(worker, schedulable=True)):
        yield f"fits after: {'; '.join(f'gpuward uncordon {name}' for name in names)}"


def _uncordoned_gpus(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    """Tries all cordoned GPUs of a few; then names those that the instance would take."""
    gpus, workers = inventory.gpus, inventory.workers
    closed = {gpus.uuid[row]: row for row in np.flatnonzero(gpus.cordoned[:-1]).tolist()}
    placed = _with_open(inventory, request, list(closed))
    if placed is None:
        return
    if used := [claim.device for claim in placed.claims if claim.device in closed]:
        of = sorted((workers.entries[int(gpus.worker[closed[uuid]])].name, uuid) for uuid in used)
        yield f"fits after: {'; '.join(f'gpuward uncordon {name} --gpu {uuid}' for name, uuid in of)}"


def _with_open(inventory: Inventory, request: AdviceRequest, uuids: Sequence[str]) -> Placed | None:
    """The place of the instance if these GPUs were not cordoned."""
    if not uuids:
        return None
    closed = [inventory.device(uuid) for uuid in uuids]
    inventory.upsert_devices([replace(device, cordoned=False) for device in closed])
    try:
        return request.place(inventory, request.spec)
    finally:
        inventory.upsert_devices(closed)


def _all_ready(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    away = [w for w in inventory.workers.entries if not w.ready and w.schedulable]
    if names := _workers_to_change(inventory, request, away, lambda worker: replace(worker, ready=True)):
        yield f"fits once {', '.join(names)} {_is(names)} ready"


def _without_holders(inventory: Inventory, request: AdviceRequest) -> Iterator[str]:
    reservation = find_victims(inventory, request.ask(request.spec), request.holders) if request.holders else None
    if reservation is not None and reservation.victims:
        names = _names(inventory, reservation.placed)
        victims, on = [o.instance for o in reservation.victims], first_of(names, _MAX_NAMED)
        yield f"fits once {', '.join(victims)} {'has' if len(victims) == 1 else 'have'} ended on {on}"


def _workers_to_change(
    inventory: Inventory,
    request: AdviceRequest,
    workers: list[PlacementWorker],
    change: Callable[[PlacementWorker], PlacementWorker],
) -> list[str]:
    """The names of the workers whose change makes the instance fit: those that it is then placed on, where they do."""
    placed = _with_changed(inventory, request, workers, change)
    if placed is None:
        return []
    used = [worker for worker in workers if worker.id in placed.workers]
    enough = used and _with_changed(inventory, request, used, change) is not None
    return sorted(worker.name for worker in (used if enough else workers))


def _with_changed(
    inventory: Inventory,
    request: AdviceRequest,
    workers: list[PlacementWorker],
    change: Callable[[PlacementWorker], PlacementWorker],
) -> Placed | None:
    """The place of the instance if these workers were changed."""
    if not workers:
        return None
    inventory.upsert_workers([change(worker) for worker in workers])
    try:
        return request.place(inventory, request.spec)
    finally:
        inventory.upsert_workers(workers)


def _with(spec: DeploymentSpec, part: str, **changes: Any) -> DeploymentSpec:
    return spec.model_copy(update={part: getattr(spec, part).model_copy(update=changes)})


def _up_to(most: int, least: int, *, tried: bool) -> str:
    """A range of memory in tenths of a GiB, of which both ends were tried; else its upper end alone.

    A range that begins at a tenth of a GiB has no end below.
    """
    if not tried:
        return f": {most / 10:g}GiB"
    return f" <= {most / 10:g}GiB" + (f" (at least {least / 10:g}GiB)" if least > 1 else "")


def _on_gpus(*places: Placed | None) -> str:
    """The number of GPUs, or the least and the greatest of several places."""
    counts = sorted({placed.layout.gpus for placed in places if placed is not None})
    return f" on {' to '.join(map(str, [counts[0], *counts[1:][-1:]]))} GPU{'s' * (counts[-1] > 1)}"


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _names(inventory: Inventory, placed: Placed) -> list[str]:
    return sorted(w.name for w in inventory.workers.entries if w.id in placed.workers)


_TRIALS: Final[tuple[Callable[[Inventory, AdviceRequest], Iterator[str]], ...]] = (
    _other_degrees, _free_choice, _uncordoned, _uncordoned_gpus, _all_ready, _less_gpu_memory, _more_gpu_memory,
    _less_host_memory, _fewer_cpus, _more_workers, _without_holders,
)  # fmt: skip
