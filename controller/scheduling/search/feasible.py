"""Feasibility: the workers and GPUs that an ask may have. One filter for automatic and manual selection.

Every check is a stage, and the stages have a fixed order. A worker is rejected by the first check that it fails. GPUs
are rejected singly, and their group by the stage that leaves too few of them.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from controller.domain.placement import Ask, Compatibility, Layout
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.inventory.groups import ALIKE, ALL, OF_ONE_KIND
from controller.scheduling.inventory.tables import (
    UNKNOWN_CAPABILITY,
    Bools,
    GpuTable,
    Ints,
    Platform,
    capability_number,
)
from schemas.manifest.resources import matches_model
from schemas.placement_reasons import Reason

STAGES: Final = (
    Reason.NOT_READY,
    Reason.CORDONED,
    Reason.DISK_PRESSURE,
    Reason.NOT_SELECTED,
    Reason.LABEL_MISMATCH,
    Reason.OS_ARCH,
    Reason.RUNTIME_UNSUPPORTED,
    Reason.ENGINE_MISSING,
    Reason.ENGINE_UNSUPPORTED,
    Reason.DRIVER_TOO_OLD,
    Reason.NOT_ALL_SELECTED_READY,
    Reason.COUNT_MISMATCH,
    Reason.GPU_MODEL,
    Reason.MIG_MODE,
    Reason.GPU_CORDONED,
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
_OF_PLATFORM: Final = (
    Reason.OS_ARCH, Reason.RUNTIME_UNSUPPORTED, Reason.ENGINE_MISSING, Reason.ENGINE_UNSUPPORTED,
    Reason.DRIVER_TOO_OLD,
)  # fmt: skip
STAGE: Final = {reason: stage for stage, reason in enumerate(STAGES)}
FITS: Final = len(STAGES)
Stages = NDArray[np.int8]
_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_INDEX: Final = re.compile("[0-9]{1,6}")
# Names that operating systems give the same architecture.
_ARCH_ALIASES: Final = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True)
class UnknownNames:
    """Names that mean no worker and no GPU, or several GPUs."""

    names: tuple[str, ...] = ()  # of no worker and no GPU
    ambiguous: tuple[str, ...] = ()  # of several GPUs, each with its remedy
    needed: bool = False  # an instance takes all that are named, so it needs these

    def __len__(self) -> int:
        return len(self.names) + len(self.ambiguous)


@dataclass(frozen=True, slots=True)
class Selection:
    """The workers and GPUs that an ask selects."""

    workers: Bools
    gpus: Bools  # never the placeholder GPU
    needed: Bools  # by worker: without it the ask fits nowhere
    unknown: UnknownNames = UnknownNames()


@dataclass(frozen=True, slots=True)
class Named:
    """GPUs named by hand, of which an instance takes all."""

    count: int  # of those that exist
    workers: int  # number of their workers
    of_worker: Ints  # their number by worker


@dataclass(frozen=True, slots=True)
class Request:
    """An ask resolved against an inventory, without all that depends on claims."""

    inventory: Inventory
    ask: Ask
    failed_at: Stages  # by worker: stage of the first failed check of the worker itself, else FITS
    outside: Bools  # by worker: the spec leaves it out, by names or labels, in whatever state it is
    chosen: Bools  # by GPU: selected, and of an accepted vendor
    of_model: Bools  # by GPU: chosen, and of an accepted model
    claimable: Bools  # by GPU: of an accepted model, and not in MIG mode
    capable: Bools  # by GPU: claimable, of sufficient compute capability, and large enough for the spec
    restricted: bool  # whether not all GPUs are capable
    fits_version: Bools  # by GPU: of sufficient compute capability
    named: Named | None
    unknown: UnknownNames

    def allows(self, layout: Layout) -> bool:
        """Whether the GPUs named by hand match the layout: their number, and the number of their workers."""
        named = self.named
        return named is None or (named.count == layout.gpus and named.workers == layout.workers)

    def may_serve(self, layout: Layout, wanted: Ints) -> Bools:
        """By group: whether an instance that wants `wanted` GPUs may have them together, though of several kinds.

        GPUs of several kinds must be alike, unless an instance takes each GPU that a user names. A single GPU is in a
        group of its kind, but in a gang it may have to match GPUs of other workers by its size.
        """
        most = ALL if self.named is not None else ALIKE
        level = self.inventory.groups.level
        together = (wanted > 1) | ((layout.workers > 1) & (level == ALIKE))
        may_serve: Bools = (level == OF_ONE_KIND) | ((level <= most) & together)
        return may_serve

    def wanted(self, layout: Layout) -> Ints:
        """By worker: the number of GPUs that the layout takes there."""
        if self.named is not None and self.named.workers > 1:
            return self.named.of_worker
        return np.full(len(self.failed_at), layout.gpus // layout.workers, dtype=np.int64)


def resolve(inventory: Inventory, ask: Ask) -> Request:
    """Runs all checks on the workers themselves and resolves the names selected by hand.

    Asks that differ only in their claims share the result, which is kept with the searches.
    """
    needs_gpu = any(layout.gpus for layout in ask.layouts)
    key = (
        Request, tuple(sorted(ask.labels.items())), ask.workers, ask.gpus, ask.all_workers, ask.all_gpus,
        ask.compatibility, ask.gpu_models, ask.min_gpu_mib, ask.capability_bounds, needs_gpu,
    )  # fmt: skip
    known: Request | None = inventory.searches.get(key)
    if known is None:
        known = inventory.searches[key] = _resolved(inventory, ask)
    return replace(known, ask=ask)


def _resolved(inventory: Inventory, ask: Ask) -> Request:
    workers, gpus = inventory.workers, inventory.gpus
    selected = select(inventory, ask)
    failed_at = np.full(len(workers.entries), FITS, dtype=np.int8)
    for reason, passed in _worker_checks(inventory, ask, selected.workers):
        failed_at[~passed & (failed_at == FITS)] = STAGE[reason]
    outside = ~selected.workers
    for key, value in ask.labels.items():
        outside = outside | ~inventory.label_mask(key, value)
    passed_all = failed_at == FITS
    if selected.unknown.needed or (selected.needed & ~passed_all).any():
        failed_at[selected.workers & passed_all] = STAGE[Reason.NOT_ALL_SELECTED_READY]
    chosen = selected.gpus & _of_vendor(ask, gpus)[gpus.kind]
    of_model = chosen & _of_model(ask, gpus)[gpus.kind]
    claimable = of_model & ~gpus.mig
    fits_version = _fits_version(ask, gpus)
    capable = claimable & fits_version & (gpus.total >= ask.min_gpu_mib)
    return Request(
        inventory=inventory,
        ask=ask,
        failed_at=failed_at,
        outside=outside,
        chosen=chosen,
        of_model=of_model,
        claimable=claimable,
        capable=capable,
        restricted=not capable[:-1].all(),
        fits_version=fits_version,
        named=_named(inventory, selected.gpus) if ask.all_gpus else None,
        unknown=selected.unknown,
    )


def _of_vendor(ask: Ask, gpus: GpuTable) -> Bools:
    """By kind: whether the engine supports its vendor. The last entry is the placeholder GPU's kind, never accepted."""
    vendors = ask.compatibility.vendors
    return np.array([*(not vendors or kind.vendor in vendors for kind in gpus.kinds), False], dtype=np.bool_)


