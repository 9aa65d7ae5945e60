"""Whose the driver's pids are, of the processes that this agent runs: by session, by marker, else by a parent's."""

from collections.abc import Iterable, Mapping
from typing import Final

from gpuward.agent.processes.procfs import look, mark
from gpuward.agent.records import Key, ProcessRecord

_DEPTH_MAX: Final = 64


class Owners:
    """Remembers what it found, since a pid with its start time names one process and its ancestry does not change.

    Args:
        folder: the agent's data folder, which the markers of its processes name.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[tuple[int, int], Key | None] = {}

    def find(self, pids: Iterable[int], live: Iterable[ProcessRecord]) -> dict[int, Key]:
        """The owners of those pids that are ours. Reads /proc: for a thread."""
        leaders = {record.pid: record.key for record in live if record.pid is not None}
        found: dict[int, Key] = {}
        known: dict[tuple[int, int], Key | None] = {}
        for pid in set(pids):
            seen = look(pid)
            if seen is None:
                continue
            name = (pid, seen.start_ticks)
            key = self._known[name] if name in self._known else self._owner(pid, leaders)
            known[name] = key
            if key is not None:
                found[pid] = key
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
