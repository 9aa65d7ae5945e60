"""Evicting: drained, preempted and relocated instances stop, and those whose GPU is gone. `create` replaces them."""

from controller.decide.instances.classify import Buckets
from controller.decide.instances.restart import RESTARTED
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts


def evict(facts: DeploymentFacts, buckets: Buckets, effects: DeploymentEffects) -> set[str]:
    """Stops all evicted instances; returns their ids."""
    for eviction in buckets.evicted:
        counted = NEW_REVISION if eviction.reason == RESTARTED else None
        stop(facts, eviction.instance, effects, eviction.reason, eviction.message, stop_reason=counted)
    return {eviction.instance.id for eviction in buckets.evicted}
