"""A rollout under `update: rolling`: successors start within `surge`, outdated instances stop within `unavailable`.

Every step counts anew, so it does not matter where an earlier one was interrupted.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from controller.decide.instances.classify import Buckets
from controller.decide.instances.create import MAX_CREATED, add_creates, stopping_outdated
from controller.decide.instances.rolling_view import (
    PENDING,
    is_available,
    rollout_view,
)
from controller.decide.instances.scale import victim_order
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.decide.instances.unplaced import NO_PLACE_AFTER_S, left_s
from controller.decide.rollouts.judge import Judgement, judge
from controller.decide.rollouts.plan import RolloutPlan, plan_of
from controller.domain.effects import DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase
from controller.domain.rollouts import RolloutState

P = InstancePhase
_WITHOUT_CLAIMS: Final = frozenset({P.PENDING, P.ANALYZING, P.SUCCEEDED, P.FAILED})


@dataclass(frozen=True, slots=True)
class Rolling:
    """A deployment's rollout in this step."""

    judgement: Judgement
    plan: RolloutPlan


def rolling_of(facts: DeploymentFacts, buckets: Buckets, wanted: int) -> Rolling | None:
    """The rollout's judgement and plan; None: with `update: recreate` there is none."""
    if facts.deleted_at is not None or facts.spec.update != "rolling":
        return None
    view = rollout_view(facts, buckets, wanted)
    judgement = judge(view)
    new = [i for i in buckets.replicas if i.revision == facts.revision]
    running = sum(i.phase is P.RUNNING for i in new)
    plan = plan_of(view, judgement.record, running=running, others=len(buckets.replicas) - len(new))
    return Rolling(judgement, plan)


def note_rollout(facts: DeploymentFacts, rolling: Rolling | None, effects: DeploymentEffects) -> None:
    """Adds the rollout's new record, its events and the time of the next look."""
    stored = facts.rollout.record if facts.rollout is not None else None
    if rolling is None:
        effects.forget_rollout = facts.rollout is not None and facts.deleted_at is None
        return
    judgement = rolling.judgement
    if judgement.record != stored:
        effects.rollout = judgement.record
    effects.events += [NewEvent(one.reason, one.message, (), one.evidence) for one in judgement.events]
    if judgement.look_again_s is not None:
        effects.requeue(judgement.look_again_s)
    anew = stored is None or (stored.state, stored.revision) != (judgement.record.state, judgement.record.revision)
    moved = effects.phase_changes or effects.removals
    if anew or (moved and judgement.record.state is not RolloutState.COMPLETE):
        effects.requeue(0.0)  # the next step may do what this one has made possible


def stop_rolling(
    facts: DeploymentFacts, buckets: Buckets, plan: RolloutPlan, leaving: Collection[str], effects: DeploymentEffects
) -> set[str]:
    """Stops what the plan lets go, such as serve nothing first; returns their ids. `scale_down` does if none is wanted.

    Only what serves is kept for `unavailable`.
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
    available = sum(is_available(facts, i, plan.ready_for_s) for i in new)
    ready = [i for i in others if i.phase is P.RUNNING]
    surplus = len(others) - plan.keep_old
    unready = _idle(plan, others, available)[: max(surplus, 0)]
    number = min(available + len(ready) - plan.least, surplus - len(unready))
    chosen = [*useless, *unready, *_oldest_last_named(facts, ready)[: max(number, 0)]]
    for instance in chosen:
        stop(facts, instance, effects, NEW_REVISION, plan.why)
    _look_when_available(facts, new, plan, effects)
    return {i.id for i in chosen}


def _useless(plan: RolloutPlan, replicas: Sequence[InstanceFacts]) -> list[InstanceFacts]:
    """Such as have no place and will not be needed, and new ones that are not tried again."""
    new = [i for i in replicas if i.revision == plan.target]
    old = [i for i in replicas if i.revision != plan.target and i.phase in _WITHOUT_CLAIMS]
    if plan.fill != plan.target and plan.keep_old > 0:
        # What is created instead comes after the pending new ones, so that these get the place that becomes free.
        first = min((i.created_at for i in new if i.phase in PENDING), default=None) if plan.makes_room else None
        old = [i for i in old if i.revision != plan.fill or (first is not None and i.created_at <= first)]
    return old if plan.keeps_unready else [*old, *(i for i in new if i.phase is not P.RUNNING)]


def _idle(plan: RolloutPlan, others: Sequence[InstanceFacts], available: int) -> list[InstanceFacts]:
    """The outdated instances that may go since they serve nothing, the least useful first.

    An old one may yet recover, and a silent worker's may still serve. So until a new one has shown that it works, only
    as many go as new ones need their places, or as the bounds let go anyway.
    """
    in_order = sorted((i for i in others if i.phase is not P.RUNNING), key=victim_order)
    silent = [i for i in in_order if i.phase is P.UNREACHABLE]  # their places become free only when they return
    idle = [i for i in in_order if i.phase is not P.UNREACHABLE]
    needed = max(len(others) + available - plan.least, plan.unplaced, 0)
    return [*(idle if available else idle[:needed]), *silent[: max(needed - len(idle), 0)]]


def most_in_all(facts: DeploymentFacts, buckets: Buckets, rolling: Rolling | None, wanted: int) -> int:
    """How many replicas may stay: the wanted ones, and the surge while two revisions run."""
    if rolling is None or wanted == 0:
        return wanted
    mixed = len({i.revision for i in buckets.replicas}) > 1 or stopping_outdated(facts, buckets, DeploymentEffects())
    return wanted + rolling.plan.surge if mixed else wanted


def create_rolling(
    facts: DeploymentFacts, buckets: Buckets, plan: RolloutPlan, leaving: Collection[str], effects: DeploymentEffects
) -> None:
    """Creates what is missing: of the target within the surge, then of the revision that fills gaps."""
    replicas = [i for i in buckets.replicas if i.id not in leaving]
    new = sum(i.revision == plan.target for i in replicas)
    others = len(replicas) - new
    stopping = stopping_outdated(facts, buckets, effects)
    restarting = sum(relocation.purpose == "restart" for relocation in facts.relocations)  # their copies use the surge
    room = plan.wanted + plan.surge - len(replicas) - stopping - restarting if plan.wanted else 0
    created = min(max(plan.most_new - new, 0), max(room, 0), MAX_CREATED)
    add_creates(facts, buckets, leaving, plan.target, created, effects)
    missing = plan.wanted - len(replicas) - created - stopping
    if plan.fill != plan.target:
        missing = max(missing, min(plan.keep_old - others, room - created))
        missing = min(max(missing, 0), MAX_CREATED)
        add_creates(facts, buckets, leaving, plan.fill, missing, effects)
    if MAX_CREATED in (created, missing):
        effects.requeue(0.0)


def _look_when_available(
    facts: DeploymentFacts, new: Collection[InstanceFacts], plan: RolloutPlan, effects: DeploymentEffects
) -> None:
    left = [left_s(facts, i, plan.ready_for_s) for i in new if i.phase is P.RUNNING]
    left += [left_s(facts, i, NO_PLACE_AFTER_S) for i in new if i.phase is P.PENDING]
    due = [one for one in left if one > 0]
    if due:
        effects.requeue(min(due))


def _oldest_last_named(facts: DeploymentFacts, ready: Collection[InstanceFacts]) -> list[InstanceFacts]:
    """The order in which running instances go: those that intents name, then the oldest."""
    named = {id_ for intent in facts.intents for id_ in intent.instances}
    return sorted(ready, key=lambda i: (i.id not in named, i.created_at, i.id))
