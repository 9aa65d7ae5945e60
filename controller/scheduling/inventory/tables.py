"""The parts of the inventory: arrays of GPUs and workers, the loads of instances, and the observed demand.

An array has one row per GPU or per worker, in an order that does not depend on the order of the input.

The GPU arrays have one more row than there are GPUs: the placeholder GPU, on which no ask fits. It pads smaller groups
where groups of several sizes are processed together.
"""

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.domain.admission import Demand, InstanceLoad
from controller.domain.placement import DeviceState, PlacementWorker

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
NEVER: Final = np.iinfo(np.int64).max  # sorts after every real value
UNKNOWN_CAPABILITY: Final = -1
UNCLAIMABLE: Final = -1  # as free memory: not even 0 MiB can be claimed
_MAJOR: Final = 1000  # 9.0 becomes 9000, so capabilities compare as numbers
_NONE: Final[Mapping[str, int]] = MappingProxyType({})  # made once: lookups are frequent
_RECENT: Final = 1_000  # instances that have ended and still count
_CHANGED_PERCENT: Final = 10


def nth_smallest(values: Ints, n: int) -> Ints:
    """The n-th smallest value of each row, counted from 1; NEVER where a row is shorter."""
    if n > values.shape[1]:
        return np.full(len(values), NEVER, dtype=np.int64)
    if n == 1:
        least: Ints = values.min(axis=1)
        return least
    nth: Ints = np.partition(values, n - 1, axis=1)[:, n - 1]
    return nth


def capability_number(capability: tuple[int, int] | None) -> int:
    """A compute capability as one number. Unknown is below every real one."""
    return UNKNOWN_CAPABILITY if capability is None else capability[0] * _MAJOR + capability[1]


class Platform(NamedTuple):
    """The properties that decide engine compatibility. Many workers share one platform."""

    os: str
    arch: str
    driver: str | None
    simulated: bool
    engines: frozenset[str] | None = None  # installed; None if unknown
    containers: bool = False  # of a Docker engine
    container_gpus: bool = False  # which can give them GPUs


class Kind(NamedTuple):
    """GPUs of one kind are interchangeable. Each MIG slice is a kind of its own, since a process can use only one."""

    vendor: str
    model: str
    slice: str = ""  # UUID; empty: whole GPUs


def _platform_of(worker: PlacementWorker) -> Platform:
    docker = worker.containers
    usable = docker is not None and docker.usable
    gpus = docker is not None and docker.usable and docker.gpus
    return Platform(worker.os, worker.arch, worker.driver, worker.simulated, worker.engines, usable, gpus)


def _kind_of(device: DeviceState) -> Kind:
    return Kind(device.vendor, device.model, "" if device.parent is None else device.uuid)


_Table = TypeVar("_Table", "GpuTable", "WorkerTable")


def copy_of(table: _Table) -> _Table:
    """A table with the same rows in arrays and lists of its own."""
    own: dict[str, Any] = {column.name: getattr(table, column.name).copy() for column in fields(table)}
    return replace(table, **own)


@dataclass(slots=True)
class GpuTable:
    """One row per GPU, sorted by worker row, kind, GPU index, UUID. Memory in MiB."""

    uuid: list[str]
    worker: Ints  # row of the worker
    index: Ints
    kind: Ints  # index into kinds
    kinds: list[Kind]
    total: Ints
    reserved: Ints
    foreign: Ints
    claimed: Ints
    claims: Ints
    exclusive: Ints  # exclusive claims
    capability: Ints
    healthy: Bools
    mig: Bools
    cordoned: Bools
    instances: Ints
    free: Ints  # memory for a shared claim now; UNCLAIMABLE where none is possible
    whole: Ints  # memory for an exclusive claim now; UNCLAIMABLE where none is possible

    def write(self, row: int, device: DeviceState) -> bool:
        """Writes a device that keeps its row. False: at most its claims and its use changed."""
        lasting = (
            device.memory_mib, device.reserved_mib, capability_number(device.compute_capability), device.healthy,
            device.mig_mode, device.cordoned,
        )  # fmt: skip
        arrays = (self.total, self.reserved, self.capability, self.healthy, self.mig, self.cordoned)
        changed = any(array[row] != value for array, value in zip(arrays, lasting, strict=True))
        for array, value in zip(arrays, lasting, strict=True):
            array[row] = value
        self.foreign[row] = device.foreign_mib
        self.claimed[row] = device.claimed_mib
        self.claims[row] = device.claims
        self.exclusive[row] = device.exclusive_claims
        self.derive(row)
        return changed

    def add_claims(self, row: int, memory_mib: int, count: int, exclusive: int) -> None:
        """Adds claims, or removes them with negative figures."""
        self.claimed[row] += memory_mib
        self.claims[row] += count
        self.exclusive[row] += exclusive
        self.derive(row)

    def derive(self, row: int) -> None:
        """Computes `free` and `whole` of a row. Only an exclusive claim gets the reserved memory too."""
        usable = self.healthy[row] and not self.mig[row] and not self.cordoned[row]
        free = self.total[row] - self.reserved[row] - self.claimed[row] - self.foreign[row]
        self.free[row] = max(free, UNCLAIMABLE) if usable and not self.exclusive[row] else UNCLAIMABLE
        untouched = usable and not self.claims[row] and not self.foreign[row]
        self.whole[row] = self.total[row] if untouched else UNCLAIMABLE

    def usable(self) -> Bools:
        """By GPU: whether instances may be placed there, whatever is free."""
        usable: Bools = self.healthy & ~self.mig & ~self.cordoned
        return usable

    def derive_all(self) -> None:
        """`derive` for every row at once."""
        usable = self.usable()
        free = np.maximum(self.total - self.reserved - self.claimed - self.foreign, UNCLAIMABLE)
        self.free[:] = np.where(usable & (self.exclusive == 0), free, UNCLAIMABLE)
        untouched = usable & (self.claims == 0) & (self.foreign == 0)
        self.whole[:] = np.where(untouched, self.total, UNCLAIMABLE)


