"""Which instances stop although their deployment lives, and which are created. Shared with dry runs."""

from collections.abc import Collection

from controller.decide.instances.classify import Buckets
from controller.decide.instances.create import create_missing
from controller.decide.instances.evict import evict
from controller.decide.instances.restart import MESSAGE, RESTARTED, restarts_now
from controller.decide.instances.rolling import Rolling, create_rolling, most_in_all, stop_rolling
from controller.decide.instances.rollout import stop_outdated
from controller.decide.instances.scale import scale_down
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts


def stop_unwanted(
    facts: DeploymentFacts, buckets: Buckets, rolling: Rolling | None, wanted: int, effects: DeploymentEffects
) -> set[str]:
    """Stops evicted, outdated, surplus and restarting instances; returns the ids of all that stop."""
    leaving = evict(facts, buckets, effects)
    if rolling is None:
        leaving |= stop_outdated(facts, buckets, wanted, effects)
    else:
        leaving |= stop_rolling(facts, buckets, rolling.plan, leaving, effects)
    leaving |= scale_down(facts, buckets, most_in_all(facts, buckets, rolling, wanted), leaving, effects)
    staying = [i for i in buckets.replicas if i.id not in leaving]
    for instance in restarts_now(facts, staying, wanted):
        stop(facts, instance, effects, RESTARTED, MESSAGE, stop_reason=NEW_REVISION)
        leaving.add(instance.id)
    return leaving | {i.id for i in buckets.stopping}


def create_wanted(
    facts: DeploymentFacts,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    leaving: Collection[str],
    effects: DeploymentEffects,
) -> None:
    """Creates missing instances. `leaving`: those that stop."""
    if rolling is None:
        create_missing(facts, buckets, wanted, leaving, effects)
    else:
        create_rolling(facts, buckets, rolling.plan, leaving, effects)
