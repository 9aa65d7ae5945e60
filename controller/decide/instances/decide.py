"""The next step of one deployment: its instances, its revision's need and its own status. Pure.

`decide` lists the sub-steps in order. Each reads the snapshot and the buckets, and adds to the effects.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from controller.decide.instances.advance import advance
from controller.decide.instances.relocate import (
    MESSAGE,
    RESTARTED,
    relocate,
    restarts_now,
    start_replacements,
    start_restarting,
)
from controller.decide.instances.replicas import (
    Buckets,
    classify,
    create_missing,
    evict,
    finish_done,
    scale_down,
    stopping_outdated,
    wanted_replicas,
)
from controller.decide.instances.rollout import (
    Rolling,
    create_rolling,
    most_in_all,
    note_rollout,
    rolling_of,
    stop_outdated,
    stop_rolling,
    unblocks_next_step,
)
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.decide.rollouts.judge import BLOCKED
from controller.domain.access.grants import Grant
from controller.domain.effects import ANALYZING_MESSAGE, DeploymentEffects, DeploymentStatus, StoreNeed
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import DeploymentPhase, InstancePhase
from controller.domain.placement import Need, NeedError
from controller.domain.restart_delays import RestartSettings
from controller.domain.rollouts import RolloutRecord, RolloutState
from controller.domain.wanted import AUTOSCALER, is_asleep
from controller.engines.arguments.privileges import next_change_needs
from schemas.placement_reasons import Reason

P = InstancePhase
_WAITING = frozenset({P.PENDING, P.ANALYZING})
D = DeploymentPhase
_ALL_GRANTS = frozenset(Grant)
_PROGRESSING = frozenset({P.ANALYZING, P.SCHEDULED, P.STARTING})
_HALTED = frozenset({RolloutState.FAILED, RolloutState.ABORTED})
_TROUBLED = frozenset({P.UNHEALTHY, P.BACKOFF, P.UNREACHABLE, P.FAILED})


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an analysis: a need, or an error. `reason`: the error's code."""

    input_hash: str
    need: Need | None = None
    error: str = ""
    retryable: bool = False
    reason: str = Reason.METADATA_UNKNOWN
    commits: Mapping[str, str] = field(default_factory=dict)  # that were read, by `org/name@revision`


def decide(
    snapshot: DeploymentSnapshot,
    settings: RestartSettings,
    finished: Finished | None = None,
    known: Need | None = None,
    operators_may: Collection[Grant] = frozenset(Grant),
) -> DeploymentEffects:
    """Returns the effects of the next step.

    `known`: the newest revision's need, where no analysis is needed for it. `finished`: an analysis that has ended.
    """
    effects = DeploymentEffects()
    wanted, record = wanted_replicas(snapshot), None
    buckets = classify(snapshot)
    if snapshot.deleted_at is not None:
        _delete(snapshot, buckets, effects)
    else:
        rolling = rolling_of(snapshot, buckets, wanted) if snapshot.spec.update == "rolling" else None
        staying = _stop_and_advance(snapshot, buckets, rolling, wanted, effects, settings) if snapshot.instances else []
        if not settle_need(snapshot, wanted, finished, known, settings, effects):
            analyse(snapshot, staying, wanted, effects)
        _create(snapshot, buckets, rolling, wanted, {i.id for i in staying}, effects)
        if rolling is not None:
            note_rollout(snapshot, rolling.judgement, effects)
            record = rolling.judgement.record
        else:
            effects.forget_rollout = snapshot.rollout is not None
    if is_placeable(snapshot, effects):
        effects.wake_placement = True
    derive_status(snapshot, wanted, effects, record, operators_may)
    return effects


def _delete(snapshot: DeploymentSnapshot, buckets: Buckets, effects: DeploymentEffects) -> None:
    for instance in buckets.stopping:
        stop(snapshot, instance, effects, instance.reason or instance.stop_reason or "", instance.message)
    for instance in snapshot.instances:
        if instance.phase is not P.STOPPING:
            stop(snapshot, instance, effects, "deleted", "the deployment was deleted")
    effects.finish = len(effects.removals) == len(snapshot.instances)


