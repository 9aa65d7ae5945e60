"""How far a rollout is: canary, progress, completion, failure, abort and pause. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from controller.decide.rollouts.texts import (
    aborted_text,
    blocked_text,
    canary_size,
    canary_text,
    complete_text,
    failed_text,
    progress_text,
    started_text,
)
from controller.domain.rollouts import RequestOutcomes, RolloutRecord, RolloutSnapshot, RolloutState
from schemas.manifest.rollout import Rollout

S = RolloutState
UNDER_WAY: Final = frozenset({S.CANARY, S.PROGRESSING})
_TRIES: Final = 3  # start timeouts until a rollout has failed
BLOCKED: Final = "rollout_blocked"
_LOOK_S: Final = 1.0  # while gateways' counts matter


@dataclass(frozen=True, slots=True)
class RolloutView:
    """The state of a deployment. Numbers are of instances."""

    revision: int  # that shall run
    settings: Rollout
    start_timeout_s: float  # of the revision
    wanted: int
    now: datetime
    snapshot: RolloutSnapshot = field(default_factory=RolloutSnapshot)  # stored and counted
    serving: int | None = None  # an older revision that runs now
    updated: int = 0  # replicas of the revision
    available: int = 0  # of these: have run for `ready_for`
    trying: int = 0  # of these: hold a place or have failed, and are not available
    failing: bool = False  # any of these has failed already, or the need cannot be computed
    trouble: str = ""  # the message of a failing replica
    hopeless: str = ""  # why no further try can help; empty if it may
    coming: int = 0  # of these: hold a place and are not available yet
    unplaced: int = 0  # of these: found no place for a while, which the end of other instances may free
    others_unplaced: int = 0  # such replicas of other revisions
    outdated: int = 0  # of other revisions, stopping too, unless their worker is lost
    outdated_ready: int = 0  # of these: run
    stopping: int = 0  # of these: stop
    holding: int = 0  # have a place as replicas, also if they leave it for a successor
    holders: tuple[tuple[int, str], ...] = ()  # revision and name of each replica of another revision with a place


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """A change that users see, with its evidence."""

    reason: str
    message: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The record to store, the events to write, and the time of the next check."""

    record: RolloutRecord
    events: tuple[RolloutEvent, ...] = ()
    next_check_s: float | None = None


def judge(view: RolloutView) -> Judgement:
    started = _begin(view)
    record = _weighed(view, _moved(view, _counted(view, started)))
    events: list[RolloutEvent] = []
    stored = view.snapshot.record
    is_new = stored is None or stored.attempt != started.attempt
    if is_new and record.fallback is not None:
        events.append(_event("rollout_started", started_text(started), started))
    first = started.attempt == 1 and started.fallback is None  # nothing was replaced
    if record.state is not started.state and not first and (reason := _EVENTS.get(record.state)) is not None:
        events.append(_event(reason, record.message, record, view.snapshot.outcomes))
    if started.state is S.CANARY and record.state is S.PROGRESSING:
        events.append(_event("rollout_promoted", record.message, record, view.snapshot.outcomes))
    return Judgement(record, tuple(events), _next_check_s(view, record))


_EVENTS: Final = {S.COMPLETE: "rollout_complete", S.FAILED: "rollout_failed", S.ABORTED: "rollout_aborted"}


def kept_up(view: RolloutView, record: RolloutRecord) -> int:
    """The wanted replicas without growth that has found no place yet."""
    return min(view.wanted, record.kept) if record.kept else view.wanted


def canary_replicas(view: RolloutView, record: RolloutRecord) -> int:
    """The number of canary replicas: its share of those that are kept up, at least one."""
    canary = view.settings.canary
    return 0 if canary is None else canary_size(kept_up(view, record), canary.weight)


def _begin(view: RolloutView) -> RolloutRecord:
    """The stored rollout, or a new rollout: of another revision, or of a revision that a user has tried again."""
    snapshot, stored = view.snapshot, view.snapshot.record
    requested = stored is not None and snapshot.asked != stored.seen
    if stored is not None and stored.revision == view.revision:
        if not requested:
            return stored
        if snapshot.paused or stored.state in UNDER_WAY or stored.state is S.COMPLETE:
            return replace(stored, seen=snapshot.asked)
    stable = stored.stable if stored is not None and stored.stable is not None else view.serving
    fresh = RolloutRecord(
        view.revision, stable, attempt=1 if stored is None else stored.attempt + 1, seen=snapshot.asked
    )
    compares = view.settings.canary is not None and fresh.fallback is not None
    return replace(fresh, state=S.CANARY) if compares else fresh


