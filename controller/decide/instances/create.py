"""Creating missing replicas: substitutes, successors of preempted instances, and new ones."""

from collections.abc import Collection
from typing import Final

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.done_tasks import paused_tasks
from controller.decide.instances.stop import NEW_REVISION
from controller.domain.effects import Create, DeploymentEffects
from controller.domain.instances import DeploymentFacts

MAX_CREATED: Final = 2_000  # in one step, so that it stays short; the next step continues


def create_missing(
    facts: DeploymentFacts, buckets: Buckets, wanted: int, leaving: Collection[str], effects: DeploymentEffects
) -> None:
    """Creates missing replicas. During a rollout an outdated instance must be gone before its successor is created.

    So must an evicted task: it may end with code 0, and is done then.

    Args:
        facts: the deployment.
        buckets: its instances.
        wanted: number of wanted replicas.
        leaving: instances that this step has stopped.
        effects: what is added to.
    """
    counted = sum(i.id not in leaving for i in buckets.replicas)
    missing = wanted - counted - stopping_outdated(facts, buckets, effects) - paused_tasks(facts, buckets, effects)
    add_creates(facts, buckets, leaving, facts.revision, min(max(missing, 0), MAX_CREATED), effects)
    if missing > MAX_CREATED:
        effects.requeue(0.0)


def add_creates(
    facts: DeploymentFacts,
    buckets: Buckets,
    leaving: Collection[str],
    revision: int,
    number: int,
    effects: DeploymentEffects,
) -> None:
    """Adds so many instances of a revision. The first ones are successors that this step has not created yet."""
    substituted = {i.replaces for i in facts.instances}
    given_up = [i.id for i in buckets.given_up if i.id not in leaving and i.id not in substituted]
    # Successors of preempted instances come first and keep their queue time.
    successors = [(i.id, i.created_at) for i in buckets.requeued] + [(id_, None) for id_ in given_up]
    begun = {create.replaces for create in effects.creates}
    successors = [one for one in successors if one[0] not in begun]
    analyzing = effects.analyse is not None and effects.analyse == revision
    for n in range(number):
        replaces, born = successors[n] if n < len(successors) else (None, None)
        effects.creates.append(Create(revision, replaces, analyzing=analyzing, born=born))


def stopping_outdated(facts: DeploymentFacts, buckets: Buckets, effects: DeploymentEffects) -> int:
    """Instances that a rollout stops and that still hold their place."""
    removed = {removal.instance for removal in effects.removals}
    number = sum(
        i.stop_reason == NEW_REVISION and i.id not in removed and not may_be_substituted(facts, i)
        for i in buckets.stopping
    )
    return number + sum(change.stop_reason == NEW_REVISION for change in effects.phase_changes)
