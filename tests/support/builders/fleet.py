"""Fleets for the scheduler's tests: workers and devices, as the ledger gives them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from controller.domain.placement import DeviceState, Placed, PlacementWorker
from controller.scheduling.inventory.capacity import Inventory

GIB = 1024


@dataclass
class Fleet:
    """Workers and devices, changeable until they become an inventory."""

    workers: dict[str, PlacementWorker] = field(default_factory=dict)
    devices: dict[str, DeviceState] = field(default_factory=dict)

    def add(
        self,
        name: str,
        gpus: Sequence[int] = (),
        *,
        os: str = "linux",
        arch: str = "x86_64",
        driver: str | None = "580.95",
        host_memory: int = 1024 * GIB,
        cpus: int = 64,
        labels: Mapping[str, str] | None = None,
        **flags: bool,
    ) -> "Fleet":
        """Adds a worker with GPUs of these sizes in MiB; `flags` are ready, schedulable, simulated."""
        facts = {"ready": True, "schedulable": True, "simulated": False} | flags
        self.workers[name] = PlacementWorker(
            id=f"id-{name}", name=name, os=os, arch=arch, driver=driver, labels=labels or {}, **facts
        )
        self._device(f"host-{name}", name, "host", -1, host_memory, cpus * 1000)
        for index, memory in enumerate(gpus):
            self._device(f"{name}/{index}", name, "gpu", index, memory, 0)
        return self

    def _device(self, uuid: str, worker: str, kind: str, index: int, memory: int, cpu_milli: int) -> None:
        self.devices[uuid] = DeviceState(
            uuid=uuid,
            worker_id=f"id-{worker}",
            kind=kind,  # type: ignore[arg-type] # the callers above write one of the two
            index=index,
            model="H",
            compute_capability=(9, 0) if kind == "gpu" else None,
            memory_mib=memory,
            cpu_milli=cpu_milli,
            claimed_mib=0,
            claimed_cpu_milli=0,
            claims=0,
            exclusive_claims=0,
            healthy=True,
            mig_mode=False,
        )

    def set(self, uuid: str, **changes: object) -> "Fleet":
        """Changes a device."""
        self.devices[uuid] = replace(self.devices[uuid], **changes)  # type: ignore[arg-type] # names are the fields'
        return self

    def claim(self, uuid: str, memory: int | None = None) -> "Fleet":
        """Adds a shared claim of that size, or an exclusive one without a size."""
        device = self.devices[uuid]
        return self.set(
            uuid,
            claimed_mib=device.claimed_mib + (device.memory_mib if memory is None else memory),
            claims=device.claims + 1,
            exclusive_claims=device.exclusive_claims + (memory is None),
        )

    def inventory(self, shuffle: int | None = None) -> Inventory:
        """The inventory; the seed decides the order of its input."""
        workers, devices = list(self.workers.values()), list(self.devices.values())
        if shuffle is not None:
            chance = random.Random(shuffle)  # noqa: S311 - an order, not a secret
            chance.shuffle(workers)
            chance.shuffle(devices)
        inventory = Inventory()
        inventory.upsert_devices(devices)
        inventory.upsert_workers(workers)
        return inventory


def gpus_of(placed: Placed) -> list[str]:
    """The GPUs of a decision by rank, without the hosts."""
    return [claim.device for rank in range(len(placed.workers)) for claim in placed.of_rank(rank)[:-1]]


def gang_of(placed: Placed) -> dict[str, list[str]]:
    """The GPUs of each rank by its worker's name, the leader first."""
    return {
        worker.removeprefix("id-"): [claim.device for claim in placed.of_rank(rank)[:-1]]
        for rank, worker in enumerate(placed.workers)
    }
