"""A simulated host's GPUs, read from a file. Their load follows the agent's real processes."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import yaml
from msgspec.structs import replace
from pydantic import ValidationError

from agent.clock import Clock
from agent.errors import AgentError
from agent.gpus.reader import GpuReader, GpuReading, GpuWork
from agent.state.process_records import ProcessRecord
from schemas.simulated import SimulatedHosts, SimulatedWorker
from schemas.wire import ReportedGpu, SimulatedLoad

_NAMESPACE: Final = uuid.UUID("5c6b4c52-3b7e-5d39-9a53-7d1d52a3a9f4")
_FULL_PERCENT: Final = 100.0


def load_host(file: Path, name: str | None) -> SimulatedWorker:
    """Reads one host from a file of simulated hosts. `name` None: the file's only host. Raises AgentError."""
    try:
        hosts = SimulatedHosts.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))).expanded()
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError, ValueError) as error:
        raise AgentError(f"--simulate {file}: {error}") from error
    if name is None and len(hosts) == 1:
        return next(iter(hosts.values()))
    if name is None or name not in hosts:
        known = ", ".join(sorted(hosts)[:20])
        what = "has several hosts" if name is None else f"unknown host {name!r}"
        raise AgentError(f"--simulate {file}: {what}; set --name to one of: {known}")
    return hosts[name]


def gpu_uuid(worker: str, index: int) -> str:
    """Derived from the host's name and the GPU's index, so that it never changes."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{worker}/{index}')}"


def utilization_at(load: SimulatedLoad, since_ready_s: float) -> float:
    """Percent at a time after the engine was ready. The last step has no end."""
    percent = 0.0
    for lasts_s, percent in load.utilization:  # noqa: B007 - the last step's value is used after the loop
        if since_ready_s < lasts_s:
            break
        since_ready_s -= lasts_s
    return percent


class SimulatedReader(GpuReader):
    """Reads a simulated host. `live` returns the running processes."""

    def __init__(self, worker: SimulatedWorker, live: Callable[[], Iterable[ProcessRecord]], clock: Clock) -> None:
        self._worker = worker
        self._live = live
        self._clock = clock
        self._started_s = clock()

    async def driver(self) -> str | None:
        return self._worker.driver

    def error(self) -> str:
        return "nvml_hang: the file of simulated hosts lets readings end" if self._is_silent() else ""

    def _is_silent(self) -> bool:
        lasts_s = self._worker.telemetry_seconds
        return lasts_s is not None and self._clock() - self._started_s >= lasts_s

    async def read(self) -> tuple[ReportedGpu, ...] | None:
        reading = await self.sample()
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        """None once the host's telemetry has ended."""
        if self._is_silent():
            return None
        memory: defaultdict[str, int] = defaultdict(int)
        percent: defaultdict[str, float] = defaultdict(float)
        by_pid: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for record in self._live():
            load = record.order.simulated_load if record.order else None
            for claim in record.claims:
                memory[claim.device] += claim.memory_mib if load is None or load.memory_mib is None else load.memory_mib
                own = self._percent(load, record.ready_s)
                percent[claim.device] += own
                if record.pid is not None:
                    by_pid[claim.device][record.pid] = own
        gpus = tuple(
            replace(
                gpu,
                used_mib=min((gpu.used_mib or 0) + memory[gpu.uuid], gpu.memory_mib),
                utilization=min(percent[gpu.uuid], _FULL_PERCENT),
            )
            for gpu in self._gpus_without_load()
        )
        return GpuReading(gpus, {uuid: GpuWork(running=tuple(pids), percent=pids) for uuid, pids in by_pid.items()})

    def _percent(self, load: SimulatedLoad | None, ready_s: float | None) -> float:
        return 0.0 if load is None or ready_s is None else utilization_at(load, self._clock() - ready_s)

    def _gpus_without_load(self) -> tuple[ReportedGpu, ...]:
        kinds = [kind for kind in self._worker.gpus for _ in range(kind.count)]
        return tuple(
            ReportedGpu(
                uuid=gpu_uuid(self._worker.name, index),
                index=index,
                model=kind.model,
                vendor=kind.vendor,
                memory_mib=kind.memory,
                reserved_mib=self._worker.reserved.gpu_memory,
                compute_capability=kind.compute_capability,
                used_mib=kind.foreign_memory,
            )
            for index, kind in enumerate(kinds)
        )
