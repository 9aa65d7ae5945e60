"""The rollout of a new revision: outdated instances stop, and successors take their places.

With `update: recreate` one running instance stops, then its successor starts. With `update: rolling` successors start
within `surge`, and outdated instances stop within `unavailable`. Every step counts again, so it does not matter where
an earlier one was interrupted.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from controller.decide.instances.replicas import (
    MAX_CREATED,
    Buckets,
    add_creates,
    may_be_substituted,
    stopping_outdated,
    victim_order,
)
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.decide.rollouts.judge import Judgement, RolloutView, judge
from controller.decide.rollouts.plan import RolloutPlan, plan_of
from controller.domain.effects import DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.domain.rollouts import RolloutSnapshot, RolloutState
from schemas.placement_reasons import HELD_BY_OTHERS, NEVER_FREED

P = InstancePhase
_MESSAGE = "its spec was changed"
_WITHOUT_CLAIMS = frozenset({P.PENDING, P.ANALYZING, P.SUCCEEDED, P.FAILED})
_NOT_SERVING = _WITHOUT_CLAIMS | {P.BACKOFF, P.UNHEALTHY}
_SETTLED = frozenset({P.RUNNING, P.SUCCEEDED, P.UNREACHABLE})
PENDING: Final = frozenset({P.PENDING, P.ANALYZING})
NO_PLACE_AFTER_S: Final = 10.0  # pending for that long, it found no place, whatever is being freed


def stop_outdated(snapshot: DeploymentSnapshot, buckets: Buckets, wanted: int, effects: DeploymentEffects) -> set[str]:
    """Stops outdated instances: all that do not serve, and one that does; returns their ids.

    The next serving instance stops only when all wanted replicas exist and have settled. Replicas by which the
    deployment has grown are not awaited while they find no place: they may get the place of an outdated instance.
    """
    unsettled = (*buckets.replicas, *buckets.given_up, *buckets.replacements)
    outdated = [i for i in unsettled if i.revision != snapshot.revision]
    chosen = [i for i in outdated if i.phase in _NOT_SERVING]
    serving = [i for i in outdated if i.phase not in _NOT_SERVING]
    newest = sum(i.revision == snapshot.revision for i in (*unsettled, *buckets.replaced))
    complete = newest + len(outdated) >= wanted
    removed = {removal.instance for removal in effects.removals}  # its place is free already
    unplaced = _growth_without_place(snapshot, wanted)
    awaited = any(i.id not in removed | unplaced and _is_awaited(snapshot, i) for i in snapshot.instances)
    if serving and complete and not awaited:
        chosen.append(min(serving, key=lambda i: (i.phase is P.RUNNING, i.created_at, i.id)))
    for instance in chosen:
        stop(snapshot, instance, effects, NEW_REVISION, _MESSAGE)
    if serving:
        due = [left_s(snapshot, i, NO_PLACE_AFTER_S) for i in snapshot.instances if i.phase is P.PENDING]
        if left := [seconds for seconds in due if seconds > 0]:
            effects.requeue(min(left))
    return {i.id for i in chosen}


def unblocks_next_step(snapshot: DeploymentSnapshot, effects: DeploymentEffects) -> bool:
    """Whether this step lets the next step replace or stop another instance; no hint would trigger that step."""
    rolling_out = any(i.revision != snapshot.revision for i in snapshot.instances)
    returned = any(change.expected is P.UNREACHABLE for change in effects.phase_changes)
    return returned or (rolling_out and bool(effects.phase_changes or effects.removals))


def _growth_without_place(snapshot: DeploymentSnapshot, wanted: int) -> set[str]:
    """The newest revision's instances that find no place, if they are at most as many as it has grown by."""
    if snapshot.placed_before is None:
        return set()
    unplaced = {i.id for i in snapshot.instances if i.revision == snapshot.revision and finds_no_place(snapshot, i)}
    return unplaced if len(unplaced) <= wanted - snapshot.placed_before else set()


