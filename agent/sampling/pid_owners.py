"""Maps the driver's pids to the processes that this agent runs: by session, by marker, or by an ancestor's."""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from agent.processes.procfs import read_marker, read_process
from agent.state.process_records import ProcessKey, ProcessRecord

_DEPTH_MAX: Final = 64


class PidOwners:
    """Caches owners: a pid with its start time identifies one process, and its ancestry does not change."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[tuple[int, int], ProcessKey | None] = {}

    def find(self, pids: Iterable[int], live: Iterable[ProcessRecord]) -> dict[int, ProcessKey | None]:
        """The owners of these pids; None: not this agent's. Reads /proc: call it in a thread.

        The driver also reports processes that have exited. Their owners are known if the last call found them; else
        they are left out, because they may have been any process's.
        """
        leaders = {record.pid: record.key for record in live if record.pid is not None}
        before = {pid: key for (pid, _), key in self._known.items()}
        found: dict[int, ProcessKey | None] = {}
        known: dict[tuple[int, int], ProcessKey | None] = {}
        for pid in set(pids):
            process = read_process(pid)
            if process is not None:
                identity = (pid, process.start_ticks)
                cached = identity in self._known
                found[pid] = known[identity] = self._known[identity] if cached else self._owner(pid, leaders)
            elif pid in before:
                found[pid] = before[pid]
            elif _is_hidden(pid):
                found[pid] = None
        self._known = known
        return found

    def _owner(self, pid: int, leaders: Mapping[int, ProcessKey]) -> ProcessKey | None:
        for _ in range(_DEPTH_MAX):
            process = read_process(pid)
            if process is None:
                return None
            key = leaders.get(process.session) or leaders.get(process.group) or read_marker(pid, self._folder)
            if key is not None or process.parent <= 1:
                return key
            pid = process.parent
        return None


def _is_hidden(pid: int) -> bool:
    """Whether /proc hides a live process from this agent: then it is another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False