def _stop_and_advance(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    effects: DeploymentEffects,
    settings: RestartSettings,
) -> list[InstanceState]:
    """Stops unwanted instances, lets the remaining follow their processes, and returns the remaining."""
    for instance in buckets.stopping:
        if not finish_done(snapshot, instance, effects):
            stop(snapshot, instance, effects, instance.reason or instance.stop_reason or "", instance.message)
    leaving = stop_unwanted(snapshot, buckets, rolling, wanted, effects)
    staying = [i for i in snapshot.instances if i.id not in leaving]
    for instance in staying:
        advance(snapshot, instance, effects, settings)
    return staying


def _create(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    staying: Collection[str],
    effects: DeploymentEffects,
) -> None:
    """Creates missing instances and replacements. `staying`: ids of the instances that do not stop."""
    leaving = {i.id for i in snapshot.instances if i.id not in staying}
    create_wanted(snapshot, buckets, rolling, wanted, leaving, effects)
    if buckets.relocations:
        relocate(snapshot, buckets.relocations, effects)
    if replicas := [i for i in buckets.replicas if i.id in staying]:
        start_replacements(snapshot, replicas, effects)
        start_restarting(snapshot, replicas, stopping_outdated(snapshot, buckets, effects), wanted, effects)
    if unblocks_next_step(snapshot, effects):
        effects.requeue(0.0)


def stop_unwanted(
    snapshot: DeploymentSnapshot, buckets: Buckets, rolling: Rolling | None, wanted: int, effects: DeploymentEffects
) -> set[str]:
    """Stops evicted, outdated, surplus and restarting instances; returns the ids of all that stop."""
    leaving = evict(snapshot, buckets, effects)
    if rolling is None:
        leaving |= stop_outdated(snapshot, buckets, wanted, effects)
    else:
        leaving |= stop_rolling(snapshot, buckets, rolling.plan, leaving, effects)
    leaving |= scale_down(snapshot, buckets, most_in_all(snapshot, buckets, rolling, wanted), leaving, effects)
    staying = [i for i in buckets.replicas if i.id not in leaving]
    for instance in restarts_now(snapshot, staying, wanted):
        stop(snapshot, instance, effects, RESTARTED, MESSAGE, stop_reason=NEW_REVISION)
        leaving.add(instance.id)
    return leaving | {i.id for i in buckets.stopping}


def create_wanted(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    leaving: Collection[str],
    effects: DeploymentEffects,
) -> None:
    """Creates missing instances. `leaving`: ids of the instances that stop."""
    if rolling is None:
        create_missing(snapshot, buckets, wanted, leaving, effects)
    else:
        create_rolling(snapshot, buckets, rolling.plan, leaving, effects)


def settle_need(
    snapshot: DeploymentSnapshot,
    wanted: int,
    finished: Finished | None,
    known: Need | None,
    settings: RestartSettings,
    effects: DeploymentEffects,
) -> bool:
    """Stores the newest revision's need, or the error of its analysis; returns whether the need is known now."""
    revision = snapshot.revisions[snapshot.revision]
    if revision.need is not None:
        return True
    if known is not None:
        effects.store_need = StoreNeed(revision.generation, known, None)
        return True
    if finished is None or finished.input_hash != revision.input_hash:
        if wanted == 0 and revision.need_error is not None:  # a later start reads the files again
            effects.store_need = StoreNeed(revision.generation, None, None)
        return False
    if finished.need is not None:
        effects.store_need = StoreNeed(revision.generation, finished.need, None, finished.commits)
        effects.events.append(_analyzed(snapshot, finished.need))
        return True
    attempts = (revision.need_error.attempts if revision.need_error else 0) + 1
    delay = timedelta(seconds=settings.delay_s(attempts))
    retry_at = snapshot.now + delay if finished.retryable else None
    error = NeedError(finished.error, finished.retryable, attempts, retry_at, str(finished.reason))
    effects.store_need = StoreNeed(revision.generation, None, error)
    evidence = {"attempts": attempts, "retryable": finished.retryable}
    effects.events.append(NewEvent(Reason.METADATA_UNKNOWN, finished.error, (), evidence))
    return False


def _analyzed(snapshot: DeploymentSnapshot, need: Need) -> NewEvent:
    """The event, with the time for which the first instance has waited for the need."""
    waiting = [i for i in snapshot.instances if i.phase is P.ANALYZING and i.revision == snapshot.revision]
    spent = max(((snapshot.now - i.phase_since).total_seconds() for i in waiting), default=None)
    evidence: dict[str, Any] = {"memory_mib": need.memory_mib}
    if spent is not None:
        evidence["durations"] = {"analyzing": round(max(spent, 0.0), 3)}
    return NewEvent("analyzed", "its need is known", (), evidence)


