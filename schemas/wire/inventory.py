"""A host and its GPUs, as the agent reads them."""

from typing import Annotated, Literal

from msgspec import Meta

from schemas.wire.base import MAX_ENTRIES, MAX_GPUS, GpuUuid, Int, Mib, Percent, Since, Wire, WireName, WireText
from schemas.wire.containers import ReportedRuntime
from schemas.wire.gpu_details import GpuDetails

Health = Literal["ok", "unhealthy", "unknown"]
Vendor = Literal["nvidia", "amd", "apple"]


class ReportedGpu(Wire, frozen=True, kw_only=True):
    """One GPU. Sizes in MiB, utilization in percent; None is unknown, never zero.

    `reserved_mib` of `memory_mib` is reserved by the host's operator: placement must not use it.
    """

    uuid: GpuUuid
    index: Int
    model: WireName
    vendor: Vendor = "nvidia"
    memory_mib: Mib
    reserved_mib: Mib = 0
    compute_capability: WireName | None = None
    health: Health = "ok"
    health_reason: WireText = ""
    mig_mode: bool = False
    used_mib: Mib | None = None
    utilization: Percent | None = None
    parent: Annotated[GpuUuid | None, Since(4)] = None  # the GPU of a MIG slice
    details: Annotated[GpuDetails | None, Since(4)] = None  # occasionally; None: as last reported


Gpus = Annotated[tuple[ReportedGpu, ...], Meta(max_length=MAX_GPUS)]


class ReportedHost(Wire, frozen=True, kw_only=True):
    """The host itself. Placement must not use `reserved_mib` of its memory."""

    os: WireName
    arch: WireName
    hostname: WireName
    driver: WireName | None = None
    memory_mib: Mib
    reserved_mib: Mib = 0
    cpu_milli: Int
    simulated: bool = False
    labels: Annotated[dict[WireName, WireName], Meta(max_length=MAX_ENTRIES)] = {}
    # Installed model servers, by the names in manifests; None: unknown.
    engines: Annotated[tuple[WireName, ...], Meta(max_length=MAX_ENTRIES)] | None = None
    # Runtimes for processes in containers.
    runtimes: Annotated[tuple[ReportedRuntime, ...], Meta(max_length=MAX_ENTRIES), Since(4)] = ()


class Inventory(Wire, frozen=True, kw_only=True):
    """Host and GPUs. `gpus` None: the GPUs could not be read, so they are unknown; `gpus_error` has the reason."""

    host: ReportedHost
    gpus: Gpus | None
    gpus_error: Annotated[WireText, Since(4)] = ""


class InventoryChanged(Wire, frozen=True, kw_only=True, tag="inventory"):
    """The host or its set of GPUs differs from the last report."""

    inventory: Inventory
