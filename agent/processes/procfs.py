"""Reads /proc: who is alive, in which session, and which of our markers its environment carries. Linux only."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agent.records import Key

MARK_DIR: Final = "GPUWARD_AGENT_DIR"
MARK_INSTANCE: Final = "GPUWARD_INSTANCE"
MARK_EPOCH: Final = "GPUWARD_EPOCH"
MARK_RANK: Final = "GPUWARD_RANK"
_MARKS: Final = (MARK_DIR, MARK_INSTANCE, MARK_EPOCH, MARK_RANK)


@dataclass(frozen=True, slots=True)
class Seen:
    """One process as /proc shows it. `marked` is the key that its environment carries, None where it carries none."""

    pid: int
    group: int
    session: int
    start_ticks: int
    zombie: bool
    marked: Key | None = None
    parent: int = 0


def look(pid: int) -> Seen | None:
    """One process without its marker, or None when it is gone, or hidden from us and so none of ours."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - thousands of times per scan; Path costs double
            text = file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name stands in brackets and may hold anything, brackets too: fields are counted from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    zombie = fields[0] in (b"Z", b"X")
    return Seen(pid, int(fields[2]), int(fields[3]), int(fields[19]), zombie=zombie, parent=int(fields[1]))


def scan() -> Iterator[Seen]:
    """Every process of the machine, without markers."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only, and quick
        if name.isdigit() and (seen := look(int(name))) is not None:
            yield seen


def mark(pid: int, folder: str) -> Key | None:
    """The key that a process's environment carries, if it is one of the agent of this data folder."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as in look
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
        return Key(found[MARK_INSTANCE], int(found[MARK_EPOCH]), int(found[MARK_RANK]))
    except (KeyError, ValueError):
        return None


def marked_scan(folder: str) -> tuple[Seen, ...]:
    """Every process with the marker of this data folder, where it carries one."""
    return tuple(Seen(s.pid, s.group, s.session, s.start_ticks, s.zombie, mark(s.pid, folder)) for s in scan())


def members(leader: int, key: Key, folder: str, *, trust_session: bool) -> tuple[int, ...]:
    """Living processes that belong to a started one: its group and session, and those that carry its marker.

    The marker also finds children that made themselves a session of their own.

    Args:
        leader: pid of the process that was started.
        key: what its environment is marked with.
        folder: the agent's data folder, in the marker too.
        trust_session: False when the leader's pid may belong to another by now: then only markers count.
    """
    found = []
    for seen in scan():
        if seen.zombie:
            continue
        ours = trust_session and leader in (seen.session, seen.group)
        if ours or mark(seen.pid, folder) == key:
            found.append(seen.pid)
    return tuple(found)
