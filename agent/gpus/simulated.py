"""A host's GPUs made up from a file. What they report follows the processes that the agent really runs."""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from agent.clock import Clock
from agent.errors import AgentError
from agent.gpus.reader import GpuReading, GpuWork
from agent.records import ProcessRecord
from schemas.simulated import SimulatedHosts, SimulatedWorker
from schemas.wire import DeviceFacts, SimulatedLoad

_NAMESPACE: Final = uuid.UUID("5c6b4c52-3b7e-5d39-9a53-7d1d52a3a9f4")
_FULL_PERCENT: Final = 100.0


def load_host(file: Path, name: str | None) -> SimulatedWorker:
    """Reads one host from a file of simulated hosts. `name` None: the file's only one.

    Raises:
        AgentError: the file cannot be read or holds no such host; the message names what it holds.
    """
    try:
        hosts = SimulatedHosts.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))).expanded()
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError, ValueError) as error:
        raise AgentError(f"--simulate {file}: {error}") from error
    if name is None and len(hosts) == 1:
        return next(iter(hosts.values()))
    if name is None or name not in hosts:
        known = ", ".join(sorted(hosts)[:20])
        raise AgentError(f"--simulate {file}: no host is named {name!r}; set --name to one of: {known}")
    return hosts[name]


def gpu_uuid(worker: str, index: int) -> str:
    """The same GPU has the same UUID for ever: it is derived from the host's name and the GPU's index."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{worker}/{index}')}"


def utilization_at(load: SimulatedLoad, since_ready_s: float) -> float:
    """Percent at a time after the engine was ready: each step lasts its seconds, the last for ever."""
    percent = 0.0
    for lasts_s, percent in load.utilization:  # noqa: B007 - the last step's value is used after the loop
        if since_ready_s < lasts_s:
            break
        since_ready_s -= lasts_s
    return percent


class SimulatedReader:
    """Reads a made-up host. `live` gives the processes that run now."""

    def __init__(self, worker: SimulatedWorker, live: Callable[[], Iterable[ProcessRecord]], clock: Clock) -> None:
        self._worker = worker
        self._live = live
        self._clock = clock
        self._began_s = clock()

    async def open(self) -> None:
        """Nothing to do."""

    async def aclose(self) -> None:
        """Nothing to do."""

    async def driver(self) -> str | None:
        """As the file says."""
        return self._worker.driver

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """The file's GPUs, with the load of the live processes on them."""
        reading = await self.sample()
        return None if reading is None else reading.gpus

    async def sample(self) -> GpuReading | None:
        """The same, and what each process makes of them; None once the host's telemetry has ended."""
        lasts_s = self._worker.telemetry_seconds
        if lasts_s is not None and self._clock() - self._began_s >= lasts_s:
            return None
        memory: defaultdict[str, int] = defaultdict(int)
        percent: defaultdict[str, float] = defaultdict(float)
        told: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for record in self._live():
            for claim in record.order.claims if record.order else ():
                load = record.order.simulated_load if record.order else None
                memory[claim.device] += claim.memory_mib if load is None or load.memory_mib is None else load.memory_mib
                own = self._percent(load, record.ready_s)
                percent[claim.device] += own
                if record.pid is not None:
                    told[claim.device][record.pid] = own
        gpus = tuple(
            gpu.model_copy(
                update={
                    "used_mib": min((gpu.used_mib or 0) + memory[gpu.uuid], gpu.memory_mib),
                    "utilization": min(percent[gpu.uuid], _FULL_PERCENT),
                }
            )
            for gpu in self._idle()
        )
        return GpuReading(gpus, {uuid: GpuWork(running=tuple(pids), percent=pids) for uuid, pids in told.items()})

    def _percent(self, load: SimulatedLoad | None, ready_s: float | None) -> float:
        return 0.0 if load is None or ready_s is None else utilization_at(load, self._clock() - ready_s)

    def _idle(self) -> tuple[DeviceFacts, ...]:
        kinds = [kind for kind in self._worker.gpus for _ in range(kind.count)]
        return tuple(
            DeviceFacts(
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