def _of_model(ask: Ask, gpus: GpuTable) -> Bools:
    """By kind: whether the ask accepts its model. The last entry is the placeholder GPU's kind, never accepted."""
    models = ask.gpu_models
    return np.array([*(not models or matches_model(k.model, models) for k in gpus.kinds), False], dtype=np.bool_)


def _fits_version(ask: Ask, gpus: GpuTable) -> Bools:
    oldest = ask.compatibility.min_compute_capability
    fits: Bools = np.ones(len(gpus.capability), dtype=np.bool_)
    if oldest is not None:
        fits &= gpus.capability >= capability_number(oldest)
    if ask.capability_bounds:
        fits &= gpus.capability != UNKNOWN_CAPABILITY
    for bound in ask.capability_bounds:
        fits &= _COMPARE[bound.relation](gpus.capability, capability_number(bound.version))
    return fits


def _named(inventory: Inventory, chosen: Bools) -> Named:
    of_worker = np.bincount(inventory.gpus.worker[chosen], minlength=len(inventory.workers.entries)).astype(np.int64)
    return Named(int(chosen.sum()), int((of_worker > 0).sum()), of_worker)


def _worker_checks(inventory: Inventory, ask: Ask, selected: Bools) -> Iterator[tuple[Reason, Bools]]:
    workers, gpus = inventory.workers, inventory.gpus
    # A worker without a known host device has not reported fully: unknown, and so not ready.
    yield Reason.NOT_READY, workers.ready & workers.host_ok
    yield Reason.CORDONED, workers.schedulable
    yield Reason.DISK_PRESSURE, ~workers.disk_full
    yield Reason.NOT_SELECTED, selected
    for key, value in ask.labels.items():
        yield Reason.LABEL_MISMATCH, inventory.label_mask(key, value)
    needs_gpu = any(layout.gpus for layout in ask.layouts)
    reasons = [platform_reason(ask.compatibility, p, needs_gpu=needs_gpu) for p in workers.platforms]
    for reason in _OF_PLATFORM:
        if reason in reasons:
            yield reason, np.array([r != reason for r in reasons], dtype=np.bool_)[workers.platform]
    if needs_gpu and ask.compatibility.vendors:
        # Rejects workers without any GPU of an accepted vendor. Those without GPUs get count_mismatch instead.
        accepted = _of_vendor(ask, gpus)[gpus.kind]
        has = np.zeros(len(workers.entries), dtype=np.bool_)
        has[gpus.worker[accepted]] = True
        yield Reason.ENGINE_UNSUPPORTED, has | (np.diff(workers.first_gpu) == 0)


