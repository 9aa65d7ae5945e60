"""Whose the driver's pids are, of the processes that this agent runs: by session, by marker, else by a parent's."""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from agent.processes.procfs import look, mark
from agent.records import Key, ProcessRecord

_DEPTH_MAX: Final = 64


class Owners:
    """Remembers what it found, since a pid with its start time names one process and its ancestry does not change.

    Args:
        folder: the agent's data folder, which the markers of its processes name.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[tuple[int, int], Key | None] = {}

    def find(self, pids: Iterable[int], live: Iterable[ProcessRecord]) -> dict[int, Key | None]:
        """The owners of these pids; None: not ours. Reads /proc: for a thread.

        The driver tells of processes that have ended since. Those that were here at the last look are still known; of
        the others nobody can say whose they were, and they are missing.
        """
        leaders = {record.pid: record.key for record in live if record.pid is not None}
        before = {pid: key for (pid, _), key in self._known.items()}
        found: dict[int, Key | None] = {}
        known: dict[tuple[int, int], Key | None] = {}
        for pid in set(pids):
            seen = look(pid)
            if seen is not None:
                name = (pid, seen.start_ticks)
                found[pid] = known[name] = self._known[name] if name in self._known else self._owner(pid, leaders)
            elif pid in before:
                found[pid] = before[pid]
            elif _is_hidden(pid):
                found[pid] = None
        self._known = known
        return found

    def _owner(self, pid: int, leaders: Mapping[int, Key]) -> Key | None:
        for _ in range(_DEPTH_MAX):
            seen = look(pid)
            if seen is None:
                return None
            key = leaders.get(seen.session) or leaders.get(seen.group) or mark(pid, self._folder)
            if key is not None or seen.parent <= 1:
                return key
            pid = seen.parent
        return None


def _is_hidden(pid: int) -> bool:
    """Whether /proc keeps it from us, as another user's: it lives, and is none of ours."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False
