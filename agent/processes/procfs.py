"""Reads /proc: live processes, their sessions, and the agent's marker in their environment. Linux only."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.state.process_records import HostProcess, ProcessKey

MARK_DIR: Final = "GPUWARD_AGENT_DIR"
MARK_INSTANCE: Final = "GPUWARD_INSTANCE"
MARK_EPOCH: Final = "GPUWARD_EPOCH"
MARK_RANK: Final = "GPUWARD_RANK"
_MARKS: Final = (MARK_DIR, MARK_INSTANCE, MARK_EPOCH, MARK_RANK)
_OF_THE_HOST: Final = Path("/proc/vmstat")


def read_process(pid: int) -> HostProcess | None:
    """One process without its marker; None if it is gone, or hidden from this agent and thus another user's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - thousands of times per scan; Path costs double
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name is in brackets and may contain brackets itself: fields are counted from the last bracket.
    fields = text[text.rindex(b")") + 2 :].split()
    zombie = fields[0] in (b"Z", b"X")
    return HostProcess(pid, int(fields[2]), int(fields[3]), int(fields[19]), zombie=zombie, parent=int(fields[1]))


def start_ticks(pid: int) -> int | None:
    """A process's start, in the kernel's ticks since boot; with the pid it identifies a process for a whole boot."""
    process = read_process(pid)
    return None if process is None else process.start_ticks


def process_name(pid: int) -> str:
    """The name of a process, at most 15 characters; empty if it is gone or hidden."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123 - as in read_process
            return file.read(64).decode(errors="replace").strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits only to be reaped does not."""
    process = read_process(pid)
    return process is not None and not process.zombie


def list_processes() -> Iterator[HostProcess]:
    """Every process of the host, without markers."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only, and quick
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def real_uid(pid: int) -> int | None:
    """The uid of a process, which it cannot hide; None: it is gone, or this agent may not see it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - as in read_process
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    at = text.find(b"\nUid:\t")
    return int(text[at + 6 :].split(maxsplit=1)[0])


def list_uids() -> frozenset[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names only, and quick
    return frozenset(uid for pid in pids if (uid := real_uid(pid)) is not None)


def read_marker(pid: int, folder: str) -> ProcessKey | None:
    """The key in a process's environment; None if the marker is missing or names another data folder."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as in read_process
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if MARK_DIR.encode() not in text:
        return None
    found = dict(
        part.split("=", 1) for part in os.fsdecode(text).split("\0") if part.startswith(_MARKS) and "=" in part
    )
    if found.get(MARK_DIR) != folder:
        return None
    try:
        return ProcessKey(found[MARK_INSTANCE], int(found[MARK_EPOCH]), int(found[MARK_RANK]))
    except (KeyError, ValueError):
        return None


def list_marked_processes(folder: str) -> tuple[HostProcess, ...]:
    """Every process of the host, with its marker of this data folder if it carries one."""
    return tuple(replace(process, marked=read_marker(process.pid, folder)) for process in list_processes())


def group_members(
    leader: int, key: ProcessKey, folder: str, *, trust_session: bool, uid: int | None = None
) -> tuple[int, ...]:
    """Live processes of a started process: its group and session, and all that carry its marker or have its uid.

    The marker also finds children that created a session of their own, and the uid those that have no marker any more.
    """
    return tuple(
        process.pid
        for process in list_processes()
        if not process.zombie
        and (
            (trust_session and leader in (process.session, process.group))
            or read_marker(process.pid, folder) == key
            or (uid is not None and real_uid(process.pid) == uid)
        )
    )


def oom_kills() -> int:
    """How often the kernel has killed for lack of memory since boot; 0 where the system does not count.

    For engines without a cgroup of their own, which counts exactly.
    """
    try:
        lines = _OF_THE_HOST.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
