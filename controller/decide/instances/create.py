"""Creating missing replicas: substitutes, successors of preempted instances, and new ones."""

from collections.abc import Collection

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.rollout import STOP_REASON
from controller.domain.effects import Create, DeploymentEffects
from controller.domain.instances import DeploymentFacts

_MAX_CREATED = 2_000  # in one step, so that it stays short; the next step continues


def create_missing(
    facts: DeploymentFacts, buckets: Buckets, wanted: int, leaving: Collection[str], effects: DeploymentEffects
) -> None:
    """Creates missing replicas. During a rollout an outdated instance must be gone before its successor is created.

    Args:
        facts: the deployment.
        buckets: its instances.
        wanted: number of wanted replicas.
        leaving: instances that this step has stopped.
        effects: what is added to.
    """
    counted = sum(i.id not in leaving for i in buckets.replicas)
    removed = {removal.instance for removal in effects.removals}
    outdated_stopping = sum(
        i.stop_reason == STOP_REASON and i.id not in removed and not may_be_substituted(facts, i)
        for i in buckets.stopping
    )
    outdated_stopping += sum(change.stop_reason == STOP_REASON for change in effects.phase_changes)
    missing = wanted - counted - outdated_stopping
    substituted = {i.replaces for i in facts.instances}
    given_up = [i.id for i in buckets.given_up if i.id not in leaving and i.id not in substituted]
    # Successors of preempted instances come first and keep their queue time.
    successors = [(i.id, i.created_at) for i in buckets.requeued] + [(id_, None) for id_ in given_up]
    for n in range(min(max(missing, 0), _MAX_CREATED)):
        replaces, born = successors[n] if n < len(successors) else (None, None)
        effects.creates.append(Create(facts.revision, replaces, analyzing=effects.analyse is not None, born=born))
    if missing > _MAX_CREATED:
        effects.requeue(0.0)
