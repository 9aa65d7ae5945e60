"""The arrays behind the inventory: one row per GPU, one per worker, in an order that input order cannot change."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from gpuward.controller.domain.placement import DeviceState, WorkerFacts
from gpuward.controller.scheduling.segments import Bools, Ints

UNKNOWN_CAPABILITY: Final = -1
_MAJOR: Final = 1000  # 9.0 is 9000, so that capabilities compare as numbers


def capability_number(capability: tuple[int, int] | None) -> int:
    """A compute capability as one number; unknown is below every real one."""
    return UNKNOWN_CAPABILITY if capability is None else capability[0] * _MAJOR + capability[1]


class Platform(NamedTuple):
    """What engine compatibility looks at; many workers share one."""

    os: str
    arch: str
    driver: str | None
    simulated: bool
    engines: frozenset[str] | None = None  # installed; None: not known


@dataclass(slots=True)
class GpuTable:
    """A row per GPU, sorted by worker row, GPU index, UUID; the GPUs of one worker lie side by side."""

    uuid: list[str]
    worker: Ints  # row of the worker
    index: Ints
    total: Ints  # MiB
    claimed: Ints  # MiB
    claims: Ints
    exclusive: Ints  # exclusive claims
    capability: Ints
    healthy: Bools
    mig: Bools
    instances: Ints

    def write(self, row: int, device: DeviceState) -> None:
        """Takes over the facts of a device that keeps its row."""
        self.total[row] = device.memory_mib
        self.claimed[row] = device.claimed_mib
        self.claims[row] = device.claims
        self.exclusive[row] = device.exclusive_claims
        self.capability[row] = capability_number(device.compute_capability)
        self.healthy[row] = device.healthy
        self.mig[row] = device.mig_mode


@dataclass(slots=True)
class WorkerTable:
    """A row per worker, sorted by name, with its host device. Memory in MiB, CPU in thousandths of a core."""

    facts: list[WorkerFacts]
    first_gpu: Ints  # the GPUs of row i are first_gpu[i] : first_gpu[i + 1]
    ready: Bools
    schedulable: Bools
    platform: Ints  # index into platforms
    platforms: list[Platform]
    host_uuid: list[str]  # "" where the host device is not known
    host_ok: Bools
    memory: Ints
    memory_claimed: Ints
    cpu: Ints
    cpu_claimed: Ints
    instances: Ints

    def write_facts(self, row: int, facts: WorkerFacts) -> None:
        """Takes over facts that differ in readiness at most."""
        self.facts[row] = facts
        self.ready[row] = facts.ready
        self.schedulable[row] = facts.schedulable

    def write_host(self, row: int, device: DeviceState) -> None:
        """Takes over the facts of the host device."""
        self.host_uuid[row] = device.uuid
        self.host_ok[row] = device.healthy
        self.memory[row] = device.memory_mib
        self.memory_claimed[row] = device.claimed_mib
        self.cpu[row] = device.cpu_milli
        self.cpu_claimed[row] = device.claimed_cpu_milli


def build_tables(
    workers: Iterable[WorkerFacts], devices: Mapping[str, DeviceState]
) -> tuple[WorkerTable, GpuTable, dict[str, int]]:
    """Lays out all rows anew.

    Returns:
        Both tables and, by UUID, the row of every GPU in its table and of every host device in the workers' table.
        Devices of unknown workers have none.
    """
    facts = sorted(workers, key=lambda w: (w.name, w.id))
    row_of_worker = {w.id: row for row, w in enumerate(facts)}
    known = [d for d in devices.values() if d.worker_id in row_of_worker]
    gpus = sorted((d for d in known if d.kind == "gpu"), key=lambda d: (row_of_worker[d.worker_id], d.index, d.uuid))
    gpu_table = _gpu_table(gpus, row_of_worker)
    worker_table = _worker_table(facts, gpu_table)
    rows = {d.uuid: row for row, d in enumerate(gpus)}
    for host in sorted((d for d in known if d.kind == "host"), key=lambda d: d.uuid):
        rows[host.uuid] = row_of_worker[host.worker_id]
        worker_table.write_host(rows[host.uuid], host)
    return worker_table, gpu_table, rows


def _gpu_table(gpus: list[DeviceState], row_of_worker: Mapping[str, int]) -> GpuTable:
    def ints(values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(gpus))

    return GpuTable(
        uuid=[d.uuid for d in gpus],
        worker=ints(row_of_worker[d.worker_id] for d in gpus),
        index=ints(d.index for d in gpus),
        total=ints(d.memory_mib for d in gpus),
        claimed=ints(d.claimed_mib for d in gpus),
        claims=ints(d.claims for d in gpus),
        exclusive=ints(d.exclusive_claims for d in gpus),
        capability=ints(capability_number(d.compute_capability) for d in gpus),
        healthy=np.array([d.healthy for d in gpus], dtype=np.bool_),
        mig=np.array([d.mig_mode for d in gpus], dtype=np.bool_),
        instances=np.zeros(len(gpus), dtype=np.int64),
    )


def _worker_table(facts: list[WorkerFacts], gpus: GpuTable) -> WorkerTable:
    def zeros() -> Ints:
        return np.zeros(len(facts), dtype=np.int64)

    platform_of = [Platform(w.os, w.arch, w.driver, w.simulated, w.engines) for w in facts]
    number = {platform: i for i, platform in enumerate(dict.fromkeys(platform_of))}
    return WorkerTable(
        facts=facts,
        first_gpu=np.searchsorted(gpus.worker, np.arange(len(facts) + 1)).astype(np.int64),
        ready=np.array([w.ready for w in facts], dtype=np.bool_),
        schedulable=np.array([w.schedulable for w in facts], dtype=np.bool_),
        platform=np.array([number[p] for p in platform_of], dtype=np.int64),
        platforms=list(number),
        host_uuid=[""] * len(facts),
        host_ok=np.zeros(len(facts), dtype=np.bool_),
        memory=zeros(),
        memory_claimed=zeros(),
        cpu=zeros(),
        cpu_claimed=zeros(),
        instances=zeros(),
    )