def analyse(
    snapshot: DeploymentSnapshot, staying: Sequence[InstanceState], wanted: int, effects: DeploymentEffects
) -> None:
    """While the need is unknown: lets the analysis run if an instance needs it, and moves the pending instances."""
    waiting = [i for i in staying if i.phase in _WAITING and i.revision == snapshot.revision]
    if not waiting and wanted == 0:
        return
    error = effects.store_need.error if effects.store_need else snapshot.revisions[snapshot.revision].need_error
    if error is not None and not error.retryable:
        for instance in waiting:
            effects.change_phase(instance, P.FAILED, error.reason, error.message)
        return
    if error is not None and error.retry_at is not None and error.retry_at > snapshot.now:
        for instance in waiting:
            if instance.phase is P.ANALYZING:
                effects.change_phase(instance, P.PENDING, error.reason, error.message)
        effects.requeue((error.retry_at - snapshot.now).total_seconds())
        return
    effects.analyse = snapshot.revision
    for instance in waiting:
        if instance.phase is P.PENDING:
            effects.change_phase(instance, P.ANALYZING, "", ANALYZING_MESSAGE)


def is_placeable(snapshot: DeploymentSnapshot, effects: DeploymentEffects) -> bool:
    """Whether these effects give placement a new instance, or the need of a pending instance."""
    stored = effects.store_need
    stores_need = stored is not None and stored.need is not None
    known = {generation for generation, revision in snapshot.revisions.items() if revision.need is not None}
    if stores_need:
        known.add(snapshot.revision)
    return (
        any(i.mended and i.phase is P.PENDING for i in snapshot.instances)
        or any(create.revision in known for create in effects.creates)
        or (stores_need and any(i.phase in _WAITING for i in snapshot.instances))
    )


@dataclass(frozen=True, slots=True)
class _After:
    """An instance as it will be once the effects are written."""

    phase: InstancePhase
    reason: str
    message: str
    revision: int


def derive_status(
    snapshot: DeploymentSnapshot,
    wanted: int,
    effects: DeploymentEffects,
    rollout: RolloutRecord | None = None,
    operators_may: Collection[Grant] = frozenset(Grant),
) -> None:
    """Adds the deployment's status to the effects where it differs from the stored one."""
    instances = _after(snapshot, effects)
    current = all(i.revision == snapshot.revision for i in instances if i.phase is not P.REPLACED)
    phases: list[InstancePhase] = [i.phase for i in instances if i.phase is not P.REPLACED]
    phases += [P.PENDING] * len(effects.creates)
    ready = phases.count(P.RUNNING)
    phase = _phase(snapshot, wanted, phases, ready)
    if phase is D.RUNNING and not current:
        # All run between two replacements of a rollout, but not all as applied.
        halted = rollout is not None and rollout.state in _HALTED
        phase = D.DEGRADED if halted else D.PROGRESSING
    reason, message = _why(snapshot, phase, instances, rollout if phase in (D.PROGRESSING, D.DEGRADED) else None)
    all_granted = _ALL_GRANTS.issubset(operators_may)
    needs = "" if all_granted else next_change_needs(snapshot.spec, operators_may)
    conditions = _conditions(snapshot, wanted, ready, phase, needs, current=current)
    status = DeploymentStatus(phase, reason, message, ready, snapshot.generation, conditions)
    stored = (
        snapshot.phase,
        snapshot.reason,
        snapshot.message,
        snapshot.ready,
        snapshot.observed_generation,
        snapshot.conditions,
    )
    if stored != (phase, reason, message, ready, snapshot.generation, conditions):
        effects.status = status


def _after(snapshot: DeploymentSnapshot, effects: DeploymentEffects) -> list[_After]:
    """The remaining instances, in order of id."""
    changes = {c.instance: c for c in effects.phase_changes}
    progress = {p.instance: p for p in effects.progress}
    restarted = {r.instance for r in effects.restarts}
    removed = {r.instance for r in effects.removals}
    remaining: list[_After] = []
    for i in sorted(snapshot.instances, key=lambda i: i.id):
        if i.id in removed:
            continue
        if (change := changes.get(i.id)) is not None:
            remaining.append(_After(change.to, str(change.reason), change.message, i.revision))
        elif i.id in restarted:
            remaining.append(_After(P.STARTING, "", "", i.revision))
        else:
            shown = progress.get(i.id, i)
            remaining.append(_After(i.phase, shown.reason, shown.message, i.revision))
    return remaining