def gpu_checks(request: Request, layout: Layout, rows: Ints) -> Iterator[tuple[Reason, Bools]]:
    """The checks of the GPUs in these rows. Each result has the shape of `rows`."""
    gpus, need = request.inventory.gpus, layout.memory_mib
    yield Reason.COUNT_MISMATCH, request.chosen[rows] & request.allows(layout)
    yield Reason.GPU_MODEL, request.of_model[rows]
    yield Reason.MIG_MODE, request.claimable[rows]
    yield Reason.GPU_CORDONED, ~gpus.cordoned[rows]
    yield Reason.GPU_UNHEALTHY, gpus.healthy[rows]
    yield Reason.COMPUTE_CAPABILITY, request.fits_version[rows]
    capacity = gpus.total[rows] if layout.exclusive else gpus.total[rows] - gpus.reserved[rows]
    yield Reason.NEED_GT_CAPACITY, (capacity >= need) & (gpus.total[rows] >= request.ask.min_gpu_mib)
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


def select(inventory: Inventory, ask: Ask) -> Selection:
    """Resolves the names of an ask. Without names all workers and GPUs are selected."""
    workers, gpus = inventory.workers, inventory.gpus
    selected, chosen = np.ones(len(workers.entries), dtype=np.bool_), np.ones(len(gpus.uuid) + 1, dtype=np.bool_)
    needed = np.zeros_like(selected)
    chosen[-1] = False
    if not ask.workers and not ask.gpus:
        return Selection(selected, chosen, needed)
    worker_rows = {name: inventory.row_of_name.get(name) for name in ask.workers}
    gpu_rows = {name: gpu_rows_named(inventory, name) for name in ask.gpus}
    selected[:] = not ask.workers
    selected[[row for row in worker_rows.values() if row is not None]] = True
    if ask.gpus:
        chosen[:] = False
        chosen[[int(rows[0]) for rows in gpu_rows.values() if len(rows) == 1]] = True
        owners = gpus.worker[chosen]
        if not ask.workers:  # if both are named, GPUs of other workers give count_mismatch
            selected[:] = False
            selected[owners] = True
        if ask.all_gpus:
            needed[owners] = True
    if ask.all_workers:
        needed |= selected
    missing_workers = [name for name, row in worker_rows.items() if row is None]
    missing_gpus = [name for name, rows in gpu_rows.items() if not len(rows)]
    ambiguous = [ambiguity(inventory, name, rows) for name, rows in gpu_rows.items() if len(rows) > 1]
    short_of_gpus = ask.all_gpus and bool(missing_gpus or ambiguous)
    unknown = UnknownNames(
        (*missing_workers, *missing_gpus),
        tuple(ambiguous),
        short_of_gpus or (ask.all_workers and bool(missing_workers)),
    )
    return Selection(selected, chosen, needed & selected, unknown)


