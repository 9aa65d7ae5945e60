"""A host and its GPUs, as the agent reads them."""

from typing import Annotated, Literal

from schemas.wire.base import Since, Wire
from schemas.wire.containers import RuntimeFacts
from schemas.wire.gpu_details import GpuDetails

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
    parent: Annotated[str | None, Since(4)] = None  # the GPU of which this is a MIG slice
    details: Annotated[GpuDetails | None, Since(4)] = None  # now and then; None: as last reported


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
    runtimes: Annotated[tuple[RuntimeFacts, ...], Since(4)] = ()  # besides processes of the host


class Inventory(Wire):
    """Facts of host and GPUs. `gpus` None: the GPUs could not be read, so they are unknown; `gpus_error` says why."""

    host: HostFacts
    gpus: tuple[DeviceFacts, ...] | None
    gpus_error: Annotated[str, Since(4)] = ""


class InventoryChanged(Wire):
    """The host or its set of GPUs differs from the last report."""

    type: Literal["inventory"] = "inventory"
    inventory: Inventory
