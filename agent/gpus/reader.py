"""What reads GPUs: the base of the readers of NVML and of simulated hosts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from schemas.wire import DeviceFacts, Wire


class GpuWork(Wire, frozen=True, kw_only=True):
    """The processes of a GPU, as its driver reports them."""

    running: tuple[int, ...] = ()  # pids that have the GPU open
    memory_mib: dict[int, int] = msgspec.field(
        default_factory=dict
    )  # memory by pid, of those of which the driver tells it
    # utilization by pid since the last reading, of those that worked; None: the driver does not report it
    percent: dict[int, float] | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Every GPU, and its processes by UUID; a GPU whose processes are unknown is missing from `work`."""

    gpus: tuple[DeviceFacts, ...]
    work: Mapping[str, GpuWork] = field(default_factory=dict)


class GpuReader(ABC):
    """Limits its own reading time, and never raises for a failed reading: what cannot be read is unknown."""

    async def open(self) -> None:  # noqa: B027 - nothing, unless the reader has something to prepare
        """Prepares the reader. Raises NoGpusError if this host has no GPUs that can be read."""

    @abstractmethod
    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now; None if they cannot be read."""

    @abstractmethod
    async def sample(self) -> GpuReading | None:
        """Every GPU now, and its processes; slower than `read`."""

    @abstractmethod
    async def driver(self) -> str | None:
        """The driver's version; None while it is unknown."""

    @abstractmethod
    def error(self) -> str:
        """Why the GPUs cannot be read now: a code, a colon and a text; empty while they can."""

    def dismiss(self, dismissed: Mapping[str, int]) -> None:  # noqa: B027 - simulated GPUs have no Xids
        """Forgets the Xids of GPUs whose number has risen: how often an operator has dismissed them, by UUID."""

    async def aclose(self) -> None:  # noqa: B027 - as `open`
        """Releases what the reader holds."""
