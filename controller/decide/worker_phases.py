"""Which workers can be relied upon: joining, ready, unreachable, lost. Pure.

Silence is counted from the latest of last message, start of the reign and return of our own writes, because our outage
is not their death. Many silent at once are taken for our fault, too: the breaker keeps them from being given up.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.domain.phases import WorkerPhase, check_worker_edge
from controller.domain.workers import (
    AGENT_STOPPED,
    BREAKER_OPEN,
    CONFIRMED_DEAD,
    DISCONNECTED,
    SILENT,
    TERM_AHEAD,
    WorkerChange,
    WorkerSettings,
    WorkersPlan,
    WorkersSnapshot,
    WorkerState,
)

W = WorkerPhase


@dataclass(frozen=True, slots=True)
class _Hearing:
    """How well a worker is heard."""

    worker: WorkerState
    silence_s: float
    limit_s: float  # of silence, then it is unreachable
    fresh: bool  # connected, with new words of its own: no benefit of the doubt

    @property
    def silent(self) -> bool:
        """Whether its silence has reached the limit."""
        return self.silence_s >= self.limit_s


def decide(snapshot: WorkersSnapshot, db_healthy_since: datetime, settings: WorkerSettings) -> WorkersPlan:
    """Works out every worker's next phase.

    Args:
        snapshot: all undeleted workers at one moment.
        db_healthy_since: since when what the hub hears has reached the database without a gap.
        settings: limits.
    """
    # Stamps that are still to come were made before the database's clock was set back: they tell nothing.
    floor = max([db_healthy_since, *([snapshot.leader_since] if snapshot.leader_since <= snapshot.now else [])])
    heard = [_hear(worker, snapshot.now, floor, settings) for worker in snapshot.workers]
    was_open = any(worker.reason == BREAKER_OPEN for worker in snapshot.workers)
    is_open = _breaker(heard, was_open, settings)
    changes: list[WorkerChange] = []
    waits: list[float] = []
    for hearing in heard:
        new, reason = _next(hearing, snapshot.term, is_open, settings)
        change = _change(hearing, new, reason, snapshot.now, settings)
        if change is not None:
            changes.append(change)
        waits += _waits(hearing, new, is_open, settings)
    return WorkersPlan(tuple(changes), is_open, was_open, min(waits, default=None))


def _hear(worker: WorkerState, now: datetime, floor: datetime, settings: WorkerSettings) -> _Hearing:
    last_seen = worker.last_seen if worker.last_seen is not None and worker.last_seen <= now else None
    since = floor if last_seen is None else max(last_seen, floor)
    if worker.connected:
        limit_s = settings.unreachable_after_s
    else:
        limit_s = 0.0 if worker.clean else settings.disconnected_after_s
    age_s = math.inf if last_seen is None else (now - last_seen).total_seconds()
    return _Hearing(
        worker,
        silence_s=max(0.0, (now - since).total_seconds()),
        limit_s=limit_s,
        fresh=worker.connected and worker.reported and age_s < settings.unreachable_after_s,
    )


def _breaker(heard: list[_Hearing], was_open: bool, settings: WorkerSettings) -> bool:
    """Whether too many fell silent at once: opens above the share, closes only below it.

    Those lost already count as workers but not as silent: they did not fall silent now. Those that said goodbye or that
    the operator declared dead are no riddle.
    """
    live = sum(1 for h in heard if h.worker.phase is not W.JOINING)
    silent = sum(
        1 for h in heard if h.worker.phase in (W.READY, W.UNREACHABLE) and h.silent and not _known_gone(h.worker)
    )
    if silent < settings.breaker_least:
        return False
    share = silent * settings.breaker_one_in
    return share > live or (was_open and share == live)


def _known_gone(worker: WorkerState) -> bool:
    return worker.confirmed_dead or (worker.clean and not worker.connected)


def _next(hearing: _Hearing, term: int, breaker_open: bool, settings: WorkerSettings) -> tuple[WorkerPhase, str]:
    """The phase and its reason."""
    worker = hearing.worker
    if worker.phase is W.JOINING and not worker.reported:
        return W.JOINING, worker.reason
    if hearing.fresh:
        # An agent that has obeyed a later term than ours, as after a restore from a backup, would refuse all orders.
        return (_held_back(worker.phase), TERM_AHEAD) if worker.highest_term > term else (W.READY, "")
    if worker.phase is W.LOST:
        return W.LOST, worker.reason
    if not hearing.silent and not worker.confirmed_dead:
        return worker.phase, worker.reason
    given_up = worker.confirmed_dead or (hearing.silence_s >= settings.lost_after_s and not breaker_open)
    if worker.phase is W.UNREACHABLE and given_up:
        return W.LOST, _why_silent(worker)
    held_back = breaker_open and not _known_gone(worker)
    return W.UNREACHABLE, BREAKER_OPEN if held_back else _why_silent(worker)


def _held_back(phase: WorkerPhase) -> WorkerPhase:
    """The phase of a worker that is heard but cannot be used."""
    return W.UNREACHABLE if phase is W.READY else phase


def _why_silent(worker: WorkerState) -> str:
    if worker.confirmed_dead:
        return CONFIRMED_DEAD
    if worker.connected:
        return SILENT
    return AGENT_STOPPED if worker.clean else DISCONNECTED


def _change(
    hearing: _Hearing, new: WorkerPhase, reason: str, now: datetime, settings: WorkerSettings
) -> WorkerChange | None:
    worker = hearing.worker
    if (new, reason) == (worker.phase, worker.reason):
        return None
    if new is not worker.phase:
        check_worker_edge(worker.name, worker.phase, new)
    fence_until = _fence(hearing, now, settings) if new is W.LOST and not hearing.fresh else None
    return WorkerChange(
        worker.id,
        worker.name,
        worker.session,
        worker.phase,
        new,
        reason,
        fence_until,
        {"silence_s": round(hearing.silence_s, 1), "connected": worker.connected, "session": worker.session},
        last_seen=worker.last_seen,
    )


def _fence(hearing: _Hearing, now: datetime, settings: WorkerSettings) -> datetime | None:
    """After it nothing of the worker runs; None: its processes do not end by themselves, so it must return first."""
    if hearing.worker.confirmed_dead:
        return now
    if hearing.worker.stops_within_s is None:
        return None
    ends_in_s = hearing.worker.stops_within_s + settings.fence_margin_s - hearing.silence_s
    return now + timedelta(seconds=ends_in_s)


def _waits(hearing: _Hearing, new: WorkerPhase, breaker_open: bool, settings: WorkerSettings) -> list[float]:
    """Seconds until mere time changes something about this worker."""
    worker = hearing.worker
    if new is W.LOST or (new is W.JOINING and not worker.reported):
        return []
    if worker.confirmed_dead and not hearing.fresh:
        return [0.0]
    if new is W.UNREACHABLE and hearing.silent:
        return [] if breaker_open else [max(0.0, settings.lost_after_s - hearing.silence_s)]
    return [max(0.0, hearing.limit_s - hearing.silence_s)]
