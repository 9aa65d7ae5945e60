"""Maps the driver's pids to this agent's processes: by session, by marker, or by an ancestor's."""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from agent.processes.procfs import read_marker, read_process
from agent.state.process_records import ProcessKey, ProcessRecord

_DEPTH_MAX: Final = 64


class PidOwners:
    """Caches owners by pid and start, since the ancestry of a process does not change."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[tuple[int, int], ProcessKey | None] = {}

    def find(self, pids: Iterable[int], live: Iterable[ProcessRecord]) -> dict[int, ProcessKey | None]:
        """The owners of these pids; None: not this agent's. Blocks: it reads /proc.

        The driver also reports exited processes. They keep their owners of the last call, else they are left out, since
        they may have been of any process.
        """
        leaders = {record.pid: record.key for record in live if record.pid is not None}
        before = {pid: key for (pid, _), key in self._known.items()}
        owners: dict[int, ProcessKey | None] = {}
        known: dict[tuple[int, int], ProcessKey | None] = {}
        for pid in set(pids):
            process = read_process(pid)
            if process is not None:
                identity = (pid, process.start_ticks)
                cached = identity in self._known
                owners[pid] = known[identity] = self._known[identity] if cached else self._owner(pid, leaders)
            elif pid in before:
                owners[pid] = before[pid]
            elif _is_hidden(pid):
                owners[pid] = None
        self._known = known
        return owners

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
    """Whether /proc hides a live process, thus of another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False
