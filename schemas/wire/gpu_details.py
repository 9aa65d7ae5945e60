"""Further readings of a GPU, for operators and metrics. No decision depends on them."""

from typing import Annotated

from msgspec import Meta

from schemas.wire.base import MAX_ENTRIES, Wire

_Measure = Annotated[float, Meta(ge=0, le=1e18)]
_Count = Annotated[int, Meta(ge=0, le=2**62)]
_Word = Annotated[str, Meta(max_length=256)]


class ForeignProcess(Wire, frozen=True, kw_only=True):
    """A process on a GPU that the agent did not start. `memory_mib` None: the driver does not tell it."""

    pid: Annotated[int, Meta(ge=0, le=2**31)]
    name: _Word = ""
    memory_mib: _Count | None = None


class GpuDetails(Wire, frozen=True, kw_only=True):
    """Readings of one GPU or MIG slice. None: unknown; `unsupported` and `errors` say why.

    Attributes:
        power_w: watts drawn; the limit beside it is the one that the driver enforces.
        energy_j: joules since the driver was loaded.
        temperature_c: of the GPU, in degrees Celsius.
        throttle: why its clocks are lower than they could be; empty: they are not.
        ecc_corrected: memory errors since the driver was loaded, corrected and not.
        rows_corrected: memory rows that were remapped, for corrected and for uncorrected errors.
        rows_pending: whether a row will be remapped at the next reset; `rows_failed`: whether a remapping failed.
        recovery: what the driver wants to be done, such as `gpu_reset`; `none`: nothing.
        nvlinks: number of NVLinks that are up.
        nvlink_peers: their number by what they lead to: another GPU's UUID, `switch`, or an address on the PCI bus.
        numa_node: of the host's memory that is nearest.
        peers: by the UUID of each other GPU of the host, what lies between, from `board` to `system`.
        gpu_instance: numbers of a MIG slice.
        xids: number of the driver's error events by code, since the agent started.
        last_xid: the code of the newest one.
        foreign: processes on it that the agent did not start, those with most memory first.
        unsupported: names of the fields that this GPU or driver does not have.
        errors: by name of a field, why it could not be read.
    """

    power_w: _Measure | None = None
    power_limit_w: _Measure | None = None
    energy_j: _Measure | None = None
    temperature_c: _Measure | None = None
    sm_clock_mhz: _Count | None = None
    memory_clock_mhz: _Count | None = None
    throttle: Annotated[tuple[_Word, ...], Meta(max_length=32)] | None = None
    ecc_corrected: _Count | None = None
    ecc_uncorrected: _Count | None = None
    rows_corrected: _Count | None = None
    rows_uncorrected: _Count | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    recovery: _Word | None = None
    pci_bus: _Word | None = None
    pcie_generation: _Count | None = None
    pcie_width: _Count | None = None
    pcie_max_generation: _Count | None = None
    pcie_max_width: _Count | None = None
    nvlinks: _Count | None = None
    nvlink_peers: Annotated[dict[_Word, _Count], Meta(max_length=MAX_ENTRIES)] | None = None
    numa_node: _Count | None = None
    peers: Annotated[dict[_Word, _Word], Meta(max_length=MAX_ENTRIES)] | None = None
    compute_mode: _Word | None = None
    persistence: bool | None = None
    gpu_instance: _Count | None = None
    compute_instance: _Count | None = None
    xids: Annotated[dict[_Word, _Count], Meta(max_length=MAX_ENTRIES)] = {}
    last_xid: _Count | None = None
    foreign: Annotated[tuple[ForeignProcess, ...], Meta(max_length=32)] | None = None
    unsupported: Annotated[tuple[_Word, ...], Meta(max_length=MAX_ENTRIES)] = ()
    errors: Annotated[dict[_Word, _Word], Meta(max_length=MAX_ENTRIES)] = {}
