"""What a reader of GPUs looks like, whether NVML or a made-up host stands behind it."""

from typing import Protocol

from gpuward.schemas.wire import DeviceFacts


class GpuReader(Protocol):
    """Reads are bounded in time by the reader itself, and never raise: what cannot be read is unknown."""

    async def open(self) -> None:
        """Makes ready.

        Raises:
            NoGpusError: there is no way to read GPUs on this host.
        """

    async def read(self) -> tuple[DeviceFacts, ...] | None:
        """Every GPU now, or None where they cannot be read."""

    async def driver(self) -> str | None:
        """The driver's version, or None while it is not known."""

    async def aclose(self) -> None:
        """Gives back what it holds."""