def _is_awaited(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether the rollout waits for it: it is stopping, or of the newest revision and not up."""
    if instance.phase is P.REPLACED or may_be_substituted(snapshot, instance):
        return False
    if instance.phase is P.STOPPING:
        return True
    return instance.revision == snapshot.revision and instance.phase not in _SETTLED


@dataclass(frozen=True, slots=True)
class Rolling:
    """A rollout with `update: rolling` in this step."""

    judgement: Judgement
    plan: RolloutPlan


def rolling_of(snapshot: DeploymentSnapshot, buckets: Buckets, wanted: int) -> Rolling:
    view = rollout_view(snapshot, buckets, wanted)
    judgement = judge(view)
    new = [i for i in buckets.replicas if i.revision == snapshot.revision]
    running = sum(i.phase is P.RUNNING for i in new)
    plan = plan_of(view, judgement.record, running=running, others=len(buckets.replicas) - len(new))
    return Rolling(judgement, plan)


def note_rollout(snapshot: DeploymentSnapshot, judgement: Judgement, effects: DeploymentEffects) -> None:
    """Adds the rollout's new record, its events and the time of the next check."""
    stored = snapshot.rollout.record if snapshot.rollout is not None else None
    record = judgement.record
    if record != stored:
        effects.rollout = record
    effects.events += [NewEvent(event.reason, event.message, (), event.evidence) for event in judgement.events]
    if judgement.next_check_s is not None:
        effects.requeue(judgement.next_check_s)
    starts = stored is None or (stored.state, stored.revision) != (record.state, record.revision)
    moved = effects.phase_changes or effects.removals
    if starts or (moved and record.state is not RolloutState.COMPLETE):
        effects.requeue(0.0)  # the next step may use what this step has freed


def stop_rolling(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    plan: RolloutPlan,
    leaving: Collection[str],
    effects: DeploymentEffects,
) -> set[str]:
    """Stops the instances that the plan does not keep; returns their ids. With none wanted `scale_down` stops them.

    Only serving instances are kept for `unavailable`.
    """
    if plan.wanted == 0:
        return set()
    replicas = [i for i in buckets.replicas if i.id not in leaving]
    useless = _useless(plan, replicas)
    gone = {i.id for i in useless}
    new = [i for i in replicas if i.revision == plan.target and i.id not in gone]
    others = [i for i in replicas if i.revision != plan.target and i.id not in gone]
    if plan.makes_room:
        others = [i for i in others if i.phase not in _WITHOUT_CLAIMS]
    available = sum(is_available(snapshot, i, plan.ready_for_s) for i in new)
    ready = [i for i in others if i.phase is P.RUNNING]
    surplus = len(others) - plan.keep_old
    unready = _idle(plan, others, available)[: max(surplus, 0)]
    number = min(available + len(ready) - plan.least, surplus - len(unready))
    chosen = [*useless, *unready, *_oldest_last_named(snapshot, ready)[: max(number, 0)]]
    for instance in chosen:
        stop(snapshot, instance, effects, NEW_REVISION, plan.why)
    _look_when_available(snapshot, new, plan, effects)
    return {i.id for i in chosen}


def _useless(plan: RolloutPlan, replicas: Sequence[InstanceState]) -> list[InstanceState]:
    """Instances without a place that will not be needed, and new instances that are not tried again."""
    new = [i for i in replicas if i.revision == plan.target]
    old = [i for i in replicas if i.revision != plan.target and i.phase in _WITHOUT_CLAIMS]
    if plan.fill != plan.target and plan.keep_old > 0:
        # Instances created instead come after the pending new ones, so that these get the place that becomes free.
        first = min((i.created_at for i in new if i.phase in PENDING), default=None) if plan.makes_room else None
        old = [i for i in old if i.revision != plan.fill or (first is not None and i.created_at <= first)]
    return old if plan.keeps_unready else [*old, *(i for i in new if i.phase is not P.RUNNING)]


def _idle(plan: RolloutPlan, others: Sequence[InstanceState], available: int) -> list[InstanceState]:
    """The outdated instances that may stop since they do not serve, the least useful first.

    An outdated instance may yet recover, and on a silent worker it may still serve. So until a new instance is
    available, only as many stop as new instances need their places, or as the bounds allow anyway.
    """
    in_order = sorted((i for i in others if i.phase is not P.RUNNING), key=victim_order)
    silent = [i for i in in_order if i.phase is P.UNREACHABLE]  # their places become free only when they return
    idle = [i for i in in_order if i.phase is not P.UNREACHABLE]
    needed = max(len(others) + available - plan.least, plan.unplaced, 0)
    return [*(idle if available else idle[:needed]), *silent[: max(needed - len(idle), 0)]]


def most_in_all(snapshot: DeploymentSnapshot, buckets: Buckets, rolling: Rolling | None, wanted: int) -> int:
    """The most replicas that may stay: the wanted number, and the surge while two revisions run."""
    if rolling is None or wanted == 0:
        return wanted
    mixed = len({i.revision for i in buckets.replicas}) > 1 or stopping_outdated(snapshot, buckets, DeploymentEffects())
    return wanted + rolling.plan.surge if mixed else wanted


def create_rolling(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    plan: RolloutPlan,
    leaving: Collection[str],
    effects: DeploymentEffects,
) -> None:
    """Creates what is missing: of the target within the surge, then of the revision that fills gaps."""
    replicas = [i for i in buckets.replicas if i.id not in leaving]
    new = sum(i.revision == plan.target for i in replicas)
    others = len(replicas) - new
    stopping = stopping_outdated(snapshot, buckets, effects)
    restarting = sum(
        relocation.purpose == "restart" for relocation in snapshot.relocations
    )  # their copies use the surge
    room = plan.wanted + plan.surge - len(replicas) - stopping - restarting if plan.wanted else 0
    created = min(max(plan.most_new - new, 0), max(room, 0), MAX_CREATED)
    add_creates(snapshot, buckets, leaving, plan.target, created, effects)
    missing = plan.wanted - len(replicas) - created - stopping
    if plan.fill != plan.target:
        missing = max(missing, min(plan.keep_old - others, room - created))
        missing = min(max(missing, 0), MAX_CREATED)
        add_creates(snapshot, buckets, leaving, plan.fill, missing, effects)
    if MAX_CREATED in (created, missing):
        effects.requeue(0.0)


def _look_when_available(
    snapshot: DeploymentSnapshot, new: Collection[InstanceState], plan: RolloutPlan, effects: DeploymentEffects
) -> None:
    left = [left_s(snapshot, i, plan.ready_for_s) for i in new if i.phase is P.RUNNING]
    left += [left_s(snapshot, i, NO_PLACE_AFTER_S) for i in new if i.phase is P.PENDING]
    if due := [seconds for seconds in left if seconds > 0]:
        effects.requeue(min(due))


def _oldest_last_named(snapshot: DeploymentSnapshot, ready: Collection[InstanceState]) -> list[InstanceState]:
    """The order in which running instances stop: those that intents name, then the oldest."""
    named = {id_ for intent in snapshot.intents for id_ in intent.instances}
    return sorted(ready, key=lambda i: (i.id not in named, i.created_at, i.id))


def rollout_view(snapshot: DeploymentSnapshot, buckets: Buckets, wanted: int) -> RolloutView:
    settings = snapshot.spec.rollout
    revision = snapshot.revisions[snapshot.revision]
    new = [i for i in buckets.replicas if i.revision == snapshot.revision]
    others = [i for i in buckets.replicas if i.revision != snapshot.revision]
    available = sum(is_available(snapshot, i, settings.ready_for) for i in new)
    error = revision.need_error if revision.need is None else None
    unready = [i for i in new if i.phase is not P.RUNNING and (i.phase not in PENDING or i.failures or error)]
    flapping = [i for i in new if i.phase is P.RUNNING and i.failures]
    failing = next((i for i in unready if i.failures or error), None)
    dead = next((i for i in new if i.phase is P.FAILED), None)
    hopeless = error.message if error is not None and not error.retryable else ""
    running = Counter(i.revision for i in others if i.phase is P.RUNNING)
    stopping = sum(_outdated_and_here(snapshot, i) for i in buckets.stopping)
    # A place that an eviction or a lost worker takes is missing, so it does not count as growth.
    placed = [*buckets.replicas, *buckets.given_up, *(eviction.instance for eviction in buckets.evicted)]
    return RolloutView(
        revision=snapshot.revision,
        settings=settings,
        start_timeout_s=revision.spec.start_timeout,
        wanted=wanted,
        now=snapshot.now,
        snapshot=snapshot.rollout or RolloutSnapshot(),
        serving=running.most_common(1)[0][0] if running else None,
        updated=len(new),
        available=available,
        trying=len(unready) + sum(not is_available(snapshot, i, settings.ready_for) for i in flapping),
        failing=failing is not None or bool(flapping),
        trouble=(failing.message or failing.reason) if failing is not None else "",
        hopeless=hopeless or (dead.message or dead.reason or "it failed" if dead is not None else ""),
        coming=sum(_has_place(i) for i in new) - available,
        unplaced=_without_place(snapshot, new),
        others_unplaced=_without_place(snapshot, others),
        outdated=len(others) + stopping,
        outdated_ready=sum(i.phase is P.RUNNING for i in others),
        stopping=stopping,
        holding=sum(map(_has_place, placed)) + stopping_outdated(snapshot, buckets, DeploymentEffects()),
        holders=tuple(sorted((i.revision, i.id) for i in others if _has_place(i))),
    )


def is_available(snapshot: DeploymentSnapshot, instance: InstanceState, ready_for_s: float) -> bool:
    return instance.phase is P.RUNNING and left_s(snapshot, instance, ready_for_s) <= 0


def _has_place(instance: InstanceState) -> bool:
    return instance.phase in HOLDS_CLAIMS


def _without_place(snapshot: DeploymentSnapshot, some: Sequence[InstanceState]) -> int:
    """Number of instances that find no place; 0 while placement still searches for any: it may get a freed place."""
    searched = any(_is_being_placed(snapshot, i) for i in some)
    return 0 if searched else sum(finds_no_place(snapshot, i) for i in some)


def _outdated_and_here(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether it is of another revision and its worker is not lost: a rollout does not wait for a lost worker."""
    return instance.revision != snapshot.revision and not may_be_substituted(snapshot, instance)


def left_s(snapshot: DeploymentSnapshot, instance: InstanceState, least_s: float) -> float:
    """Seconds until it has been in its phase for `least_s`; 0 or less afterwards."""
    return least_s - max((snapshot.now - instance.phase_since).total_seconds(), 0.0)


def finds_no_place(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether it has no place now, as placement has recorded or for a while.

    A failed instance waits for its next try instead.
    """
    if instance.phase is not InstancePhase.PENDING or instance.failures or instance.reason in NEVER_FREED:
        return False
    return instance.reason in HELD_BY_OTHERS or left_s(snapshot, instance, NO_PLACE_AFTER_S) <= 0


def _is_being_placed(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether a place for it is still being searched or freed, so that no other instance need stop for it."""
    if instance.phase is InstancePhase.ANALYZING:
        return True
    known = instance.reason in NEVER_FREED or instance.failures or finds_no_place(snapshot, instance)
    return instance.phase is InstancePhase.PENDING and not known
