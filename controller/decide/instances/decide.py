"""The next step of one deployment: its instances, its revision's need and its own status. Pure.

`decide` lists the sub-steps in order. Each is a file of this folder: it reads the facts and the buckets, and adds to
the effects.
"""

from collections.abc import Collection

from controller.decide.instances.advance import advance
from controller.decide.instances.classify import Buckets, classify
from controller.decide.instances.need import Finished, analyse, is_placeable, settle_need
from controller.decide.instances.relocate import (
    MESSAGE,
    RESTARTED,
    relocate,
    restarts_now,
    start_replacements,
    start_restarting,
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
from controller.decide.instances.scale import (
    create_missing,
    evict,
    finish_done,
    scale_down,
    stop_all,
    stopping_outdated,
    wanted_replicas,
)
from controller.decide.instances.status import derive_status
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.domain.effects import DeploymentEffects
from controller.domain.grants import Grant
from controller.domain.instances import DeploymentFacts
from controller.domain.placement import Need
from controller.domain.restart_delays import RestartSettings


def decide(
    facts: DeploymentFacts,
    settings: RestartSettings,
    finished: Finished | None = None,
    known: Need | None = None,
    operators_may: Collection[Grant] = frozenset(Grant),
) -> DeploymentEffects:
    """The next step of one deployment.

    Args:
        facts: the deployment, read at one moment.
        settings: backoff and retries.
        finished: an analysis that ended since the last step.
        known: the newest revision's need, if it is known without an analysis.
        operators_may: what operators are granted.
    """
    effects = DeploymentEffects()
    wanted = wanted_replicas(facts)
    deleted = facts.deleted_at is not None
    buckets = classify(facts)
    rolling = rolling_of(facts, buckets, wanted)
    for instance in buckets.stopping:
        if not deleted and finish_done(facts, instance, effects):
            continue
        stop(facts, instance, effects, instance.reason or instance.stop_reason or "", instance.message)
    if deleted:
        leaving = stop_all(facts, effects) | {i.id for i in buckets.stopping}
    else:
        leaving = stop_unwanted(facts, buckets, rolling, wanted, effects)
    staying = [i for i in facts.instances if i.id not in leaving]
    for instance in staying:
        advance(facts, instance, effects, settings)
    if not deleted:
        if not settle_need(facts, wanted, finished, known, settings, effects):
            analyse(facts, staying, wanted, effects)
        create_wanted(facts, buckets, rolling, wanted, leaving, effects)
        relocate(facts, buckets.relocations, effects)
        replicas = [i for i in buckets.replicas if i.id not in leaving]
        start_replacements(facts, replicas, effects)
        start_restarting(facts, replicas, stopping_outdated(facts, buckets, effects), wanted, effects)
        if unblocks_next_step(facts, effects):
            effects.requeue(0.0)
    elif len(effects.removals) == len(facts.instances):
        effects.finish = True
    if is_placeable(facts, effects):
        effects.wake_placement = True
    note_rollout(facts, rolling, effects)
    record = rolling.judgement.record if rolling is not None else None
    derive_status(facts, wanted, effects, record, operators_may)
    return effects


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