@dataclass(slots=True)
class WorkerTable:
    """One row per worker, sorted by name, with its host device. Memory in MiB, CPU in thousandths of a core."""

    entries: list[PlacementWorker]
    first_gpu: Ints  # worker i has the GPUs first_gpu[i] : first_gpu[i + 1]
    ready: Bools
    schedulable: Bools
    disk_full: Bools
    platform: Ints  # index into platforms
    platforms: list[Platform]
    host_uuid: list[str]  # "" if the host device is unknown
    host_ok: Bools
    memory: Ints  # without the reserved part
    memory_claimed: Ints
    cpu: Ints
    cpu_claimed: Ints
    instances: Ints

    def write_state(self, row: int, state: PlacementWorker) -> None:
        """Writes a state that differs at most in readiness and in what an operator or the disk allows."""
        self.entries[row] = state
        self.ready[row] = state.ready
        self.schedulable[row] = state.schedulable
        self.disk_full[row] = state.disk_full

    def write_host(self, row: int, device: DeviceState) -> bool:
        """Writes the host device. False: at most its free memory and CPU changed."""
        changed = self.host_uuid[row] != device.uuid or bool(self.host_ok[row]) != device.healthy
        self.host_uuid[row] = device.uuid
        self.host_ok[row] = device.healthy
        self.memory[row] = device.memory_mib - device.reserved_mib
        self.memory_claimed[row] = device.claimed_mib
        self.cpu[row] = device.cpu_milli
        self.cpu_claimed[row] = device.claimed_cpu_milli
        return changed


def build_tables(
    workers: Iterable[PlacementWorker], devices: Mapping[str, DeviceState]
) -> tuple[WorkerTable, GpuTable, dict[str, int]]:
    """Builds both tables.

    Returns:
        Both tables, and rows by UUID: a GPU's row in its table, a host device's row in the workers' table. Devices of
        unknown workers have no row.
    """
    entries = sorted(workers, key=lambda w: (w.name, w.id))
    row_of_worker = {w.id: row for row, w in enumerate(entries)}
    known = [d for d in devices.values() if d.worker_id in row_of_worker]
    gpus = [d for d in known if d.kind == "gpu"]
    own = {d.uuid: _kind_of(d) for d in gpus}
    kinds = sorted(set(own.values()))
    number = {kind: i for i, kind in enumerate(kinds)}
    kind_of = {uuid: number[kind] for uuid, kind in own.items()}
    gpus.sort(key=lambda d: (row_of_worker[d.worker_id], kind_of[d.uuid], d.index, d.uuid))
    gpu_table = _gpu_table(gpus, row_of_worker, kinds, kind_of)
    worker_table = _worker_table(entries, gpu_table)
    rows = {d.uuid: row for row, d in enumerate(gpus)}
    for host in sorted((d for d in known if d.kind == "host"), key=lambda d: d.uuid):
        rows[host.uuid] = row_of_worker[host.worker_id]
        worker_table.write_host(rows[host.uuid], host)
    return worker_table, gpu_table, rows