def _counted(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """The record with the present replicas and times."""
    if record.state is S.COMPLETE:
        return record
    kept = max(record.kept or min(view.wanted, view.holding), min(view.wanted, view.holding - view.settings.surge))
    counted = record = replace(record, updated=view.updated, available=view.available, kept=kept)
    if record.state not in UNDER_WAY:
        return replace(counted, trying_since=None, canary_since=None)
    since = record.trying_since
    if view.available > record.progressed or not view.trying or view.snapshot.paused:
        since = None
    if since is None and view.trying and not view.snapshot.paused:
        since = view.now
    canary_since = None
    if record.state is S.CANARY and view.available:
        complete = view.available >= canary_replicas(view, record)
        canary_since = record.canary_since or (view.now if complete else None)
    progressed = max(record.progressed, view.available)
    return replace(counted, trying_since=since, canary_since=canary_since, progressed=progressed)


def _moved(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """The record in the state that follows now, with reason and message."""
    if record.state not in UNDER_WAY:
        return record
    outcomes, paused = view.snapshot.outcomes, view.snapshot.paused
    if record.fallback is not None and _errors_exceed(view.settings, outcomes):
        message = aborted_text(record, view.settings, outcomes)
        return replace(record, state=S.ABORTED, reason="rollout_aborted", message=message, trying_since=None)
    if record.fallback is not None and not paused and _has_failed(view, record):
        message = failed_text(record, _TRIES * view.start_timeout_s, view.hopeless, view.trouble)
        return replace(record, state=S.FAILED, reason="rollout_failed", message=message, trying_since=None)
    if record.state is S.CANARY and (view.settings.canary is None or (not paused and _is_proven(view, record))):
        record = replace(record, state=S.PROGRESSING, canary_since=None)
    done = record.state is S.PROGRESSING and view.wanted > 0 and not view.outdated
    if done and view.available >= kept_up(view, record) and view.updated == view.available + view.unplaced:
        message = complete_text(record, view.wanted)
        done_record = replace(record, state=S.COMPLETE, stable=record.revision, reason="", message=message)
        return replace(done_record, trying_since=None, progressed=0)
    return _described(view, record)


def _described(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """A rollout under way, with reason and message."""
    if view.snapshot.paused:
        message = f"paused; {progress_text(record, view.wanted)}"
        return replace(record, reason="rollout_paused", message=message)
    if record.state is S.CANARY:
        silent = view.snapshot.outcomes.silent if view.settings.abort is not None else ()
        record = replace(
            record, reason="canary", message=canary_text(record, view.settings, canary_replicas(view, record), silent)
        )
    else:
        record = replace(record, reason="rolling_out", message=progress_text(record, view.wanted))
    if not _is_blocked(view, record):
        return record
    enough = kept_up(view, record) - view.available - view.outdated_ready + 1
    held = blocked_text(view.holders, enough)
    return replace(record, reason=BLOCKED, message=f"{record.message}; {held}")


def _is_blocked(view: RolloutView, record: RolloutRecord) -> bool:
    """Whether a replica finds no place, all replicas of older revisions serve, and none of these may be missing."""
    moves = view.stopping or view.coming or len(view.holders) > view.outdated_ready
    if moves or not view.unplaced or not view.holders:
        return False
    return view.available + view.outdated_ready <= kept_up(view, record) - view.settings.unavailable


def _weighed(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """The record with the share of the requests and the revision of missing replicas.

    Until the rollout is complete the share never falls, so no session returns to the old revision.
    """
    fallback, canary = record.fallback, view.settings.canary
    halted = view.snapshot.paused or record.state in (S.CANARY, S.FAILED, S.ABORTED)
    weight: int | None = None
    if fallback is not None and record.state is S.ABORTED:
        enough = view.outdated_ready >= max(kept_up(view, record) - view.settings.unavailable, 1)
        weight = 0 if enough else None
    elif fallback is not None and canary is not None and record.state is S.CANARY:
        weight = canary.weight
    elif fallback is not None and canary is not None and record.state is S.PROGRESSING:
        share = 100 * view.available // max(view.available + view.outdated_ready, 1)
        weight = max(record.weight or 0, canary.weight, share)
    elif fallback is not None and record.state is S.FAILED:
        weight = record.weight
    return replace(record, holds=halted and fallback is not None, weight=weight)


def _errors_exceed(settings: Rollout, outcomes: RequestOutcomes) -> bool:
    """The known counts suffice: a silent gateway may only add to them."""
    abort = settings.abort
    if abort is None or outcomes.requests < abort.after_requests:
        return False
    return outcomes.errors > abort.error_ratio * outcomes.requests


def _has_failed(view: RolloutView, record: RolloutRecord) -> bool:
    if view.hopeless:
        return True
    left_s = _left_s(view, record)
    return view.failing and left_s is not None and left_s <= 0


def _left_s(view: RolloutView, record: RolloutRecord) -> float | None:
    """Seconds until the revision has tried for too long; None if it does not try."""
    if record.trying_since is None:
        return None
    return _TRIES * view.start_timeout_s - _passed_s(view.now, record.trying_since)


def _is_proven(view: RolloutView, record: RolloutRecord) -> bool:
    """Whether the canary has lasted long enough. Where errors are judged, all gateways must report."""
    canary, since = view.settings.canary, record.canary_since
    if canary is None or since is None or _passed_s(view.now, since) < canary.for_s:
        return False
    return view.settings.abort is None or not view.snapshot.outcomes.silent


def _passed_s(now: datetime, since: datetime) -> float:
    return max((now - since) / timedelta(seconds=1), 0.0)


def _next_check_s(view: RolloutView, record: RolloutRecord) -> float | None:
    if record.state not in UNDER_WAY:
        return None
    due: list[float] = []
    if record.fallback is not None and view.settings.abort is not None and (view.updated or view.wanted):
        due.append(_LOOK_S)
    left_s = _left_s(view, record)
    if left_s is not None and record.fallback is not None:
        due.append(left_s if left_s > 0 else _TRIES * _LOOK_S)
    if record.canary_since is not None and view.settings.canary is not None and not view.snapshot.paused:
        due.append(max(view.settings.canary.for_s - _passed_s(view.now, record.canary_since), _LOOK_S / 10))
    return min(due, default=None)


def _event(reason: str, message: str, record: RolloutRecord, outcomes: RequestOutcomes | None = None) -> RolloutEvent:
    evidence: dict[str, Any] = {"revision": record.revision, "stable": record.stable, "attempt": record.attempt}
    if outcomes is not None and outcomes.requests:
        evidence |= {"requests": outcomes.requests, "errors": outcomes.errors}
    return RolloutEvent(reason, message, evidence)
