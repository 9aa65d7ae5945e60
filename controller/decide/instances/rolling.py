"""A rollout under `update: rolling`: successors start within `surge`, outdated instances stop within `unavailable`.

Every step counts anew, so it does not matter where an earlier one was interrupted.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.create import MAX_CREATED, add_creates
from controller.decide.instances.rollout import STOP_REASON
from controller.decide.instances.stop import stop
from controller.decide.rollouts.judge import Judgement, RolloutView, judge
from controller.decide.rollouts.plan import RolloutPlan, plan_of
from controller.domain.effects import DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase
from controller.domain.rollouts import RolloutFacts, RolloutState

P = InstancePhase
_WITHOUT_CLAIMS: Final = frozenset({P.PENDING, P.ANALYZING, P.SUCCEEDED, P.FAILED})
_NO_ROOM_AFTER_S: Final = 10.0  # pending for so long, it found no place
_PENDING: Final = frozenset({P.PENDING, P.ANALYZING})


@dataclass(frozen=True, slots=True)
class Rolling:
    """A deployment's rollout in this step."""

    judgement: Judgement
    plan: RolloutPlan


def rolling_of(facts: DeploymentFacts, buckets: Buckets, wanted: int) -> Rolling | None:
    """The rollout's judgement and plan; None: with `update: recreate` there is none."""
    if facts.deleted_at is not None or facts.spec.update != "rolling":
        return None
    view = _view(facts, buckets, wanted)
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
    """Stops what the plan lets go, unready ones first; returns their ids. `scale_down` does where none is wanted."""
    if plan.wanted == 0:
        return set()
    replicas = [i for i in buckets.replicas if i.id not in leaving]
    new = [i for i in replicas if i.revision == plan.target]
    kept = {plan.target, plan.fill}
    useless = [i for i in replicas if i.revision not in kept and i.phase in _WITHOUT_CLAIMS]
    if plan.fill == plan.target or plan.keep_old == 0:
        useless = [i for i in replicas if i.revision != plan.target and i.phase in _WITHOUT_CLAIMS]
    if not plan.keeps_unready:
        useless += [i for i in new if i.phase is not P.RUNNING]
    gone = {i.id for i in useless}
    others = [i for i in replicas if i.revision != plan.target and i.id not in gone]
    new = [i for i in new if i.id not in gone]
    available = [i for i in new if is_available(facts, i, plan.ready_for_s)]
    ready = [i for i in others if i.phase is P.RUNNING]
    least = plan.wanted - plan.unavailable
    surplus = len(others) - plan.keep_old
    spare = min(len(others) + len(available) - least, surplus)  # new ones that are not available count for nothing
    unready = [i for i in others if i.phase is not P.RUNNING][: max(spare, 0)]
    number = min(len(available) + len(ready) - least, surplus - len(unready))
    chosen = [*useless, *unready, *_oldest_last_named(facts, ready)[: max(number, 0)]]
    for instance in chosen:
        stop(facts, instance, effects, STOP_REASON, plan.why)
    _look_when_available(facts, new, plan, effects)
    return {i.id for i in chosen}


def most_in_all(facts: DeploymentFacts, buckets: Buckets, rolling: Rolling | None, wanted: int) -> int:
    """How many replicas may stay: the wanted ones, and the surge while two revisions run."""
    if rolling is None or wanted == 0:
        return wanted
    mixed = len({i.revision for i in buckets.replicas}) > 1 or _stopping(facts, buckets, DeploymentEffects())
    return wanted + rolling.plan.surge if mixed else wanted


def create_rolling(
    facts: DeploymentFacts, buckets: Buckets, plan: RolloutPlan, leaving: Collection[str], effects: DeploymentEffects
) -> None:
    """Creates what is missing: of the target within the surge, then of the revision that fills gaps."""
    replicas = [i for i in buckets.replicas if i.id not in leaving]
    new = sum(i.revision == plan.target for i in replicas)
    others = len(replicas) - new
    stopping = _stopping(facts, buckets, effects)
    room = plan.wanted + plan.surge - len(replicas) - stopping if plan.wanted else 0
    created = min(max(plan.most_new - new, 0), max(room, 0), MAX_CREATED)
    add_creates(facts, buckets, leaving, plan.target, created, effects)
    missing = plan.wanted - len(replicas) - created - stopping
    if plan.fill != plan.target:
        missing = max(missing, min(plan.keep_old - others, room - created))
        missing = min(max(missing, 0), MAX_CREATED)
        add_creates(facts, buckets, leaving, plan.fill, missing, effects)
    if MAX_CREATED in (created, missing):
        effects.requeue(0.0)


