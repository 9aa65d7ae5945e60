"""The fields of a GPU: each a value, unsupported, or an error. The library is a parameter, not imported.

Each field is read by itself, so that a failure leaves the other fields. Two errors are of no field: a library that only
a new process can use again, and a lost GPU.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Field = dict[str, Any]
Fields = dict[str, Field]

MIB: Final = 2**20
# NVML_ERROR_NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND and ARGUMENT_VERSION_MISMATCH (an older driver).
_UNSUPPORTED: Final = frozenset({3, 4, 13, 25})
# UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH (the driver was changed under it).
_BROKEN: Final = frozenset({1, 9, 12, 18})
_GPU_GONE: Final = frozenset({15, 16})  # GPU_IS_LOST, RESET_REQUIRED
_INVALID_ARGUMENT: Final = 2
_NO_UINT: Final = 2**32 - 1  # NVML_VALUE_NOT_AVAILABLE
_NO_ULONGLONG: Final = 2**64 - 1
_MILLI: Final = 1000
_SWITCH: Final = "switch"
_MAX_LINKS: Final = 18

THROTTLE: Final = {
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display",
    0x200: "board_limit",
    0x400: "reliability",
}  # fmt: skip - idle (0x1) slows nothing down
RECOVERY: Final = (
    "none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset",
    "system_reboot",
)  # fmt: skip
COMPUTE_MODES: Final = ("default", "exclusive_thread", "prohibited", "exclusive_process")
_LEVELS: Final = {0: "board", 10: "switch", 20: "switches", 30: "host_bridge", 40: "numa_node", 50: "system"}


class LibraryBrokenError(Exception):
    """The library is unusable in this process; `value` is NVML's code."""

    def __init__(self, message: str, value: int) -> None:
        super().__init__(message)
        self.value = value

    @staticmethod
    def check(error: Any) -> None:
        """Raises this error for such a code of NVML."""
        if error.value in _BROKEN:
            raise LibraryBrokenError(str(error), error.value) from error


class _NoValueError(Exception):
    """NVML answers with its mark for a missing value."""


FieldTable = Mapping[str, Callable[[Any, Any], Any]]  # fields that are read together, by library and handle


def read_fields(table: FieldTable, nvml: Any, handle: Any) -> Fields:
    """Raises LibraryBrokenError, or NVMLError if the GPU is lost."""
    return {name: _field(nvml, handle, read) for name, read in table.items()}


def text(value: Any) -> str:
    """A name, which older libraries return as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _field(nvml: Any, handle: Any, read: Callable[[Any, Any], Any]) -> Field:
    try:
        return {"value": read(nvml, handle)}
    except _NoValueError:
        return {"unsupported": True}
    except nvml.NVMLError as error:
        LibraryBrokenError.check(error)
        if error.value in _GPU_GONE:
            raise
        return {"unsupported": True} if error.value in _UNSUPPORTED else {"error": str(error), "code": error.value}


def _known(value: int) -> int:
    if value in (_NO_UINT, _NO_ULONGLONG):
        raise _NoValueError
    return value


def _memory(nvml: Any, handle: Any) -> list[int]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return [_known(memory.total) // MIB, memory.used // MIB]


def _capability(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


def _recovery(nvml: Any, handle: Any) -> str:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if field.nvmlReturn:
        raise nvml.NVMLError(field.nvmlReturn)
    action = field.value.uiVal
    return RECOVERY[action] if action < len(RECOVERY) else str(action)


def _throttle(nvml: Any, handle: Any) -> list[str]:
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError_FunctionNotFound:  # drivers before 535
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [name for bit, name in THROTTLE.items() if mask & bit]


def _ecc(kind: str) -> Callable[[Any, Any], int]:
    def read(nvml: Any, handle: Any) -> int:
        return _known(
            nvml.nvmlDeviceGetTotalEccErrors(
                handle, getattr(nvml, f"NVML_MEMORY_ERROR_TYPE_{kind}"), nvml.NVML_VOLATILE_ECC
            )
        )

    return read


def _compute_mode(nvml: Any, handle: Any) -> str:
    mode = nvml.nvmlDeviceGetComputeMode(handle)
    return COMPUTE_MODES[mode] if mode < len(COMPUTE_MODES) else str(mode)


def _active_links(nvml: Any, handle: Any) -> list[int]:
    active = []
    for link in range(_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == 1:
                active.append(link)
        except nvml.NVMLError as error:
            if error.value != _INVALID_ARGUMENT or link == 0:  # the GPU has fewer links
                raise
            break
    return active


def _nvlink_peers(nvml: Any, handle: Any) -> dict[str, int]:
    """Number of active links by peer: a GPU's UUID, `switch`, or an address on the PCI bus."""
    counts: dict[str, int] = {}
    by_bus: dict[str, str] | None = None
    for link in _active_links(nvml, handle):
        if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            peer = _SWITCH
        else:
            bus = text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()
            by_bus = by_bus if by_bus is not None else _by_bus(nvml)
            peer = by_bus.get(bus, bus)
        counts[peer] = counts.get(peer, 0) + 1
    return counts


