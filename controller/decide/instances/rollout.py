"""The rollout of a new revision (`update: recreate`): one running instance stops, then its successor starts."""

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.decide.instances.unplaced import NO_PLACE_AFTER_S, finds_no_place, left_s
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
_MESSAGE = "its spec was changed"
_WITHOUT_CLAIMS = frozenset({P.PENDING, P.ANALYZING, P.SUCCEEDED, P.FAILED})
_NOT_SERVING = _WITHOUT_CLAIMS | {P.BACKOFF, P.UNHEALTHY}
_SETTLED = frozenset({P.RUNNING, P.SUCCEEDED, P.UNREACHABLE})


def stop_outdated(facts: DeploymentFacts, buckets: Buckets, wanted: int, effects: DeploymentEffects) -> set[str]:
    """Stops outdated instances: at once those that serve nothing, and one of the others; returns their ids.

    The next one stops only when all wanted replicas exist and none of them is still on its way. Those by which the
    deployment has grown are not awaited while they find no place: they may get that of an outdated one.
    """
    unsettled = (*buckets.replicas, *buckets.given_up, *buckets.replacements)
    outdated = [i for i in unsettled if i.revision != facts.revision]
    chosen = [i for i in outdated if i.phase in _NOT_SERVING]
    serving = [i for i in outdated if i.phase not in _NOT_SERVING]
    newest = sum(i.revision == facts.revision for i in (*unsettled, *buckets.replaced))
    complete = newest + len(outdated) >= wanted
    removed = {removal.instance for removal in effects.removals}  # its place is free already
    unplaced = _growth_without_place(facts, wanted)
    awaited = any(i.id not in removed | unplaced and _is_awaited(facts, i) for i in facts.instances)
    if serving and complete and not awaited:
        chosen.append(min(serving, key=lambda i: (i.phase is P.RUNNING, i.created_at, i.id)))
    for instance in chosen:
        stop(facts, instance, effects, NEW_REVISION, _MESSAGE)
    if serving:
        due = [left_s(facts, i, NO_PLACE_AFTER_S) for i in facts.instances if i.phase is P.PENDING]
        if left := [one for one in due if one > 0]:
            effects.requeue(min(left))
    return {i.id for i in chosen}


def unblocks_next_step(facts: DeploymentFacts, effects: DeploymentEffects) -> bool:
    """Whether this step lets the next one replace or stop another instance; no hint would trigger that step."""
    rolling_out = any(i.revision != facts.revision for i in facts.instances)
    returned = any(change.expected is P.UNREACHABLE for change in effects.phase_changes)
    return returned or (rolling_out and bool(effects.phase_changes or effects.removals))


def _growth_without_place(facts: DeploymentFacts, wanted: int) -> set[str]:
    """The newest revision's instances that find no place, if they are at most as many as it has grown by."""
    if facts.placed_before is None:
        return set()
    unplaced = {i.id for i in facts.instances if i.revision == facts.revision and finds_no_place(facts, i)}
    return unplaced if len(unplaced) <= wanted - facts.placed_before else set()


def _is_awaited(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether the rollout waits for it: an instance that is stopping, or one of the newest revision that is not up."""
    if instance.phase is P.REPLACED or may_be_substituted(facts, instance):
        return False
    if instance.phase is P.STOPPING:
        return True
    return instance.revision == facts.revision and instance.phase not in _SETTLED
