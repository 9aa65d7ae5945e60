"""A host and its GPUs, as the agent reads them."""

from typing import Literal

from schemas.wire.base import Wire

Health = Literal["ok", "unhealthy", "unknown"]
Vendor = Literal["nvidia", "amd", "apple"]


class DeviceFacts(Wire):
    """One GPU. Sizes in MiB, utilization in percent; None is unknown, never zero.

    `reserved_mib` of `memory_mib` is what the host's operator reserves for other uses: placement must not use it.
    """

    uuid: str
    index: int
    model: str
    vendor: Vendor = "nvidia"
    memory_mib: int
    reserved_mib: int = 0
    compute_capability: str | None = None
    health: Health = "ok"
    health_reason: str = ""
    mig_mode: bool = False
    used_mib: int | None = None
    utilization: float | None = None


class HostFacts(Wire):
    """The host itself. `reserved_mib` of its memory is what placement must not use."""

    os: str
    arch: str
    hostname: str
    driver: str | None = None
    memory_mib: int
    reserved_mib: int = 0
    cpu_milli: int
    simulated: bool = False
    labels: dict[str, str] = {}
    engines: tuple[str, ...] | None = None  # installed model servers, by the names in manifests; None: unknown


class Inventory(Wire):
    """Facts of host and GPUs. `gpus` None: the GPUs could not be read, so they are unknown."""

    host: HostFacts
    gpus: tuple[DeviceFacts, ...] | None


class InventoryChanged(Wire):
    """The host or its set of GPUs differs from the last report."""

    type: Literal["inventory"] = "inventory"
    inventory: Inventory