def _gpu_table(
    gpus: list[DeviceState], row_of_worker: Mapping[str, int], kinds: list[Kind], kind_of: Mapping[str, int]
) -> GpuTable:
    def ints(values: Iterable[int], placeholder: int = 0) -> Ints:
        return np.fromiter((*values, placeholder), dtype=np.int64, count=len(gpus) + 1)

    table = GpuTable(
        uuid=[d.uuid for d in gpus],
        worker=ints((row_of_worker[d.worker_id] for d in gpus), -1),
        index=ints((d.index for d in gpus), -1),
        kind=ints((kind_of[d.uuid] for d in gpus), -1),
        kinds=kinds,
        total=ints((d.memory_mib for d in gpus), UNCLAIMABLE),
        reserved=ints(d.reserved_mib for d in gpus),
        foreign=ints(d.foreign_mib for d in gpus),
        claimed=ints(d.claimed_mib for d in gpus),
        claims=ints(d.claims for d in gpus),
        exclusive=ints(d.exclusive_claims for d in gpus),
        capability=ints((capability_number(d.compute_capability) for d in gpus), UNKNOWN_CAPABILITY),
        healthy=np.array([*(d.healthy for d in gpus), False], dtype=np.bool_),
        mig=np.array([*(d.mig_mode for d in gpus), False], dtype=np.bool_),
        cordoned=np.array([*(d.cordoned for d in gpus), False], dtype=np.bool_),
        instances=np.zeros(len(gpus) + 1, dtype=np.int64),
        free=np.full(len(gpus) + 1, UNCLAIMABLE, dtype=np.int64),
        whole=np.full(len(gpus) + 1, UNCLAIMABLE, dtype=np.int64),
    )
    table.derive_all()
    return table


def _worker_table(entries: list[PlacementWorker], gpus: GpuTable) -> WorkerTable:
    def zeros() -> Ints:
        return np.zeros(len(entries), dtype=np.int64)

    platform_of = [_platform_of(w) for w in entries]
    number = {platform: i for i, platform in enumerate(dict.fromkeys(platform_of))}
    return WorkerTable(
        entries=entries,
        first_gpu=np.searchsorted(gpus.worker[:-1], np.arange(len(entries) + 1)).astype(np.int64),
        ready=np.array([w.ready for w in entries], dtype=np.bool_),
        schedulable=np.array([w.schedulable for w in entries], dtype=np.bool_),
        disk_full=np.array([w.disk_full for w in entries], dtype=np.bool_),
        platform=np.array([number[p] for p in platform_of], dtype=np.int64),
        platforms=list(number),
        host_uuid=[""] * len(entries),
        host_ok=np.zeros(len(entries), dtype=np.bool_),
        memory=zeros(),
        memory_claimed=zeros(),
        cpu=zeros(),
        cpu_claimed=zeros(),
        instances=zeros(),
    )


class Loads:
    """The load of each instance, with counts by deployment."""

    def __init__(self) -> None:
        self._by_instance: dict[str, InstanceLoad] = {}
        self._on_workers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._on_gpus: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def copy(self) -> Self:
        twin = copy.copy(self)
        twin._part()  # noqa: SLF001 - a copy of this object
        return twin

    def _part(self) -> None:
        self._by_instance = dict(self._by_instance)
        self._on_workers = _copied(self._on_workers)
        self._on_gpus = _copied(self._on_gpus)

    def __iter__(self) -> Iterator[InstanceLoad]:
        return iter(self._by_instance.values())

    def get(self, instance: str) -> InstanceLoad | None:
        return self._by_instance.get(instance)

    def on_workers(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by worker id."""
        return self._on_workers.get(deployment_uid, _NONE)

    def on_gpus(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by GPU UUID."""
        return self._on_gpus.get(deployment_uid, _NONE)

    def add(self, load: InstanceLoad) -> None:
        """Adds the load of an instance without a load."""
        self._by_instance[load.instance] = load
        self._on_workers[load.deployment_uid].update(load.workers)
        self._on_gpus[load.deployment_uid].update(load.gpus)

    def remove(self, load: InstanceLoad) -> None:
        del self._by_instance[load.instance]
        for counts, keys in ((self._on_workers, load.workers), (self._on_gpus, load.gpus)):
            counter = counts[load.deployment_uid]
            counter.subtract(keys)
            for key in keys:
                if not counter[key]:
                    del counter[key]
            if not counter:
                del counts[load.deployment_uid]


def _copied(counts: Mapping[str, Counter[str]]) -> defaultdict[str, Counter[str]]:
    return defaultdict(Counter, {uid: of_it.copy() for uid, of_it in counts.items()})


class ObservedDemand:
    """Live and recent instances by their demand.

    Placement uses `known`, which follows only after a good part has changed: all that is derived from it is then
    computed again. `version` rises with each such change.
    """

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._recent: deque[Demand] = deque()
        self._changes = 0
        self.known: Mapping[Demand, int] = {}
        self.version = 0

    def add(self, demand: Demand, count: int = 1) -> None:
        """Adds instances of this demand."""
        self._counts[demand] += count
        self._changes += count

    def remove(self, demand: Demand) -> None:
        """Notes that an instance has ended. It counts until many others have ended after it."""
        self._recent.append(demand)
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            self._counts += Counter()  # drops counts of zero
            self._changes += 1

    def settle(self) -> None:
        """Updates `known` if enough has changed."""
        if self._changes and self._changes * 100 >= self._counts.total() * _CHANGED_PERCENT:
            self.known, self._changes = dict(self._counts), 0
            self.version += 1
