"""The inventory: capacity and claims as arrays. A cache of the ledger, never the ledger itself.

Rows are updated in place as the ledger is read. Only a structural change (a new worker, a new GPU, other labels)
rebuilds the arrays. A reservation counts on a device's row until that row is read again. Every change of a row is added
to a log, so that a repeated search reads only the rows that changed since.
"""

import copy
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np

from controller.domain.admission import Holder, InstanceLoad
from controller.domain.placement import DeviceState, Placed, PlacementWorker, PlannedClaim
from controller.scheduling.inventory.groups import EqualGroups, GroupTable, TouchLog, build_groups
from controller.scheduling.inventory.tables import (
    Bools,
    GpuTable,
    Ints,
    Loads,
    ObservedDemand,
    WorkerTable,
    build_tables,
    copy_of,
)


class Inventory:
    """Workers, devices and loads. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, PlacementWorker] = {}
        self._devices: dict[str, DeviceState] = {}
        self._of_worker: defaultdict[str, set[str]] = defaultdict(set)
        self._loads = Loads()
        self._pass: dict[str, Placed] = {}  # reserved in this pass, by instance
        self._reserved: defaultdict[str, dict[str, PlannedClaim]] = defaultdict(dict)  # by device and instance
        self._stale = True
        self._equal: EqualGroups | None = None
        self.log = TouchLog()
        # Kept searches, by their key. Cleared when anything but claims, use and loads changes.
        self.searches: OrderedDict[Hashable, Any] = OrderedDict()
        self.demand = ObservedDemand()
        self._rebuild()

    @property
    def groups(self) -> GroupTable:
        """One row per kind of GPUs of each worker."""
        if self._stale:
            self._rebuild()
        return self._groups

    @property
    def workers(self) -> WorkerTable:
        """One row per worker, by name."""
        if self._stale:
            self._rebuild()
        return self._workers

    @property
    def gpus(self) -> GpuTable:
        """One row per GPU, by worker and index."""
        if self._stale:
            self._rebuild()
        return self._gpus

    @property
    def equal_groups(self) -> EqualGroups:
        """The states of groups, kept until the arrays are rebuilt."""
        groups = self.groups
        if self._equal is None:
            self._equal = EqualGroups(self._workers, self._gpus, groups, self.log)
        return self._equal

    def groups_on(self, worker_ids: Iterable[str]) -> Ints:
        """The groups of these workers. Unknown workers are ignored."""
        first = self.groups.first
        rows = (self._row_of_id[id_] for id_ in worker_ids if id_ in self._row_of_id)
        return np.array([group for row in rows for group in range(first[row], first[row + 1])], dtype=np.int64)

    @property
    def row_of_name(self) -> Mapping[str, int]:
        if self._stale:
            self._rebuild()
        return self._row_of_name

    def worker(self, worker_id: str) -> PlacementWorker:
        return self._known[worker_id]

    def hosts_at(self, address: str) -> list[str]:
        """The host devices of all known workers at this address; several agents may run there."""
        rows = zip(self.workers.host_uuid, self.workers.entries, strict=True)
        return [uuid for uuid, entries in rows if uuid and address and entries.host == address]

    def worker_row(self, worker_id: str) -> int | None:
        if self._stale:
            self._rebuild()
        return self._row_of_id.get(worker_id)

    def gpu_row(self, uuid: str) -> int | None:
        """The row of this GPU; None if no known worker has it."""
        if self._stale:
            self._rebuild()
        device = self._devices.get(uuid)
        return self._row.get(uuid) if device is not None and device.kind == "gpu" else None

    def host_row(self, uuid: str) -> int | None:
        """The row of the worker that has this host device; None if no known worker has it."""
        if self._stale:
            self._rebuild()
        device = self._devices.get(uuid)
        return self._row.get(uuid) if device is not None and device.kind == "host" else None

    def device(self, uuid: str) -> DeviceState:
        return self._devices[uuid]

    # From the ledger

    def upsert_workers(self, workers: Iterable[PlacementWorker]) -> None:
        """Adds or updates workers. A change of readiness alone is cheap."""
        for new in workers:
            old = self._known.get(new.id)
            self._known[new.id] = new
            if self._stale:
                continue
            if (
                old is None
                or replace(old, ready=new.ready, schedulable=new.schedulable, disk_full=new.disk_full) != new
            ):
                self._stale = True
            else:
                self._workers.write_state(self._row_of_id[new.id], new)
                if old != new:
                    self.searches.clear()

    def remove_workers(self, ids: Iterable[str]) -> None:
        for worker_id in ids:
            if self._known.pop(worker_id, None) is not None:
                self._stale = True
            self.remove_devices(self._of_worker.pop(worker_id, ()))

    def upsert_devices(self, devices: Iterable[DeviceState]) -> None:
        """Adds or updates devices with their claims, and drops reservations on them."""
        for new in devices:
            old = self._devices.get(new.uuid)
            self._devices[new.uuid] = new
            self._drop_reservations(new.uuid)
            row = None if self._stale else self._row.get(new.uuid)
            if old is not None and _row_key(old) == _row_key(new):
                if row is not None:
                    self._write(row, new)
            else:
                if old is not None:
                    self._of_worker[old.worker_id].discard(new.uuid)
                self._of_worker[new.worker_id].add(new.uuid)
                self._stale = True

    def _write(self, row: int, device: DeviceState) -> None:
        table = self._gpus if device.kind == "gpu" else self._workers
        changed = table.write(row, device) if isinstance(table, GpuTable) else table.write_host(row, device)
        if changed:
            self.searches.clear()
        self._touch(row, gpu=device.kind == "gpu")

    def remove_devices(self, uuids: Iterable[str]) -> None:
        """Removes devices. Unknown devices are ignored."""
        for uuid in tuple(uuids):
            old = self._devices.pop(uuid, None)
            self._drop_reservations(uuid)
            if old is not None:
                self._of_worker[old.worker_id].discard(uuid)
                self._stale = True

    def _drop_reservations(self, uuid: str) -> None:
        """Drops the reservations on a device that is read again, with their loads: the ledger now has the claims."""
        for instance in self._reserved.pop(uuid, ()):
            load = self._loads.get(instance)
            if load is not None and load.demand is None:
                self.remove_load([instance])

    def upsert_load(self, loads: Iterable[InstanceLoad]) -> None:
        for load in loads:
            old = self._loads.get(load.instance)
            if old == load:
                continue
            if old is not None:
                self.remove_load([load.instance])
            self._loads.add(load)
            self._count_load(load, 1)
            if load.demand is not None:
                self.demand.add(load.demand)

    def remove_load(self, instances: Iterable[str]) -> None:
        """Removes these instances. Unknown instances are ignored."""
        for instance in instances:
            load = self._loads.get(instance)
            if load is not None:
                self._loads.remove(load)
                self._count_load(load, -1)
                if load.demand is not None:
                    self.demand.remove(load.demand)

    # Within a pass

    def reserve(self, placed: Placed, deployment_uid: str) -> None:
        """Counts the claims of a decision, so that the next decision sees them."""
        for claim in placed.claims:
            self._reserved[claim.device][placed.instance] = claim
            self._count_claim(claim, 1)
        gpus = tuple(c.device for c in placed.claims if self._devices[c.device].kind == "gpu")
        self.upsert_load([InstanceLoad(placed.instance, deployment_uid, placed.workers, gpus)])
        self._pass[placed.instance] = placed

    def exclude(self, claims: Iterable[PlannedClaim]) -> None:
        """Treats these claims as free until they are restored."""
        if self._stale:  # a rebuild counts the claims of the ledger again
            self._rebuild()
        for claim in claims:
            self._count_claim(claim, -1)

    def restore(self, claims: Iterable[PlannedClaim]) -> None:
        for claim in claims:
            self._count_claim(claim, 1)

    def begin_pass(self) -> None:
        """Starts a pass: `rollback` takes back what is reserved after this call."""
        self._pass.clear()
        self.demand.settle()

    def rollback(self) -> None:
        """Takes back all decisions of the pass, the last first: after a plan or a failed commit."""
        for placed in reversed(tuple(self._pass.values())):
            self.unreserve(placed)

    def unreserve(self, placed: Placed) -> None:
        """Takes back one decision whose commit lost a race, except on devices that were read again since."""
        del self._pass[placed.instance]
        for claim in placed.claims:
            if self._reserved.get(claim.device, {}).pop(placed.instance, None) is not None:
                self._count_claim(claim, -1)
        self.remove_load([placed.instance])

    def deployment_on(self, deployment_uid: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Number of the deployment's instances by worker id, and by GPU UUID."""
        return self._loads.on_workers(deployment_uid), self._loads.on_gpus(deployment_uid)

    def label_mask(self, key: str, value: str) -> Bools:
        """By worker: whether it has this label. Kept until the arrays are rebuilt."""
        entries = self.workers.entries
        mask = self._label_masks.get((key, value))
        if mask is None:
            mask = np.fromiter((w.labels.get(key) == value for w in entries), dtype=np.bool_, count=len(entries))
            self._label_masks[key, value] = mask
        return mask

    # The arrays

    def _rebuild(self) -> None:
        self._workers, self._gpus, self._row = build_tables(self._known.values(), self._devices)
        self._groups = build_groups(self._workers, self._gpus)
        self._equal = None
        self.searches.clear()
        self._row_of_id = {w.id: row for row, w in enumerate(self._workers.entries)}
        self._row_of_name = {w.name: row for row, w in enumerate(self._workers.entries)}
        self._label_masks: dict[tuple[str, str], Bools] = {}
        self._stale = False
        for claims in self._reserved.values():
            for claim in claims.values():
                self._count_claim(claim, 1)
        for load in self._loads:
            self._count_load(load, 1)

    def _count_claim(self, claim: PlannedClaim, sign: int) -> None:
        """Adds a claim to the arrays, or removes it with sign -1."""
        row = None if self._stale else self._row.get(claim.device)
        if row is None:
            return
        gpu = self._devices[claim.device].kind == "gpu"
        if gpu:
            self._gpus.add_claims(row, sign * claim.memory_mib, sign, sign * claim.exclusive)
        else:
            self._workers.memory_claimed[row] += sign * claim.memory_mib
            self._workers.cpu_claimed[row] += sign * claim.cpu_milli
        self._touch(row, gpu=gpu)

    def _touch(self, row: int, *, gpu: bool) -> None:
        """Notes in the log that the GPU's groups changed, or for a host all groups of its worker."""
        if gpu:
            self.log.add(int(self._groups.of_gpu[row]))
            for group in self._groups.also.get(row, ()):
                self.log.add(group)
        else:
            for group in range(int(self._groups.first[row]), int(self._groups.first[row + 1])):
                self.log.add(group)

    def _count_load(self, load: InstanceLoad, sign: int) -> None:
        """Adds an instance to the arrays, or removes it with sign -1. A rebuild counts all loads itself."""
        if self._stale:
            return
        for worker_id in load.workers:
            if (worker := self._row_of_id.get(worker_id)) is not None:
                self._workers.instances[worker] += sign
                self._touch(worker, gpu=False)
        for uuid in load.gpus:
            if (gpu := self._row.get(uuid)) is not None:
                self._gpus.instances[gpu] += sign
                self._touch(gpu, gpu=True)

    def copy(self) -> Self:
        """A copy of the ledger's state: changes of one inventory do not change the other. Not in a pass."""
        if self._stale:
            self._rebuild()
        twin = copy.copy(self)
        twin._part()  # noqa: SLF001 - a copy of this object
        return twin

    def _part(self) -> None:
        """Copies all that changes in place. Parts that a rebuild replaces stay shared."""
        self._known, self._devices = dict(self._known), dict(self._devices)
        self._of_worker = defaultdict(set, {worker: set(uuids) for worker, uuids in self._of_worker.items()})
        self._loads = self._loads.copy()
        self._pass, self._reserved = {}, defaultdict(dict)
        self._workers, self._gpus = copy_of(self._workers), copy_of(self._gpus)
        self._equal, self._label_masks = None, dict(self._label_masks)
        self.log, self.searches, self.demand = TouchLog(), OrderedDict(), ObservedDemand()
        for demand, count in Counter(load.demand for load in self._loads if load.demand is not None).items():
            self.demand.add(demand, count)


def _row_key(device: DeviceState) -> tuple[object, ...]:
    return device.worker_id, device.kind, device.index, device.vendor, device.model


@contextmanager
def without(inventory: Inventory, holders: Iterable[Holder]) -> Iterator[None]:
    excluded = tuple(holders)
    for holder in excluded:
        inventory.exclude(holder.claims)
    try:
        yield
    finally:
        for holder in excluded:
            inventory.restore(holder.claims)
