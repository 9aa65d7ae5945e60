"""What can be claimed and what is claimed, as arrays: a cache of the ledger, never the ledger itself.

Rows come in as the ledger is read and are updated in place; only a change of structure (another worker, another GPU,
other labels) lays the arrays out anew. What a pass reserves stands upon a device's row until that row is read again.
Every change of a row is noted in a log, so that a search that comes again looks at what changed since, and at no more.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from controller.domain.holdings import InstanceLoad
from controller.domain.placement import DeviceState, Placed, PlannedClaim, WorkerFacts
from controller.scheduling.inventory.demand import DemandSeen
from controller.scheduling.inventory.groups import GroupTable, TouchLog, build_groups
from controller.scheduling.inventory.load import Loads
from controller.scheduling.inventory.segments import Bools
from controller.scheduling.inventory.tables import GpuTable, WorkerTable, build_tables


class Inventory:
    """Workers, devices and loads. Not for several threads."""

    def __init__(self) -> None:
        self._facts: dict[str, WorkerFacts] = {}
        self._devices: dict[str, DeviceState] = {}
        self._of_worker: defaultdict[str, set[str]] = defaultdict(set)
        self._loads = Loads()
        self._passed: dict[str, Placed] = {}  # by instance, what rollback takes back
        self._reserved: defaultdict[str, dict[str, PlannedClaim]] = defaultdict(dict)  # by device and instance
        self._stale = True
        self.log = TouchLog()
        # What searches keep, by what they looked for; forgotten when anything but claims, use and loads changes.
        self.searches: OrderedDict[Hashable, Any] = OrderedDict()
        self.demand = DemandSeen()
        self._lay_out()

    @property
    def groups(self) -> GroupTable:
        """One row per kind of GPUs of each worker."""
        if self._stale:
            self._lay_out()
        return self._groups

    @property
    def workers(self) -> WorkerTable:
        """One row per worker, by name."""
        if self._stale:
            self._lay_out()
        return self._workers

    @property
    def gpus(self) -> GpuTable:
        """One row per GPU, by worker and index."""
        if self._stale:
            self._lay_out()
        return self._gpus

    @property
    def row_of_name(self) -> Mapping[str, int]:
        """The worker's row by its name."""
        if self._stale:
            self._lay_out()
        return self._row_of_name

    def worker(self, worker_id: str) -> WorkerFacts:
        """The facts of a worker that is known."""
        return self._facts[worker_id]

    def gpu_row(self, uuid: str) -> int | None:
        """The row of this GPU, None where no known worker has it."""
        if self._stale:
            self._lay_out()
        device = self._devices.get(uuid)
        return self._row.get(uuid) if device is not None and device.kind == "gpu" else None

    # What the ledger says

    def upsert_workers(self, workers: Iterable[WorkerFacts]) -> None:
        """Takes over workers; a change of readiness alone is cheap."""
        for new in workers:
            old = self._facts.get(new.id)
            self._facts[new.id] = new
            if self._stale:
                continue
            if old is None or replace(old, ready=new.ready, schedulable=new.schedulable) != new:
                self._stale = True
            else:
                self._workers.write_facts(self._row_of_id[new.id], new)
                if old != new:
                    self.searches.clear()

    def remove_workers(self, ids: Iterable[str]) -> None:
        """Forgets workers and their devices."""
        for worker_id in ids:
            if self._facts.pop(worker_id, None) is not None:
                self._stale = True
            self.remove_devices(self._of_worker.pop(worker_id, ()))

    def upsert_devices(self, devices: Iterable[DeviceState]) -> None:
        """Takes over devices with what is claimed of them; drops what was reserved of them before."""
        for new in devices:
            old = self._devices.get(new.uuid)
            self._devices[new.uuid] = new
            self._forget_reserved(new.uuid)
            row = None if self._stale else self._row.get(new.uuid)
            if old is not None and _place_of(old) == _place_of(new):
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
        """Forgets devices."""
        for uuid in tuple(uuids):
            old = self._devices.pop(uuid, None)
            self._forget_reserved(uuid)
            if old is not None:
                self._of_worker[old.worker_id].discard(uuid)
                self._stale = True

    def _forget_reserved(self, uuid: str) -> None:
        """The row tells now what is claimed, so whose reservation it does not confirm runs nowhere."""
        for instance in self._reserved.pop(uuid, ()):
            load = self._loads.get(instance)
            if load is not None and load.demand is None:
                self.remove_load([instance])

    def set_load(self, loads: Iterable[InstanceLoad]) -> None:
        """Replaces what is known of who runs where by exactly these."""
        fresh = {load.instance: load for load in loads}
        self.remove_load([load.instance for load in self._loads if load.instance not in fresh])
        self.upsert_load(fresh.values())

    def upsert_load(self, loads: Iterable[InstanceLoad]) -> None:
        """Takes over where these instances run."""
        for load in loads:
            old = self._loads.get(load.instance)
            if old == load:
                continue
            if old is not None:
                self.remove_load([load.instance])
            self._loads.add(load)
            self._count(load, 1)
            if load.demand is not None:
                self.demand.add(load.demand)

    def remove_load(self, instances: Iterable[str]) -> None:
        """Forgets these instances; those that are not known are passed over."""
        for instance in instances:
            load = self._loads.get(instance)
            if load is not None:
                self._loads.remove(load)
                self._count(load, -1)
                if load.demand is not None:
                    self.demand.remove(load.demand)

    # What a pass does

    def reserve(self, placed: Placed, deployment_uid: str) -> None:
        """Marks the claims of a decision as taken, so that the next decision sees them."""
        for claim in placed.claims:
            self._reserved[claim.device][placed.instance] = claim
            self._take(claim, 1)
        gpus = tuple(c.device for c in placed.claims if self._devices[c.device].kind == "gpu")
        self.upsert_load([InstanceLoad(placed.instance, deployment_uid, placed.workers, gpus)])
        self._passed[placed.instance] = placed

    def lift(self, claims: Iterable[PlannedClaim]) -> None:
        """Thinks claims of the ledger away, until they are put back."""
        for claim in claims:
            self._take(claim, -1)

    def put_back(self, claims: Iterable[PlannedClaim]) -> None:
        """Takes back what `lift` did with these."""
        for claim in claims:
            self._take(claim, 1)

    def begin_pass(self) -> None:
        """Starts a pass: `rollback` takes back what is reserved from here on."""
        self._passed.clear()
        self.demand.settle()

    def rollback(self) -> None:
        """Takes back the whole pass, last decision first: after a plan, or a commit that failed."""
        for placed in reversed(tuple(self._passed.values())):
            self.unreserve(placed)

    def unreserve(self, placed: Placed) -> None:
        """Takes back one decision of the pass (its commit lost a race), but for devices read again since."""
        del self._passed[placed.instance]
        for claim in placed.claims:
            if self._reserved.get(claim.device, {}).pop(placed.instance, None) is not None:
                self._take(claim, -1)
        self.remove_load([placed.instance])

    def deployment_on(self, deployment_uid: str) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Instances of the deployment by worker id, and by GPU UUID."""
        return self._loads.on_workers(deployment_uid), self._loads.on_gpus(deployment_uid)

    def label_mask(self, key: str, value: str) -> Bools:
        """The workers that carry this label; kept until the layout changes."""
        facts = self.workers.facts
        found = self._label_masks.get((key, value))
        if found is None:
            found = np.fromiter((w.labels.get(key) == value for w in facts), dtype=np.bool_, count=len(facts))
            self._label_masks[key, value] = found
        return found

    # The arrays

    def _lay_out(self) -> None:
        self._workers, self._gpus, self._row = build_tables(self._facts.values(), self._devices)
        self._groups = build_groups(self._workers, self._gpus)
        self.searches.clear()
        self._row_of_id = {w.id: row for row, w in enumerate(self._workers.facts)}
        self._row_of_name = {w.name: row for row, w in enumerate(self._workers.facts)}
        self._label_masks: dict[tuple[str, str], Bools] = {}
        self._stale = False
        for claims in self._reserved.values():
            for claim in claims.values():
                self._take(claim, 1)
        for load in self._loads:
            self._count(load, 1)

    def _take(self, claim: PlannedClaim, sign: int) -> None:
        """Adds a reservation to the arrays, or takes it off them."""
        row = None if self._stale else self._row.get(claim.device)
        if row is None:
            return
        gpu = self._devices[claim.device].kind == "gpu"
        if gpu:
            self._gpus.take(row, sign * claim.memory_mib, sign, sign * claim.exclusive)
        else:
            self._workers.memory_claimed[row] += sign * claim.memory_mib
            self._workers.cpu_claimed[row] += sign * claim.cpu_milli
        self._touch(row, gpu=gpu)

    def _touch(self, row: int, *, gpu: bool) -> None:
        """Notes the GPU's group, or all of the worker's."""
        if gpu:
            self.log.add(int(self._groups.of_gpu[row]))
        else:
            for group in range(int(self._groups.first[row]), int(self._groups.first[row + 1])):
                self.log.add(group)

    def _count(self, load: InstanceLoad, sign: int) -> None:
        """Adds an instance to the arrays, or takes it off them; a stale layout counts all anew anyway."""
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


def _place_of(device: DeviceState) -> tuple[object, ...]:
    """What decides the row of a device."""
    return device.worker_id, device.kind, device.index, device.vendor, device.model
