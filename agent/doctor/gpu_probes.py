"""Facts about GPUs: the kernel's and NVML's."""

import getpass
import os
import re
from pathlib import Path
from typing import Final

from agent.decide.doctor.gpus import DriverFacts, NvmlFacts
from agent.errors import NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.host_inventory.host import real_host

_MODULE: Final = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")
_NVIDIA: Final = "0x10de"
_DISPLAYS: Final = ("0x0300", "0x0302")
_NODE: Final = re.compile(r"nvidia\d+")
_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm")


def driver_facts(root: Path = Path("/")) -> DriverFacts:
    """The driver as the kernel shows it. `root` is that of the host's file system."""
    nodes = sorted(path for path in (root / "dev").glob("nvidia[0-9]*") if _NODE.fullmatch(path.name))
    needed = [*nodes, *(root / "dev" / name for name in _CONTROL_NODES)]
    denied = [str(path) for path in needed if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    return DriverFacts(_module(root), _on_bus(root), len(nodes), tuple(denied), _user())


def _module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _MODULE.search(text)
    return match[1] if match else None


def _on_bus(root: Path) -> int | None:
    found = 0
    try:
        for device in (root / "sys/bus/pci/devices").iterdir():
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
            found += vendor == _NVIDIA and kind.startswith(_DISPLAYS)
    except OSError:
        return None
    return found


def _user() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):
        return f"user {os.geteuid()}"


async def nvml_facts() -> NvmlFacts:
    """One reading through NVML, in a child of its own."""
    host = real_host({})
    reader = ChildReader(host=host.hostname, host_memory_mib=host.memory_mib)
    try:
        await reader.open()
        gpus = await reader.read()
        if gpus is None:
            return NvmlFacts(error=reader.error() or "nvml_hang: the GPUs were not read in time")
        return NvmlFacts(await reader.driver(), gpus)
    except NoGpusError as error:
        return NvmlFacts(error=reader.error() or str(error))
    finally:
        await reader.aclose()
