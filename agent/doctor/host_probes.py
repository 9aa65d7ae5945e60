"""Probes of the host: driver, cgroups, ports, disks, limits, and the agent of a data folder."""

import errno
import getpass
import os
import re
import resource
import shutil
import socket
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import psutil

from agent.decide.doctor.gpus import DriverProbe, NvmlProbe
from agent.decide.doctor.host import (
    AgentProbe,
    CgroupProbe,
    DiskProbe,
    EnginePorts,
    EnvironmentProbe,
    IsolationProbe,
    LimitProbe,
    PortProbe,
)
from agent.decide.engine_accounts import parse_engine_user
from agent.decide.engine_environment import SETTING, held_back
from agent.errors import AgentError, NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.host_inventory.host import read_boot_id, real_host
from agent.processes.cgroups import delegated_folder
from agent.processes.engine_accounts import first_account
from agent.processes.ports import FIRST_PORT, LAST_PORT
from agent.state.host_state import HostState
from agent.state.journal import LOCK_FILE, read_host_state

_CGROUPS: Final = Path("/sys/fs/cgroup")
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SHM: Final = "/dev/shm"  # noqa: S108 - only its size is read
_MODULE: Final = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")
_NVIDIA: Final = "0x10de"
_DISPLAYS: Final = ("0x0300", "0x0302")
_NODE: Final = re.compile(r"nvidia\d+")
_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm")


def probe_driver(root: Path = Path("/")) -> DriverProbe:
    """`root`: of the host's file system."""
    nodes = sorted(path for path in (root / "dev").glob("nvidia[0-9]*") if _NODE.fullmatch(path.name))
    needed = [*nodes, *(root / "dev" / name for name in _CONTROL_NODES)]
    denied = [str(path) for path in needed if path.exists() and not os.access(path, os.R_OK | os.W_OK)]
    return DriverProbe(_module(root), _on_bus(root), len(nodes), tuple(denied), _user_name())


def _module(root: Path) -> str | None:
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _MODULE.search(text)
    return match[1] if match else None


def _on_bus(root: Path) -> int | None:
    count = 0
    try:
        for device in (root / "sys/bus/pci/devices").iterdir():
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
            count += vendor == _NVIDIA and kind.startswith(_DISPLAYS)
    except OSError:
        return None
    return count


def _user_name() -> str:
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):
        return f"user {os.geteuid()}"


async def probe_nvml() -> NvmlProbe:
    host = real_host({})
    reader = ChildReader(host=host.hostname, host_memory_mib=host.memory_mib)
    try:
        await reader.open()
        gpus = await reader.read()
        if gpus is None:
            return NvmlProbe(error=reader.error() or "nvml_hang: the GPUs were not read in time")
        return NvmlProbe(await reader.driver(), gpus)
    except NoGpusError as error:
        return NvmlProbe(error=reader.error() or str(error))
    finally:
        await reader.aclose()


def probe_cgroups(agent: int | None, root: Path = _CGROUPS, proc: Path = Path("/proc")) -> CgroupProbe:
    """`agent`: pid of the running agent; None: none runs."""
    try:
        controllers = frozenset((root / "cgroup.controllers").read_text().split())
    except OSError:
        return CgroupProbe(unified=False)
    delegated = None if agent is None else delegated_folder(root, proc / str(agent) / "cgroup") is not None
    return CgroupProbe(unified=True, controllers=controllers, delegated=delegated)


def read_agent(data_dir: Path) -> tuple[AgentProbe, HostState | None]:
    """The agent of a data folder, and its journal's state (None: missing or unreadable)."""
    try:
        state = read_host_state(data_dir)
    except (OSError, sqlite3.Error, msgspec.DecodeError):
        return AgentProbe(str(data_dir), readable=False), None
    pid = _lock_holder(data_dir / LOCK_FILE)
    if state is None:
        return AgentProbe(str(data_dir), pid=pid), None
    return AgentProbe(str(data_dir), pid=pid, worker=state.worker, port=state.proxy_port), state


def probe_isolation(user: str | None, folders: Iterable[Path]) -> IsolationProbe:
    root = os.geteuid() == 0
    if user is None:
        return IsolationProbe(root)
    try:
        chosen = parse_engine_user(user)
        account = first_account(chosen)
    except (AgentError, ValueError) as error:
        return IsolationProbe(root, user, error=str(error))
    stopped = next((at for folder in folders if (at := account.stopped_at(folder)) is not None), None)
    return IsolationProbe(root, user, bool(chosen.uids), "" if stopped is None else str(stopped))


def probe_environment(agent: int | None, here: Mapping[str, str], listed: tuple[str, ...]) -> EnvironmentProbe:
    """Variables that engines do not get: of the running agent with this pid, else of an agent that starts `here`."""
    if agent is None:
        return EnvironmentProbe(held_back(here, listed), running=False)
    try:
        variables = Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")
    except OSError:
        return EnvironmentProbe((), running=True, readable=False)
    env = dict(os.fsdecode(variable).partition("=")[::2] for variable in variables if variable)
    if (own := env.get(SETTING)) is not None:
        listed = tuple(entry.strip() for entry in own.split(","))
    return EnvironmentProbe(held_back(env, listed), running=True)


def condemned_gpus(journal: HostState | None) -> dict[str, str]:
    if journal is None or journal.condemned_boot_id != read_boot_id():
        return {}
    return {uuid: known.reason for uuid, known in journal.condemned.items()}


def _lock_holder(lock: Path) -> int | None:
    # Not by locking, which could make the start of an agent fail.
    try:
        inode = lock.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and fields[5].rpartition(":")[2] == str(inode) and fields[4].isdigit():
            return int(fields[4])
    return None


def probe_port(host: str, port: int) -> PortProbe:
    """Does not fill in `is_agent`."""
    if port == 0:
        return PortProbe(0)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return PortProbe(port, listening=True, by=_listener(port))
        return PortProbe(port, error=error.strerror or str(error))
    return PortProbe(port)


def _listener(port: int) -> str:
    """The process that listens there, by name and pid; empty if hidden from this user."""
    try:
        for conn in psutil.net_connections("tcp"):
            if conn.status == psutil.CONN_LISTEN and conn.laddr and conn.laddr.port == port and conn.pid:
                return f"{psutil.Process(conn.pid).name()} (pid {conn.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def engine_ports() -> EnginePorts:
    listening = {
        conn.laddr.port
        for conn in psutil.net_connections("tcp")
        if conn.status == psutil.CONN_LISTEN and conn.laddr and FIRST_PORT <= conn.laddr.port <= LAST_PORT
    }
    try:
        outgoing: int | None = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        outgoing = None
    return EnginePorts(FIRST_PORT, LAST_PORT, len(listening), outgoing)


def probe_disk(what: str, folder: Path) -> DiskProbe:
    """The disk of a folder, which may not exist yet."""
    existing = folder
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110 - Path.exists raises
        existing = existing.parent
    status = os.statvfs(existing)
    left = status.f_favail / status.f_files if status.f_files else None
    writable = os.access(existing, os.W_OK | os.X_OK) and existing.is_dir()
    return DiskProbe(what, str(folder), shutil.disk_usage(existing).free, left, writable)


def probe_limits(gpus: int) -> LimitProbe:
    try:
        status = os.statvfs(_SHM)
        shm: int | None = status.f_frsize * status.f_blocks
    except OSError:
        shm = None
    return LimitProbe(resource.getrlimit(resource.RLIMIT_NOFILE)[1], shm, gpus)
