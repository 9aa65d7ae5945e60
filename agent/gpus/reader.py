"""What a reader of GPUs looks like, whether NVML or a made-up host stands behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from schemas.base import Wire
from schemas.wire import DeviceFacts


class GpuWork(Wire):
    """Who runs on a GPU, as its driver tells it.

    Attributes:
        running: pids that have the GPU open.
        percent: by pid what each made of it that worked since the last reading; None: the driver does not tell.
    """

    running: tuple[int, ...] = ()
    percent: dict[int, float] | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Every GPU, and by UUID who runs on those of which that is told."""

    gpus: tuple[DeviceFacts, ...]
    work: Mapping[str, GpuWork] = field(default_factory=dict)


class GpuReader(Protocol):
    """Reads are bounded in time by the reader itself, and never raise: what cannot be read is unknown."""

    async def open(self) -> None:
        """Makes ready.

        Raises:
            NoGpusError: there is no way to read GPUs on this host.
        """

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now, or None where they cannot be read."""

    async def sample(self) -> GpuReading | None:
        """As `read`, and who works on each; costs more."""

    async def driver(self) -> str | None:
        """The driver's version, or None while it is not known."""

    async def aclose(self) -> None:
        """Gives back what it holds."""
