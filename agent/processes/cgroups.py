"""Control groups (version 2) of engines: limits, kills, and the kernel's count of OOM kills.

Without a folder where this agent may create groups, engines run only in process groups. Such a folder is the parent of
its own group, where systemd has put it into a group `agent` of a delegated unit, or is named in its settings.
"""

import os
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from agent.state.process_records import ProcessKey

OOM_KILLED: Final = "oom_killed"  # starts the message of such an exit
MOST_PROCESSES: Final = 32_768  # of one engine, including threads; stops fork bombs
_MOUNT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_OWN_NAME: Final = "agent"  # DelegateSubgroup of the unit
_FOLDER: Final = "engines"
_CONTROLLERS: Final = ("memory", "pids")

log = structlog.get_logger()


def delegated_folder(mount: Path = _MOUNT, own: Path = _OWN) -> Path | None:
    """The unit's folder of a process in a group `agent`; None if it is in no such group."""
    try:
        (line,) = [line for line in own.read_text(encoding="utf-8").splitlines() if line.startswith("0::")]
    except (OSError, ValueError):
        return None
    group = mount / line.removeprefix("0::").lstrip("/")
    usable = group.name == _OWN_NAME and (mount / "cgroup.controllers").exists()
    return group.parent if usable and os.access(group.parent / "cgroup.procs", os.W_OK) else None


class Cgroup:
    """The group of one process of an instance."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, pid: int) -> None:
        """Adds a process, whose later children are members too. Raises OSError."""
        _write(self.path / "cgroup.procs", str(pid))

    def kill(self) -> None:
        """Kills all members atomically, including new children. Does nothing on older kernels."""
        with suppress(OSError):
            _write(self.path / "cgroup.kill", "1")

    def members(self) -> tuple[int, ...]:
        """Pids; empty also if the group is gone."""
        return tuple(int(word) for word in self._read("cgroup.procs").split())

    def oom_kills(self) -> int:
        """Number of members that the kernel has killed for lack of memory."""
        match = re.search(r"^oom_kill (\d+)$", self._read("memory.events"), re.MULTILINE)
        return int(match[1]) if match else 0

    def limit(self, name: str, value: str) -> None:
        """Sets a limit, unless its controller is missing."""
        if (self.path / name).exists():
            with suppress(OSError):
                _write(self.path / name, value)

    def remove(self) -> None:
        """The group must be empty."""
        with suppress(OSError):
            self.path.rmdir()

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="ascii")
        except OSError:
            return ""


class Cgroups:
    """The groups of this agent's engines."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder / _FOLDER
        if folder is None or self._folder is None:
            return
        try:
            if not (folder / "cgroup.procs").exists():
                raise FileNotFoundError(f"{folder} is not a control group of version 2")
            self._folder.mkdir(exist_ok=True)
            for parent in (folder, self._folder):
                _enable(parent)
        except OSError as error:
            log.warning("cgroups not used", folder=str(folder), error=str(error))
            self._folder = None

    @property
    def available(self) -> bool:
        """Whether engines get groups."""
        return self._folder is not None

    def make(self, key: ProcessKey, host_memory_mib: int | None) -> Cgroup | None:
        """A new group with limits; None if groups are unavailable or it cannot be created."""
        if self._folder is None:
            return None
        group = Cgroup(self._folder / _name(key))
        try:
            group.path.mkdir(exist_ok=True)
        except OSError as error:
            log.warning("no cgroup for an engine", instance=key.instance, error=str(error))
            return None
        group.limit("pids.max", str(MOST_PROCESSES))
        group.limit("memory.oom.group", "1")  # an engine without some of its processes is useless
        if host_memory_mib:
            group.limit("memory.max", str(host_memory_mib * 2**20))
        return group

    def find(self, key: ProcessKey) -> Cgroup | None:
        """The group of a process that an earlier agent started; None if it has none."""
        if self._folder is None or not (self._folder / _name(key)).is_dir():
            return None
        return Cgroup(self._folder / _name(key))

    def prune(self, live: Collection[ProcessKey]) -> None:
        """Removes empty groups of processes that ended while no agent ran."""
        names = {_name(key) for key in live}
        with suppress(OSError):
            for path in () if self._folder is None else tuple(self._folder.iterdir()):
                if path.is_dir() and path.name not in names:
                    Cgroup(path).remove()


def oom_message(group: Cgroup | None, host_memory_mib: int | None) -> str:
    """A code and a text if the kernel has killed a member for lack of memory, else empty."""
    if group is None or not group.oom_kills():
        return ""
    bound = f"its limit of {host_memory_mib} MiB" if host_memory_mib else "the host has left"
    return f"{OOM_KILLED}: the kernel killed it, since it needed more memory than {bound}"


def _enable(folder: Path) -> None:
    for controller in _CONTROLLERS:
        with suppress(OSError):  # unavailable on this host
            _write(folder / "cgroup.subtree_control", f"+{controller}")


def _write(file: Path, text: str) -> None:
    """Writes a file of the kernel, and never creates a file."""
    opened = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(opened, text.encode("ascii"))
    finally:
        os.close(opened)


def _name(key: ProcessKey) -> str:
    return f"{re.sub(r'[^A-Za-z0-9-]', '_', key.instance)}.{key.epoch}.{key.rank}"