def _by_bus(nvml: Any) -> dict[str, str]:
    """The UUIDs of the host's GPUs by their address on the PCI bus."""
    uuids = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuids[text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()] = text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            LibraryBrokenError.check(error)
    return uuids


def _peers(nvml: Any, handle: Any) -> dict[str, str]:
    """The topology level between this and each other GPU, by UUID."""
    levels = {}
    own = text(nvml.nvmlDeviceGetUUID(handle))
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            other = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = text(nvml.nvmlDeviceGetUUID(other))
            if uuid != own:
                level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
                levels[uuid] = _LEVELS.get(level, str(level))
        except nvml.NVMLError as error:
            LibraryBrokenError.check(error)
            if error.value in _UNSUPPORTED:
                raise
    return levels


FAST: Final[FieldTable] = {
    "memory": _memory,
    "utilization": lambda nvml, h: _known(nvml.nvmlDeviceGetUtilizationRates(h).gpu),
}
STANDING: Final[FieldTable] = {
    "model": lambda nvml, h: text(nvml.nvmlDeviceGetName(h)),
    "compute_capability": _capability,
    "mig_mode": lambda nvml, h: nvml.nvmlDeviceGetMigMode(h)[0] == nvml.NVML_DEVICE_MIG_ENABLE,
    "remapped_rows": lambda nvml, h: list(nvml.nvmlDeviceGetRemappedRows(h)),  # corrected, not, pending, failed
    "recovery": _recovery,
    "gpu_instance": lambda nvml, h: _known(nvml.nvmlDeviceGetGpuInstanceId(h)),
    "compute_instance": lambda nvml, h: _known(nvml.nvmlDeviceGetComputeInstanceId(h)),
}
DETAILS: Final[FieldTable] = {
    "power_w": lambda nvml, h: _known(nvml.nvmlDeviceGetPowerUsage(h)) / _MILLI,
    "power_limit_w": lambda nvml, h: _known(nvml.nvmlDeviceGetEnforcedPowerLimit(h)) / _MILLI,
    "energy_j": lambda nvml, h: _known(nvml.nvmlDeviceGetTotalEnergyConsumption(h)) / _MILLI,
    "temperature_c": lambda nvml, h: _known(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
    "sm_clock_mhz": lambda nvml, h: _known(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
    "memory_clock_mhz": lambda nvml, h: _known(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
    "throttle": _throttle,
    "ecc_corrected": _ecc("CORRECTED"),
    "ecc_uncorrected": _ecc("UNCORRECTED"),
}
LINKS: Final[FieldTable] = {
    "pci_bus": lambda nvml, h: text(nvml.nvmlDeviceGetPciInfo(h).busId),
    "pcie_generation": lambda nvml, h: _known(nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)),
    "pcie_width": lambda nvml, h: _known(nvml.nvmlDeviceGetCurrPcieLinkWidth(h)),
    "pcie_max_generation": lambda nvml, h: _known(nvml.nvmlDeviceGetMaxPcieLinkGeneration(h)),
    "pcie_max_width": lambda nvml, h: _known(nvml.nvmlDeviceGetMaxPcieLinkWidth(h)),
    "nvlinks": lambda nvml, h: len(_active_links(nvml, h)),
    "nvlink_peers": _nvlink_peers,
    "numa_node": lambda nvml, h: _known(nvml.nvmlDeviceGetNumaNodeId(h) % 2**32),
    "peers": _peers,
    "compute_mode": _compute_mode,
    "persistence": lambda nvml, h: nvml.nvmlDeviceGetPersistenceMode(h) == 1,
}
