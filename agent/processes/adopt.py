"""After the agent's own restart: which processes still run, which are dead, what is left over. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.processes.procfs import Seen
from agent.records import Key, ProcessRecord


@dataclass(frozen=True, slots=True)
class Adoption:
    """What to do with each.

    Attributes:
        adopt: still running, with the leader.
        clear: the leader is dead, but one of its group (named here) lives on: kill the rest before it counts as dead.
        bury: nothing is left.
        kill: pids that carry our marker, but of no process that the journal holds for living.
    """

    adopt: tuple[tuple[ProcessRecord, Seen], ...]
    clear: tuple[tuple[ProcessRecord, Seen], ...]
    bury: tuple[ProcessRecord, ...]
    kill: tuple[int, ...]


def plan_adoption(live: Iterable[ProcessRecord], boot_id: str, seen: Sequence[Seen]) -> Adoption:
    """Compares the journal's living processes with what /proc shows.

    A pid with its start time names a process for a whole boot, so it is believed without the marker: programs that set
    their title overwrite their environment. A record without a pid (the agent died while it spawned) goes by marker.
    """
    by_pid = {process.pid: process for process in seen if not process.zombie}
    leaders: dict[Key, Seen] = {}
    for process in by_pid.values():
        if process.marked is not None and process.pid == process.session:
            leaders.setdefault(process.marked, process)
    rest: dict[Key, Seen] = {}
    for process in by_pid.values():
        if process.marked is not None:
            rest.setdefault(process.marked, process)
    adopt, clear, bury, known = [], [], [], set()
    for record in live:
        known.add(record.key)
        leader = _leader(record, boot_id, by_pid, leaders)
        if leader is not None:
            adopt.append((record, leader))
        elif record.key in rest:
            clear.append((record, rest[record.key]))
        else:
            bury.append(record)
    strays = tuple(p.pid for p in by_pid.values() if p.marked is not None and p.marked not in known)
    return Adoption(tuple(adopt), tuple(clear), tuple(bury), strays)


def _leader(record: ProcessRecord, boot_id: str, by_pid: dict[int, Seen], leaders: dict[Key, Seen]) -> Seen | None:
    if record.boot_id != boot_id:
        return None
    if record.pid is None:
        return leaders.get(record.key)
    process = by_pid.get(record.pid)
    if process is None or process.start_ticks != record.pid_start_ticks:
        return None
    return process if process.marked in (None, record.key) else None
