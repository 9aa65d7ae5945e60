"""How far a rollout is: canary, progress, completion, failure, abort and pause. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from controller.decide.rollouts.texts import (
    aborted_text,
    begun_text,
    blocked_text,
    canary_size,
    canary_text,
    complete_text,
    failed_text,
    progress_text,
)
from controller.domain.rollouts import RequestOutcomes, RolloutFacts, RolloutRecord, RolloutState
from schemas.manifest.rollout import Rollout

S = RolloutState
UNDER_WAY: Final = frozenset({S.CANARY, S.PROGRESSING})
_TRIES: Final = 3  # start timeouts until a rollout has failed
BLOCKED: Final = "rollout_blocked"
_LOOK_S: Final = 1.0  # while gateways' counts matter


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A deployment at one moment.

    Attributes:
        revision: that shall run.
        settings: of the manifest.
        start_timeout_s: of the revision.
        wanted: number of wanted replicas.
        facts: what is stored and counted.
        serving: an older revision that runs now; None: none does.
        updated: replicas of the revision.
        available: of these, such as ran for `ready_for`.
        trying: of these, such as hold a place or have failed, and are not available.
        failing: one of these has failed already, or its need cannot be found out.
        trouble: the message of one that fails.
        hopeless: why no further try can help; empty: one may.
        coming: of these, such as hold a place and are not available yet.
        unplaced: of these, such as found no place for a while, which the end of others may give them.
        others_unplaced: such replicas of other revisions.
        outdated: instances of other revisions, also those that stop, unless their worker is lost.
        outdated_ready: of these, such as run.
        stopping: of these, such as stop.
        holding: instances that have a place as replicas, also such as leave it for a successor.
        holders: revision and name of each replica of another revision that has a place.
    """

    revision: int
    settings: Rollout
    start_timeout_s: float
    wanted: int
    now: datetime
    facts: RolloutFacts = field(default_factory=RolloutFacts)
    serving: int | None = None
    updated: int = 0
    available: int = 0
    trying: int = 0
    failing: bool = False
    trouble: str = ""
    hopeless: str = ""
    coming: int = 0
    unplaced: int = 0
    others_unplaced: int = 0
    outdated: int = 0
    outdated_ready: int = 0
    stopping: int = 0
    holding: int = 0
    holders: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """A change that users see, with its evidence."""

    reason: str
    message: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be stored, which events to write, and when to look again although nothing has changed."""

    record: RolloutRecord
    events: tuple[RolloutEvent, ...] = ()
    look_again_s: float | None = None


def judge(view: RolloutView) -> Judgement:
    """How far the rollout is now."""
    begun = _begin(view)
    record = _weighed(view, _moved(view, _counted(view, begun)))
    events: list[RolloutEvent] = []
    stored = view.facts.record
    anew = stored is None or stored.attempt != begun.attempt
    if anew and record.fallback is not None:
        events.append(_event("rollout_started", begun_text(begun), begun))
    first = begun.attempt == 1 and begun.fallback is None  # nothing was replaced
    if record.state is not begun.state and not first and (reason := _EVENTS.get(record.state)) is not None:
        events.append(_event(reason, record.message, record, view.facts.outcomes))
    if begun.state is S.CANARY and record.state is S.PROGRESSING:
        events.append(_event("rollout_promoted", record.message, record, view.facts.outcomes))
    return Judgement(record, tuple(events), _look_again_s(view, record))


_EVENTS: Final = {S.COMPLETE: "rollout_complete", S.FAILED: "rollout_failed", S.ABORTED: "rollout_aborted"}


def kept_up(view: RolloutView, record: RolloutRecord) -> int:
    """The wanted replicas without growth that has found no place yet."""
    return min(view.wanted, record.kept) if record.kept else view.wanted


def canary_replicas(view: RolloutView, record: RolloutRecord) -> int:
    """How many replicas the canary has: its share of those that are kept up, at least one."""
    canary = view.settings.canary
    return 0 if canary is None else canary_size(kept_up(view, record), canary.weight)


def _begin(view: RolloutView) -> RolloutRecord:
    """The stored rollout, or a new one: of another revision, or of one that a user wants to be tried again."""
    facts, stored = view.facts, view.facts.record
    asked_anew = stored is not None and facts.asked != stored.seen
    if stored is not None and stored.revision == view.revision:
        if not asked_anew:
            return stored
        if facts.paused or stored.state in UNDER_WAY or stored.state is S.COMPLETE:
            return replace(stored, seen=facts.asked)
    stable = stored.stable if stored is not None and stored.stable is not None else view.serving
    fresh = RolloutRecord(view.revision, stable, attempt=1 if stored is None else stored.attempt + 1, seen=facts.asked)
    compares = view.settings.canary is not None and fresh.fallback is not None
    return replace(fresh, state=S.CANARY) if compares else fresh


def _counted(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """The record with the replicas and times of this moment."""
    if record.state is S.COMPLETE:
        return record
    kept = max(record.kept or min(view.wanted, view.holding), min(view.wanted, view.holding - view.settings.surge))
    counted = record = replace(record, updated=view.updated, available=view.available, kept=kept)
    if record.state not in UNDER_WAY:
        return replace(counted, trying_since=None, canary_since=None)
    since = record.trying_since
    if view.available > record.progressed or not view.trying or view.facts.paused:
        since = None
    if since is None and view.trying and not view.facts.paused:
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
    outcomes, paused = view.facts.outcomes, view.facts.paused
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
    return _told(view, record)


def _told(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """A rollout under way, with reason and message."""
    if view.facts.paused:
        message = f"paused; {progress_text(record, view.wanted)}"
        return replace(record, reason="rollout_paused", message=message)
    if record.state is S.CANARY:
        silent = view.facts.outcomes.silent if view.settings.abort is not None else ()
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
    """Whether a replica finds no place, all others of older revisions serve, and none of them may be missing."""
    moves = view.stopping or view.coming or len(view.holders) > view.outdated_ready
    if moves or not view.unplaced or not view.holders:
        return False
    return view.available + view.outdated_ready <= kept_up(view, record) - view.settings.unavailable


def _weighed(view: RolloutView, record: RolloutRecord) -> RolloutRecord:
    """The record with the share of the requests, and whether missing replicas get the stable revision.

    Until the rollout is complete the share never falls, so no session returns to the old revision.
    """
    fallback, canary = record.fallback, view.settings.canary
    halted = view.facts.paused or record.state in (S.CANARY, S.FAILED, S.ABORTED)
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
    """What is known suffices: a gateway that is silent may only add to it."""
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
    return view.settings.abort is None or not view.facts.outcomes.silent


def _passed_s(now: datetime, since: datetime) -> float:
    return max((now - since) / timedelta(seconds=1), 0.0)


def _look_again_s(view: RolloutView, record: RolloutRecord) -> float | None:
    if record.state not in UNDER_WAY:
        return None
    due: list[float] = []
    if record.fallback is not None and view.settings.abort is not None and (view.updated or view.wanted):
        due.append(_LOOK_S)
    left_s = _left_s(view, record)
    if left_s is not None and record.fallback is not None:
        due.append(left_s if left_s > 0 else _TRIES * _LOOK_S)
    if record.canary_since is not None and view.settings.canary is not None and not view.facts.paused:
        due.append(max(view.settings.canary.for_s - _passed_s(view.now, record.canary_since), _LOOK_S / 10))
    return min(due, default=None)


def _event(reason: str, message: str, record: RolloutRecord, outcomes: RequestOutcomes | None = None) -> RolloutEvent:
    evidence: dict[str, Any] = {"revision": record.revision, "stable": record.stable, "attempt": record.attempt}
    if outcomes is not None and outcomes.requests:
        evidence |= {"requests": outcomes.requests, "errors": outcomes.errors}
    return RolloutEvent(reason, message, evidence)
