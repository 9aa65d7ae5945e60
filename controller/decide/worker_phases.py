"""Decides that a worker is ready, unreachable or lost, from its silence. Pure.

Silence counts from the latest of: last message, start of the leader's term, return of the controller's own writes. An
outage of the controller is not the workers' death. Many workers silent at once are also taken for the controller's
fault: the breaker opens, and none of them becomes lost.

Also decides that the connections of one worker contradict each other, so that nothing may be placed or stopped there.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from controller.domain.phases import WorkerPhase, check_worker_edge
from controller.domain.workers import (
    AGENT_STOPPED,
    BREAKER_OPEN,
    CONFIRMED_DEAD,
    DISCONNECTED,
    RECONNECTS_TOO_OFTEN,
    SILENT,
    TERM_AHEAD,
    TWO_IDENTITIES,
    PastHello,
    Quarantine,
    WorkerChange,
    WorkerEffects,
    WorkerSettings,
    WorkersSnapshot,
    WorkerState,
)

W = WorkerPhase
_SETTLE_LOOK_S = 0.25
_HELLO_WINDOW_S: Final = 60.0
_TAKE_OVERS: Final = 5  # in the window, from one identity to another
_RECONNECTS: Final = 5  # in the window; more are too many
_QUARANTINE_S: Final = 60.0  # after the last contradiction


@dataclass(frozen=True, slots=True)
class _Contact:
    """A worker with its silence."""

    worker: WorkerState
    silence_s: float
    limit_s: float  # of silence; then it is unreachable
    fresh: bool  # connected, with a recent message of its own, and not about to leave

    @property
    def silent(self) -> bool:
        return self.silence_s >= self.limit_s


def decide(snapshot: WorkersSnapshot, db_healthy_since: datetime, settings: WorkerSettings) -> WorkerEffects:
    """Decides every worker's next phase.

    `db_healthy_since`: since when the hub's heartbeats have reached the database without a gap.
    """
    # Timestamps in the future were written before the database's clock was set back: they do not count.
    floor = max([db_healthy_since, *([snapshot.leads_since] if snapshot.leads_since <= snapshot.now else [])])
    contacts = [_contact(worker, snapshot.now, floor, settings) for worker in snapshot.workers]
    was_open = any(worker.reason == BREAKER_OPEN for worker in snapshot.workers)
    is_open = _breaker(contacts, was_open, settings)
    changes: list[WorkerChange] = []
    deadlines: list[float] = []
    for contact in contacts:
        new, reason = _next(contact, snapshot.term, is_open, settings)
        change = _change(contact, new, reason, snapshot.now, settings)
        if change is not None:
            changes.append(change)
        deadlines += _deadlines(contact, new, is_open, settings)
    unsettled = snapshot.cut_at is not None
    settles = unsettled and _settles(snapshot, settings)
    if unsettled and not settles:
        deadlines.append(_SETTLE_LOOK_S)
    return WorkerEffects(tuple(changes), is_open, was_open, min(deadlines, default=None), unsettled, settles)


def _settles(snapshot: WorkersSnapshot, settings: WorkerSettings) -> bool:
    """Whether all agents have reported what runs since the ledger lost commits, or have had the time to."""
    led_s = (snapshot.now - snapshot.leads_since).total_seconds()
    if not 0 <= led_s < settings.settle_s:
        return True
    cut_at = snapshot.cut_at or snapshot.now
    awaited = [w for w in snapshot.workers if w.reported and w.phase is not W.LOST and not _known_gone(w)]
    return all(w.reported_at is not None and w.reported_at > cut_at for w in awaited)


def _contact(worker: WorkerState, now: datetime, floor: datetime, settings: WorkerSettings) -> _Contact:
    last_seen = worker.last_seen if worker.last_seen is not None and worker.last_seen <= now else None
    since = floor if last_seen is None else max(last_seen, floor)
    limit_s = settings.unreachable_after_s if worker.connected else settings.disconnected_after_s
    age_s = math.inf if last_seen is None else (now - last_seen).total_seconds()
    return _Contact(
        worker,
        silence_s=max(0.0, (now - since).total_seconds()),
        limit_s=0.0 if worker.clean else limit_s,
        fresh=worker.connected and worker.reported and not worker.clean and age_s < settings.unreachable_after_s,
    )


def _breaker(contacts: list[_Contact], was_open: bool, settings: WorkerSettings) -> bool:
    """Whether too many workers fell silent at once. It opens above the share and closes only below it.

    Lost workers count as workers but not as silent: they did not fall silent now. Workers that shut down cleanly or
    were confirmed dead do not count as silent either.
    """
    live = sum(1 for c in contacts if c.worker.phase is not W.JOINING)
    silent = sum(
        1 for c in contacts if c.worker.phase in (W.READY, W.UNREACHABLE) and c.silent and not _known_gone(c.worker)
    )
    if silent < settings.breaker_least:
        return False
    share = silent * settings.breaker_one_in
    return share > live or (was_open and share == live)


def _known_gone(worker: WorkerState) -> bool:
    return worker.confirmed_dead or worker.clean


def _next(contact: _Contact, term: int, breaker_open: bool, settings: WorkerSettings) -> tuple[WorkerPhase, str]:
    worker = contact.worker
    if worker.phase is W.JOINING and not worker.reported:
        return W.JOINING, worker.reason
    if contact.fresh:
        # An agent that has received a later term, as after a restore from a backup, would refuse all commands.
        why = TERM_AHEAD if worker.highest_term > term else worker.quarantine
        return (_held_back(worker.phase), why) if why else (W.READY, "")
    if worker.phase is W.LOST:
        return W.LOST, worker.reason
    if not contact.silent and not worker.confirmed_dead:
        return worker.phase, worker.reason
    lost = worker.confirmed_dead or (contact.silence_s >= settings.lost_after_s and not breaker_open)
    if worker.phase is W.UNREACHABLE and lost:
        return W.LOST, _why_silent(worker)
    held_back = breaker_open and not _known_gone(worker)
    return W.UNREACHABLE, BREAKER_OPEN if held_back else _why_silent(worker)


def _held_back(phase: WorkerPhase) -> WorkerPhase:
    """The phase of a worker that is connected but cannot be used."""
    return W.UNREACHABLE if phase is W.READY else phase


def _why_silent(worker: WorkerState) -> str:
    if worker.confirmed_dead:
        return CONFIRMED_DEAD
    if worker.clean:
        return AGENT_STOPPED
    return SILENT if worker.connected else DISCONNECTED


def _change(
    contact: _Contact, new: WorkerPhase, reason: str, now: datetime, settings: WorkerSettings
) -> WorkerChange | None:
    worker = contact.worker
    if (new, reason) == (worker.phase, worker.reason):
        return None
    if new is not worker.phase:
        check_worker_edge(worker.name, worker.phase, new)
    fence_until = _fence(contact, now, settings) if new is W.LOST and not contact.fresh else None
    return WorkerChange(
        worker.id,
        worker.name,
        worker.session,
        worker.phase,
        new,
        reason,
        fence_until,
        {"silence_s": round(contact.silence_s, 1), "connected": worker.connected, "session": worker.session},
        last_seen=worker.last_seen,
    )


def _fence(contact: _Contact, now: datetime, settings: WorkerSettings) -> datetime | None:
    """When no process on the worker can run any more; None if they do not end by themselves, so that it must return."""
    if contact.worker.confirmed_dead:
        return now
    if contact.worker.stops_within_s is None:
        return None
    ends_in_s = contact.worker.stops_within_s + settings.fence_margin_s - contact.silence_s
    return now + timedelta(seconds=ends_in_s)


def _deadlines(contact: _Contact, new: WorkerPhase, breaker_open: bool, settings: WorkerSettings) -> list[float]:
    """Seconds until time alone changes this worker's phase."""
    worker = contact.worker
    if worker.quarantine and contact.fresh:
        return [worker.quarantined_for_s, max(0.0, contact.limit_s - contact.silence_s)]
    if new is W.LOST or (new is W.JOINING and not worker.reported):
        return []
    if worker.confirmed_dead and not contact.fresh:
        return [0.0]
    if new is W.UNREACHABLE and contact.silent:
        return [] if breaker_open else [max(0.0, settings.lost_after_s - contact.silence_s)]
    return [max(0.0, contact.limit_s - contact.silence_s)]


def quarantine_after(hellos: Sequence[PastHello]) -> Quarantine | None:
    """The quarantine that follows from these hellos, the newest last.

    Two agents with one identity (a copied data folder or a cloned host) take each other's connection over in turn. A
    report of one is not true of the other, so neither may be believed. An agent that reconnects all the time may be
    believed, but cannot be relied on.
    """
    if not hellos:
        return None
    now = hellos[-1].at
    recent = [hello for hello in hellos if 0 <= (now - hello.at).total_seconds() < _HELLO_WINDOW_S]
    until = now + timedelta(seconds=_QUARANTINE_S)
    pairs = itertools.pairwise(recent)
    if sum(older.identity != newer.identity for older, newer in pairs) >= _TAKE_OVERS:
        newest = {hello.identity: hello.address for hello in recent}
        return Quarantine(TWO_IDENTITIES, until, tuple(dict.fromkeys(newest.values())))
    if len(recent) - 1 > _RECONNECTS:
        return Quarantine(RECONNECTS_TOO_OFTEN, until, (recent[-1].address,))
    return None
