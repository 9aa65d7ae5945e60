"""The base of the readers of NVML and of simulated hosts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from schemas.wire import ReportedGpu, Wire


class GpuWork(Wire, frozen=True, kw_only=True):
    """The processes of a GPU, as reported by its driver."""

    running: tuple[int, ...] = ()  # pids that have the GPU open
    memory_mib: dict[int, int] = msgspec.field(default_factory=dict)  # by pid, where reported
    percent: dict[int, float] | None = None  # utilization since the last reading, by active pid; None: not reported


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Every GPU, and processes by UUID; `work` lacks GPUs whose processes are unknown."""

    gpus: tuple[ReportedGpu, ...]
    work: Mapping[str, GpuWork] = field(default_factory=dict)


class GpuReader(ABC):
    """Limits its reading time. A failed reading is unknown and raises nothing."""

    async def open(self) -> None:  # noqa: B027 - optional
        """Raises NoGpusError if this host has no readable GPUs."""

    @abstractmethod
    async def read(self) -> tuple[ReportedGpu, ...] | None:
        """None if the GPUs cannot be read."""

    @abstractmethod
    async def sample(self) -> GpuReading | None:
        """As `read`, with processes; slower."""

    @abstractmethod
    async def driver(self) -> str | None:
        """The driver's version; None while unknown."""

    @abstractmethod
    def error(self) -> str:
        """Why the GPUs cannot be read now: a code, a colon and a text; empty while they can."""

    def dismiss(self, dismissed: Mapping[str, int]) -> None:  # noqa: B027 - simulated GPUs have no Xids
        """Forgets the Xids of GPUs whose number of dismissals, by UUID, has risen."""

    async def aclose(self) -> None:  # noqa: B027 - as `open`
        """Releases resources of the reader."""
