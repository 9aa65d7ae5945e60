"""Tells a container's first process by its pid: a number that Docker says may mean another process here."""

from pathlib import Path
from typing import Final

from agent.processes.procfs import start_ticks

_MOST_BYTES: Final = 65_536


def ticks_of_container(pid: int, container_id: str) -> int | None:
    """When the process started, in the kernel's ticks since boot; None where it is not known to be the container's.

    Docker may count in another namespace or on another machine, as Docker Desktop does, and a pid may be another
    process's by now. The kernel says which container a process is in: its cgroup bears the container's id.

    Args:
        pid: of the container's first process, as Docker says.
        container_id: 64 hexadecimal digits, as Docker says.
    """
    ticks = start_ticks(pid)
    if ticks is None or not container_id or container_id not in _cgroups(pid):
        return None
    return ticks if start_ticks(pid) == ticks else None


def _cgroups(pid: int) -> str:
    try:
        with Path(f"/proc/{pid}/cgroup").open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
