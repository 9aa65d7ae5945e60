"""Answers of the agent's NVML child as scenario files of the false library in tests/support/nvml. Pure.

The library reads `gpu UUID key=value ...` and `proc UUID pid=... mem=... sm=...`; a value of `none` is unsupported, and
`!15` is the error 15.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from agent.gpus.nvml_fields import COMPUTE_MODES, RECOVERY, THROTTLE

Answer = Mapping[str, Any]
_BITS: Final = {name: bit for bit, name in THROTTLE.items()}
_SWITCH: Final = "switch"


def _milli(value: float) -> int:
    return round(1000 * value)


def _place(names: tuple[str, ...]) -> Callable[[Any], int]:
    """The number of a name; a name that is not listed is a number itself."""
    return lambda name: names.index(name) if name in names else int(name)


# The library's key and the form of its value, by field. Derived fields are missing: `nvlink_peers` is `linked`, and the
# library derives `peers` from the NUMA nodes.
_KEYS: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "utilization": ("util", int),
    "model": ("name", lambda name: name.replace(" ", "_")),
    "compute_capability": ("cc", str),
    "mig_mode": ("mig", int),
    "remapped_rows": ("rows", lambda rows: ",".join(str(int(row)) for row in rows)),
    "recovery": ("recovery", _place(RECOVERY)),
    "gpu_instance": ("gi", int),
    "compute_instance": ("ci", int),
    "power_w": ("power", _milli),
    "power_limit_w": ("limit", _milli),
    "energy_j": ("energy", _milli),
    "temperature_c": ("temp", int),
    "sm_clock_mhz": ("sm_clock", int),
    "memory_clock_mhz": ("mem_clock", int),
    "throttle": ("throttle", lambda names: sum(_BITS[name] for name in names)),
    "ecc_corrected": ("ecc_corrected", int),
    "ecc_uncorrected": ("ecc_uncorrected", int),
    "pci_bus": ("bus", str),
    "pcie_generation": ("pcie_gen", int),
    "pcie_width": ("pcie_width", int),
    "pcie_max_generation": ("pcie_max_gen", int),
    "pcie_max_width": ("pcie_max_width", int),
    "nvlinks": ("nvlinks", int),
    "numa_node": ("numa", int),
    "compute_mode": ("compute_mode", _place(COMPUTE_MODES)),
    "persistence": ("persistence", int),
}


def scenario(answer: Answer) -> str:
    """The file for an answer with all fields, as the child's first answer has them, and with processes."""
    buses = {
        gpu["uuid"]: value
        for gpu in answer["gpus"]
        if (value := gpu.get("fields", {}).get("pci_bus", {}).get("value")) is not None
    }
    parents = [gpu for gpu in answer["gpus"] if not gpu.get("parent")]
    slices = [gpu for gpu in answer["gpus"] if gpu.get("uuid") and gpu.get("parent")]
    lines = [f"driver {answer['driver']}"]
    for gpu in parents:
        lines += [device("gpu", gpu["uuid"], gpu_values(gpu["fields"], buses))] if gpu.get("uuid") else _unreadable(gpu)
    lines += [
        device("slice", part["uuid"], {"parent": part["parent"], **gpu_values(part["fields"], {})}) for part in slices
    ]
    for uuid, work in answer.get("work", {}).items():
        percents = work.get("percent") or {}
        for pid in work["running"]:
            lines.append(process(uuid, int(pid), work["memory_mib"].get(str(pid)), percents.get(str(pid))))
    return "\n".join([*lines, ""])


def _unreadable(gpu: Mapping[str, Any]) -> list[str]:
    """A GPU without any reading, not even its UUID."""
    name = f"GPU-unreadable-{gpu['index']}"
    return [device("gpu", name, {}), f"fail * {gpu['code']} {name}"]


def device(kind: str, uuid: str, values: Mapping[str, object]) -> str:
    return " ".join([kind, uuid, *(f"{key}={value}" for key, value in values.items())])


def process(uuid: str, pid: int, memory_mib: float | None, percent: float | None) -> str:
    """A line of a process on a GPU. `percent`: None where the driver does not report it."""
    memory = "none" if memory_mib is None else int(memory_mib)
    return f"proc {uuid} pid={pid} mem={memory}" + ("" if percent is None else f" sm={int(percent)}")


def gpu_values(fields: Mapping[str, Mapping[str, Any]], buses: Mapping[str, str]) -> dict[str, object]:
    """The values of a GPU's line. `buses`: addresses on the PCI bus of the host's GPUs by UUID."""
    values: dict[str, object] = {}
    for name, reading in fields.items():
        if name == "memory":
            values |= _memory(reading)
        elif name == "nvlink_peers":
            values["linked"] = _or_fault(reading, lambda peers: _linked(peers, buses))
        elif name in _KEYS:
            key, write = _KEYS[name]
            values[key] = _or_fault(reading, write)
    return {key: value for key, value in values.items() if value != ""}


def _memory(reading: Mapping[str, Any]) -> dict[str, object]:
    if "value" in reading and reading["value"] is not None:
        total, used = reading["value"]
        return {"mem": total, "used": used}
    return {"mem": _or_fault(reading, str)}


def _or_fault(reading: Mapping[str, Any], write: Callable[[Any], object]) -> object:
    if reading.get("error"):
        return f"!{reading['code']}"
    if reading.get("unsupported") or reading.get("value") is None:
        return "none"
    return write(reading["value"])


def _linked(peers: Mapping[str, int], buses: Mapping[str, str]) -> str:
    """Far ends of links, each with its number: `00000000:41:00.0*6,switch*12`."""
    ends: Iterable[tuple[str, int]] = ((end if end == _SWITCH else buses.get(end, end), n) for end, n in peers.items())
    return ",".join(f"{bus}*{number}" for bus, number in ends)
