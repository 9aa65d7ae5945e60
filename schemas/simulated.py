"""The file of simulated hosts, which `--simulate` reads."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from schemas.fields import Name, ScalarText, Seconds, SizeMib, Strict, Text
from schemas.manifest.resources import MAX_GPUS
from schemas.wire import Vendor
from schemas.worker_labels import configured_labels


class SimulatedGpu(Strict):
    """Equal GPUs of a simulated host."""

    model: Text = Field(description="Name of the GPU, as its driver would report it.")
    vendor: Vendor = Field("nvidia", description="Maker of the GPU.")
    memory: SizeMib = Field(description="Memory of each GPU.")
    count: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(1, description="Number of equal GPUs.")
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = Field(
        "9.0", description="CUDA compute capability of the GPU."
    )
    foreign_memory: SizeMib = Field(
        0, description="Memory of each GPU that is used by processes which Gpuward did not start."
    )


class SimulatedReserve(Strict):
    """Capacity that placement must not use."""

    host_memory: SizeMib = Field(0, description="Main memory of the host.")
    gpu_memory: SizeMib = Field(0, description="Memory of each GPU.")


class SimulatedWorker(Strict):
    """A simulated host, or several equal ones."""

    name: Name = Field(description="Name of the worker.")
    count: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="Number of equal hosts. Above 1 they are named `NAME-0`, `NAME-1` and so on."
    )
    os: Literal["linux", "darwin", "windows"] = Field("linux", description="Operating system.")
    arch: Text = Field("x86_64", description="Architecture of the CPU.")
    driver: Text = Field("580.95", description="Version of the GPU driver.")
    host_memory: SizeMib = Field(1_048_576, description="Main memory.")
    cpus: Annotated[int, Field(ge=1, le=65536)] = Field(64, description="CPU cores.")
    labels: dict[Text, ScalarText] = Field({}, description="Labels of the worker, for placement.")
    gpus: Annotated[tuple[SimulatedGpu, ...], Field(max_length=64)] = Field((), description="GPUs by kind.")
    reserved: SimulatedReserve = Field(SimulatedReserve(), description="Capacity that placement must not use.")
    telemetry_seconds: Seconds | None = Field(
        None,
        description="Time after the start of the agent after which its GPUs cannot be read any more, as if NVML hung."
        " Absent: they can always be read.",
    )
    engines: Annotated[tuple[Text, ...], Field(max_length=64)] | None = Field(
        None, description="Engines that are installed there. Absent: those that are installed on this host."
    )

    @field_validator("labels")
    @classmethod
    def _own_labels(cls, value: dict[str, str]) -> dict[str, str]:
        return configured_labels(value)


class SimulatedHosts(Strict):
    """All hosts of the file."""

    workers: Annotated[tuple[SimulatedWorker, ...], Field(min_length=1)] = Field(description="The simulated hosts.")

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
