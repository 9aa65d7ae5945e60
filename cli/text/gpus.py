"""The readings of a GPU as text. Pure."""

from typing import TYPE_CHECKING, Final

from cli.text.formatting import DASH, gib

if TYPE_CHECKING:  # slow to import
    from schemas.wire import GpuDetails

UNSUPPORTED: Final = "n/a"
ERROR: Final = "error"
# Lines of `describe gpu`: title, field, unit.
_LINES: Final = (
    ("Temperature", "temperature_c", "C"),
    ("Power", "power_w", "W"),
    ("Power limit", "power_limit_w", "W"),
    ("Energy", "energy_j", "J"),
    ("SM clock", "sm_clock_mhz", "MHz"),
    ("Memory clock", "memory_clock_mhz", "MHz"),
    ("ECC corrected", "ecc_corrected", ""),
    ("ECC uncorrected", "ecc_uncorrected", ""),
    ("Rows remapped", "rows_uncorrected", ""),
    ("Remap pending", "rows_pending", ""),
    ("Recovery", "recovery", ""),
    ("Last Xid", "last_xid", ""),
    ("PCI bus", "pci_bus", ""),
    ("PCIe link", "pcie_generation", ""),
    ("NVLinks up", "nvlinks", ""),
    ("NUMA node", "numa_node", ""),
    ("Compute mode", "compute_mode", ""),
    ("Persistence", "persistence", ""),
    ("GPU instance", "gpu_instance", ""),
)
# NVML reads several fields by one call; `unsupported` and `errors` name the call.
_READ_AS: Final = {"rows_uncorrected": "remapped_rows", "rows_pending": "remapped_rows", "last_xid": "xids"}


def measure(details: "GpuDetails | None", field: str, unit: str = "") -> str:
    """A field with its unit; `n/a` if the GPU does not have it, `error` if it cannot be read, `-` if it is unknown."""
    if details is None:
        return DASH
    value = getattr(details, field)
    name = _READ_AS.get(field, field)
    if value is None:
        return UNSUPPORTED if name in details.unsupported else ERROR if name in details.errors else DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.0f}{unit}" if isinstance(value, float) else f"{value}{unit}"


def throttle(details: "GpuDetails | None") -> str:
    reasons = None if details is None else details.throttle
    return measure(details, "throttle") if not reasons and reasons != () else ",".join(reasons or ()) or "no"


def foreign(details: "GpuDetails | None") -> str:
    """The processes on it that Gpuward did not start: name, pid and memory."""
    if details is None or not details.foreign:
        return "none" if details is not None and details.foreign == () else DASH
    return ", ".join(
        f"{process.name or '?'} {process.pid} ({'?' if process.memory_mib is None else gib(process.memory_mib)})"
        for process in details.foreign
    )


def detail_lines(details: "GpuDetails") -> list[tuple[str, str]]:
    """All readings by title, without those that are unsupported or unknown."""
    lines = [(title, measure(details, field, f" {unit}" if unit else "")) for title, field, unit in _LINES]
    if details.nvlink_peers:
        peers = ", ".join(f"{peer} ({number}x)" for peer, number in sorted(details.nvlink_peers.items()))
        lines.append(("NVLinks to", peers))
    lines.append(("Throttled", throttle(details)))
    if details.foreign:
        lines.append(("Not ours", foreign(details)))
    if details.xids:
        lines.append(("Xids", ", ".join(f"{code} ({number}x)" for code, number in details.xids.items())))
    if details.errors:
        lines.append(("Not readable", ", ".join(f"{name} ({why})" for name, why in sorted(details.errors.items()))))
    return [(title, text) for title, text in lines if text not in (UNSUPPORTED, DASH)]
