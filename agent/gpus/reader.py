"""The protocol of a GPU reader, for NVML and simulated hosts alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from schemas.wire import DeviceFacts, Wire


class GpuWork(Wire, frozen=True, kw_only=True):
    """The processes of a GPU, as its driver reports them.

    Attributes:
        running: pids that have the GPU open.
        memory_mib: memory by pid, of those of which the driver tells it.
        percent: utilization by pid since the last reading, of those that worked; None: the driver does not report it.
    """

    running: tuple[int, ...] = ()
    memory_mib: dict[int, int] = msgspec.field(default_factory=dict)
    percent: dict[int, float] | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Every GPU, and its processes by UUID; a GPU whose processes are unknown is missing from `work`."""

    gpus: tuple[DeviceFacts, ...]
    work: Mapping[str, GpuWork] = field(default_factory=dict)


class GpuReader(Protocol):
    """Limits its own reading time, and never raises for a failed reading: what cannot be read is unknown."""

    async def open(self) -> None:
        """Prepares the reader.

        Raises:
            NoGpusError: this host has no GPUs that can be read.
        """

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now; None if they cannot be read."""

    async def sample(self) -> GpuReading | None:
        """Every GPU now, and its processes; slower than `read`."""

    async def driver(self) -> str | None:
        """The driver's version; None while it is unknown."""

    def error(self) -> str:
        """Why the GPUs cannot be read now: a code, a colon and a text; empty while they can."""

    def dismiss(self, dismissed: Mapping[str, int]) -> None:
        """Forgets the Xids of GPUs whose number has risen: how often an operator has dismissed them, by UUID."""

    async def aclose(self) -> None:
        """Releases what the reader holds."""
