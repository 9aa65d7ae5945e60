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
    """Without the marker; None if the process is gone, or hidden from this agent, thus another user's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - thousands of times per scan; Path costs double
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # Fields are counted from the last bracket: the name, in brackets, may contain brackets.
    fields = text[text.rindex(b")") + 2 :].split()
    zombie = fields[0] in (b"Z", b"X")
    return HostProcess(pid, int(fields[2]), int(fields[3]), int(fields[19]), zombie=zombie, parent=int(fields[1]))


def start_ticks(pid: int) -> int | None:
    """A process's start, in the kernel's ticks since boot; with the pid it identifies a process within a boot."""
    process = read_process(pid)
    return None if process is None else process.start_ticks


def process_name(pid: int) -> str:
    """At most 15 characters; empty if the process is gone or hidden."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123 - as in read_process
            return file.read(64).decode(errors="replace").strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    process = read_process(pid)
    return process is not None and not process.zombie


def list_processes() -> Iterator[HostProcess]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only, and quick
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def real_uid(pid: int) -> int | None:
    """The uid of a process, which it cannot hide; None if it is gone, or hidden from this agent."""
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
    marks = dict(
        part.split("=", 1) for part in os.fsdecode(text).split("\0") if part.startswith(_MARKS) and "=" in part
    )
    if marks.get(MARK_DIR) != folder:
        return None
    try:
        return ProcessKey(marks[MARK_INSTANCE], int(marks[MARK_EPOCH]), int(marks[MARK_RANK]))
    except (KeyError, ValueError):
        return None


def list_marked_processes(folder: str) -> tuple[HostProcess, ...]:
    """Every process of the host, with its marker of this data folder, if any."""
    return tuple(replace(process, marked=read_marker(process.pid, folder)) for process in list_processes())


def group_members(
    leader: int, key: ProcessKey, folder: str, *, trust_session: bool, uid: int | None = None
) -> tuple[int, ...]:
    """Live processes of a leader: its group and session, and all with its marker or its uid.

    The marker also finds children with a session of their own, and the uid finds children without the marker.
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
    """The kernel's kills for lack of memory since boot; 0 if not counted. For engines without a cgroup."""
    try:
        lines = _OF_THE_HOST.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
