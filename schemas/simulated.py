"""The file of simulated hosts, which `--simulate` reads."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Wire
from schemas.manifest import MAX_GPUS, Name, ScalarText, Text
from schemas.quantities import Seconds, SizeMib
from schemas.wire import Vendor


class SimulatedGpu(Wire):
    """`count` equal GPUs of a simulated host. `foreign_memory` of each is used by processes outside Gpuward."""

    model: Text
    vendor: Vendor = "nvidia"
    memory: SizeMib
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = 1
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "9.0"
    foreign_memory: SizeMib = 0


class SimulatedReserve(Wire):
    """Memory that placement must not use: the host's, and each GPU's."""

    host_memory: SizeMib = 0
    gpu_memory: SizeMib = 0


class SimulatedWorker(Wire):
    """A simulated host; `count` above 1 makes name-0, name-1, ...

    Attributes:
        telemetry_seconds: seconds after the agent's start until the GPUs cannot be read, as if NVML hung.
        engines: the installed engines; None: unknown, so every engine may be placed there.
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
    """All hosts of the file."""

    workers: Annotated[tuple[SimulatedWorker, ...], Field(min_length=1)]

    def expanded(self) -> dict[str, SimulatedWorker]:
        """Every host by its name."""
        hosts: dict[str, SimulatedWorker] = {}
        for worker in self.workers:
            names = [worker.name] if worker.count == 1 else [f"{worker.name}-{i}" for i in range(worker.count)]
            for name in names:
                if name in hosts:
                    raise ValueError(f"workers: two simulated hosts have the name {name!r}; rename one")
                hosts[name] = worker.model_copy(update={"name": name, "count": 1})
        return hosts
