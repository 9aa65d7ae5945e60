"""Simulated hosts: the file that `--simulate` reads."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Wire
from schemas.fields import Name, ScalarText, Text
from schemas.manifest.deployment import MAX_GPUS
from schemas.quantities import Seconds, SizeMib
from schemas.wire import Vendor


class SimulatedGpu(Wire):
    """`count` equal GPUs of a simulated host; of each, processes that nobody started here use `foreign_memory`."""

    model: Text
    vendor: Vendor = "nvidia"
    memory: SizeMib
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = 1
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "9.0"
    foreign_memory: SizeMib = 0


class SimulatedReserve(Wire):
    """What the host's operator keeps back from placement: of the host's memory, and of each GPU's."""

    host_memory: SizeMib = 0
    gpu_memory: SizeMib = 0


class SimulatedWorker(Wire):
    """A simulated host; `count` above 1 makes name-0, name-1, ...

    `telemetry_seconds`: for so long after the agent's start the GPUs can be read, then no more, as if NVML hung.
    `engines`: those installed there; left out: not told, so that every engine may be placed there.
    """

    name: Name
    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    os: Literal["linux", "darwin", "windows"] = "linux"
    arch: Text = "x86_64"
    driver: Text = "580.95"
    host_memory: SizeMib = 1_048_576
    cpus: Annotated[int, Field(ge=1, le=65536)] = 64
    labels: dict[Text, ScalarText] = {}
    gpus: Annotated[tuple[SimulatedGpu, ...], Field(max_length=64)] = ()
    reserved: SimulatedReserve = SimulatedReserve()
    telemetry_seconds: Seconds | None = None
    engines: Annotated[tuple[Text, ...], Field(max_length=64)] | None = None


class SimulatedHosts(Wire):
    """The whole file."""

    workers: Annotated[tuple[SimulatedWorker, ...], Field(min_length=1)]

    def expanded(self) -> dict[str, SimulatedWorker]:
        """Every host by its own name."""
        hosts: dict[str, SimulatedWorker] = {}
        for worker in self.workers:
            names = [worker.name] if worker.count == 1 else [f"{worker.name}-{i}" for i in range(worker.count)]
            for name in names:
                if name in hosts:
                    raise ValueError(f"workers: two simulated hosts are named {name!r}; rename one")
                hosts[name] = worker.model_copy(update={"name": name, "count": 1})
        return hosts