def is_available(facts: DeploymentFacts, instance: InstanceFacts, ready_for_s: float) -> bool:
    """Whether it has run for long enough."""
    return instance.phase is P.RUNNING and _left_s(facts, instance, ready_for_s) <= 0


def _left_s(facts: DeploymentFacts, instance: InstanceFacts, ready_for_s: float) -> float:
    return ready_for_s - max((facts.now - instance.phase_since).total_seconds(), 0.0)


def _look_when_available(
    facts: DeploymentFacts, new: Collection[InstanceFacts], plan: RolloutPlan, effects: DeploymentEffects
) -> None:
    left = [_left_s(facts, i, plan.ready_for_s) for i in new if i.phase is P.RUNNING]
    left += [_left_s(facts, i, _NO_ROOM_AFTER_S) for i in new if i.phase is P.PENDING]
    due = [one for one in left if one > 0]
    if due:
        effects.requeue(min(due))


def _oldest_last_named(facts: DeploymentFacts, ready: Collection[InstanceFacts]) -> list[InstanceFacts]:
    """The order in which running instances go: those that intents name, then the oldest."""
    named = {id_ for intent in facts.intents for id_ in intent.instances}
    return sorted(ready, key=lambda i: (i.id not in named, i.created_at, i.id))


def _stopping(facts: DeploymentFacts, buckets: Buckets, effects: DeploymentEffects) -> int:
    """Instances that a rollout stops and that still hold their place."""
    removed = {removal.instance for removal in effects.removals}
    number = sum(
        i.stop_reason == STOP_REASON and i.id not in removed and not may_be_substituted(facts, i)
        for i in buckets.stopping
    )
    return number + sum(change.stop_reason == STOP_REASON for change in effects.phase_changes)


def _outdated_and_here(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it is of another revision, and its worker is not lost: a rollout does not wait for that one's return."""
    return instance.revision != facts.revision and not may_be_substituted(facts, instance)


def _view(facts: DeploymentFacts, buckets: Buckets, wanted: int) -> RolloutView:
    settings = facts.spec.rollout
    revision = facts.revisions[facts.revision]
    new = [i for i in buckets.replicas if i.revision == facts.revision]
    others = [i for i in buckets.replicas if i.revision != facts.revision]
    available = sum(is_available(facts, i, settings.ready_for) for i in new)
    error = revision.need_error if revision.need is None else None
    unready = [i for i in new if i.phase is not P.RUNNING and (i.phase not in _PENDING or i.failures or error)]
    flapping = [i for i in new if i.phase is P.RUNNING and i.failures]
    failing = next((i for i in unready if i.failures or error), None)
    dead = next((i for i in new if i.phase is P.FAILED), None)
    hopeless = error.message if error is not None and not error.retryable else ""
    running = Counter(i.revision for i in others if i.phase is P.RUNNING)
    return RolloutView(
        revision=facts.revision,
        settings=settings,
        start_timeout_s=revision.spec.start_timeout,
        wanted=wanted,
        now=facts.now,
        facts=facts.rollout or RolloutFacts(),
        serving=running.most_common(1)[0][0] if running else None,
        updated=len(new),
        available=available,
        trying=len(unready) + sum(not is_available(facts, i, settings.ready_for) for i in flapping),
        failing=failing is not None or bool(flapping),
        trouble=(failing.message or failing.reason) if failing is not None else "",
        hopeless=hopeless or (dead.message or dead.reason or "it failed" if dead is not None else ""),
        unplaced=sum(i.phase is P.PENDING and _left_s(facts, i, _NO_ROOM_AFTER_S) <= 0 for i in new),
        outdated=len(others) + sum(_outdated_and_here(facts, i) for i in buckets.stopping),
        outdated_ready=sum(i.phase is P.RUNNING for i in others),
    )