def _phase(snapshot: DeploymentSnapshot, wanted: int, phases: list[InstancePhase], ready: int) -> DeploymentPhase:
    if snapshot.deleted_at is not None:
        return D.DELETING
    if wanted == 0:
        ended = D.ASLEEP if is_asleep(snapshot.spec, snapshot.intents) else D.STOPPED
        return D.PROGRESSING if phases else ended
    staying = [p for p in phases if p is not P.STOPPING]
    settled = _settled(wanted, staying, ready)
    if settled is not None and (settled is not D.RUNNING or len(staying) == len(phases)):
        return settled
    if any(p in _TROUBLED for p in staying):
        return D.DEGRADED
    if any(p in _PROGRESSING for p in staying) or P.STOPPING in phases:
        return D.PROGRESSING
    return D.DEGRADED if ready else D.PENDING


def _settled(wanted: int, staying: Sequence[InstancePhase], ready: int) -> DeploymentPhase | None:
    """The phase once no instance is still on its way; None before."""
    if staying and all(p is P.SUCCEEDED for p in staying) and len(staying) >= wanted:
        return D.SUCCEEDED
    if ready + staying.count(P.SUCCEEDED) >= wanted:
        return D.RUNNING
    if P.FAILED in staying and all(p in (P.FAILED, P.SUCCEEDED) for p in staying):
        return D.FAILED
    return None


def _why(
    snapshot: DeploymentSnapshot, phase: DeploymentPhase, instances: Sequence[_After], rollout: RolloutRecord | None
) -> tuple[str, str]:
    if phase is D.ASLEEP:
        intent = next((i for i in snapshot.intents if i.max_replicas == 0 and i.source != AUTOSCALER), None)
        return (intent.reason if intent else "asleep"), "asleep; a request wakes it"
    if phase is D.STOPPED:
        intent = next((i for i in snapshot.intents if i.max_replicas == 0), None)
        return (intent.reason, f"stopped by {intent.source}") if intent else ("", "no replicas are wanted")
    if phase in (D.RUNNING, D.SUCCEEDED):
        return "", ""
    if phase is D.DELETING:
        return "deleted", f"{len(instances)} instances are still stopping" if instances else ""
    up = (P.RUNNING, P.REPLACED, P.SUCCEEDED)
    causes = ((i.reason, i.message) for i in instances if i.phase not in up and (i.reason or i.message))
    return _of_rollout(next(causes, ("", "")), rollout)


def _of_rollout(of_instance: tuple[str, str], rollout: RolloutRecord | None) -> tuple[str, str]:
    """Reason and message of an instance, or those of the rollout where that is stopped or no instance has any."""
    if rollout is None or rollout.state is RolloutState.COMPLETE or rollout.fallback is None:
        return of_instance
    if rollout.state in _HALTED or rollout.reason == "rollout_paused" or not any(of_instance):
        return rollout.reason, rollout.message
    if rollout.reason == BLOCKED:  # the place that is missing, and its holders
        return of_instance[0], "; ".join(text for text in (of_instance[1], rollout.message) if text)
    return of_instance


def _conditions(
    snapshot: DeploymentSnapshot, wanted: int, ready: int, phase: DeploymentPhase, needs: str, *, current: bool
) -> tuple[Mapping[str, Any], ...]:
    states = {
        "Available": (ready > 0, "" if ready else "no_instance_runs", ""),
        "Complete": (phase in (D.RUNNING, D.SUCCEEDED, D.STOPPED, D.ASLEEP), f"{ready} of {wanted} run", ""),
        "UpToDate": (current, "" if current else "older_revision_runs", ""),
    }
    if needs:  # an earlier version took it from an operator; the condition exists only while it is false
        states["OperatorsMayChange"] = (False, "grant_needed", needs)
    before = {c["type"]: c for c in snapshot.conditions}
    conditions: list[Mapping[str, Any]] = []
    for name, (holds, reason, message) in states.items():
        status = "true" if holds else "false"
        old = before.get(name)
        since = old["since"] if old is not None and old["status"] == status else snapshot.now.isoformat()
        conditions.append({"type": name, "status": status, "reason": reason, "message": message, "since": since})
    return tuple(conditions)