def gpu_rows_named(inventory: Inventory, name: str) -> Ints:
    """The rows of the GPUs that a UUID or worker:index names; several if they are of different vendors."""
    row = inventory.gpu_row(name)
    if row is not None:
        return np.array([row], dtype=np.int64)
    worker_name, _, index = name.rpartition(":")
    worker = inventory.row_of_name.get(worker_name)
    if worker is None or not _INDEX.fullmatch(index):
        return np.zeros(0, dtype=np.int64)
    first, end = inventory.workers.first_gpu[worker : worker + 2]
    rows: Ints = first + np.flatnonzero(inventory.gpus.index[first:end] == int(index))
    return rows


def ambiguity(inventory: Inventory, name: str, rows: Iterable[int]) -> str:
    """The remedy for a name that several GPUs have."""
    gpus = inventory.gpus
    names = (f"{gpus.uuid[row]} ({gpus.kinds[int(gpus.kind[row])].vendor})" for row in rows)
    return f"{name} means {' or '.join(names)}; write the UUID"


def canonical_arch(arch: str) -> str:
    """The same name for all aliases of a processor architecture, in lower case."""
    name = arch.lower()
    return _ARCH_ALIASES.get(name, name)


def driver_version(driver: str | None) -> tuple[int, ...]:
    """`580.95.05` as (580, 95, 5). Unknown is empty, which is older than any version."""
    match = re.match(r"\d+(\.\d+)*", driver or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _runs_containers(platform: Platform, *, needs_gpu: bool) -> bool:
    return platform.container_gpus if needs_gpu else platform.containers


def platform_reason(compatibility: Compatibility, platform: Platform, *, needs_gpu: bool) -> Reason | None:
    """Why the engine cannot run there; None if it can. The driver matters only if a GPU is needed."""
    arches = {canonical_arch(arch) for arch in compatibility.arch}
    other_os = compatibility.os and platform.os.lower() not in compatibility.os
    if other_os or (arches and canonical_arch(platform.arch) not in arches):
        return Reason.OS_ARCH
    if compatibility.runtime == "docker" and not _runs_containers(platform, needs_gpu=needs_gpu):
        return Reason.RUNTIME_UNSUPPORTED
    installed = platform.engines is None or not compatibility.engine or compatibility.engine in platform.engines
    on_cpu = compatibility.without_gpu and compatibility.without_gpu in (platform.engines or ())
    real = compatibility.simulated_only and not platform.simulated
    if not installed:
        return Reason.ENGINE_MISSING
    if needs_gpu and (on_cpu or real):
        return Reason.ENGINE_UNSUPPORTED
    if needs_gpu and driver_version(platform.driver) < compatibility.min_driver:
        return Reason.DRIVER_TOO_OLD
    return None
