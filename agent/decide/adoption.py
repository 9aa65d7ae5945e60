"""The plan for processes after the agent's restart: adopt, clean up, record as gone, kill strays. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.state.process_records import HostProcess, ProcessKey, ProcessRecord


@dataclass(frozen=True, slots=True)
class Adoption:
    """The plan by process."""

    adopt: tuple[tuple[ProcessRecord, HostProcess], ...]  # still running, with the leader
    # the leader is dead, but this process of its group lives: kill it, then report the exit
    clean_up: tuple[tuple[ProcessRecord, HostProcess], ...]
    gone: tuple[ProcessRecord, ...]  # nothing is left
    # pids with this agent's marker, but of no live process in the journal
    strays: tuple[int, ...]


def plan_adoption(live: Iterable[ProcessRecord], boot_id: str, processes: Sequence[HostProcess]) -> Adoption:
    """Compares the journal's live processes with those of /proc.

    A process is identified by pid and start, since programs that set their title overwrite the marker in their
    environment. A record without a pid (an earlier agent died during the spawn) is matched by marker. An ended leader
    counts as running while its parent keeps the zombie: its group may live, and has its number.
    """
    by_pid = {process.pid: process for process in processes if not process.zombie}
    kept = {process.pid: process for process in processes if process.zombie}
    leaders: dict[ProcessKey, HostProcess] = {}
    marked: dict[ProcessKey, HostProcess] = {}
    for process in by_pid.values():
        if process.marked is not None:
            marked.setdefault(process.marked, process)
            if process.pid == process.session:
                leaders.setdefault(process.marked, process)
    adopt, clean_up, gone, known = [], [], [], set()
    for record in live:
        known.add(record.key)
        leader = _leader(record, boot_id, by_pid, leaders) or _kept_leader(record, boot_id, kept)
        if leader is not None:
            adopt.append((record, leader))
        elif record.key in marked:
            clean_up.append((record, marked[record.key]))
        else:
            gone.append(record)
    strays = tuple(p.pid for p in by_pid.values() if p.marked is not None and p.marked not in known)
    return Adoption(tuple(adopt), tuple(clean_up), tuple(gone), strays)


def _leader(
    record: ProcessRecord, boot_id: str, by_pid: dict[int, HostProcess], leaders: dict[ProcessKey, HostProcess]
) -> HostProcess | None:
    if record.boot_id != boot_id:
        return None
    if record.pid is None:
        return leaders.get(record.key)
    process = by_pid.get(record.pid)
    if process is None or process.start_ticks != record.pid_start_ticks:
        return None
    return process if process.marked in (None, record.key) else None


def _kept_leader(record: ProcessRecord, boot_id: str, kept: dict[int, HostProcess]) -> HostProcess | None:
    process = kept.get(record.pid or 0)
    if process is None or record.boot_id != boot_id or process.start_ticks != record.pid_start_ticks:
        return None
    return process if process.parent == record.parent_pid else None
