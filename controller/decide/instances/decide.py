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
from controller.domain.access.grants import Grant
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts, InstanceFacts
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

    `known`: the newest revision's need, where no analysis is needed for it. `finished`: an analysis that has ended.
    """
    effects = DeploymentEffects()
    wanted, record = wanted_replicas(facts), None
    buckets = classify(facts)
    if facts.deleted_at is not None:
        _delete(facts, buckets, effects)
    else:
        rolling = rolling_of(facts, buckets, wanted) if facts.spec.update == "rolling" else None
        staying = _stop_and_advance(facts, buckets, rolling, wanted, effects, settings) if facts.instances else []
        if not settle_need(facts, wanted, finished, known, settings, effects):
            analyse(facts, staying, wanted, effects)
        _create(facts, buckets, rolling, wanted, {i.id for i in staying}, effects)
        if rolling is not None:
            note_rollout(facts, rolling.judgement, effects)
            record = rolling.judgement.record
        else:
            effects.forget_rollout = facts.rollout is not None
    if is_placeable(facts, effects):
        effects.wake_placement = True
    derive_status(facts, wanted, effects, record, operators_may)
    return effects


def _delete(facts: DeploymentFacts, buckets: Buckets, effects: DeploymentEffects) -> None:
    for instance in buckets.stopping:
        stop(facts, instance, effects, instance.reason or instance.stop_reason or "", instance.message)
    stop_all(facts, effects)
    effects.finish = len(effects.removals) == len(facts.instances)


def _stop_and_advance(
    facts: DeploymentFacts,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    effects: DeploymentEffects,
    settings: RestartSettings,
) -> list[InstanceFacts]:
    """Stops what is not wanted, and lets all others follow their processes; returns the others."""
    for instance in buckets.stopping:
        if not finish_done(facts, instance, effects):
            stop(facts, instance, effects, instance.reason or instance.stop_reason or "", instance.message)
    leaving = stop_unwanted(facts, buckets, rolling, wanted, effects)
    staying = [i for i in facts.instances if i.id not in leaving]
    for instance in staying:
        advance(facts, instance, effects, settings)
    return staying


def _create(
    facts: DeploymentFacts,
    buckets: Buckets,
    rolling: Rolling | None,
    wanted: int,
    staying: Collection[str],
    effects: DeploymentEffects,
) -> None:
    """Creates missing instances and replacements. `staying`: the ids of those that do not stop."""
    leaving = {i.id for i in facts.instances if i.id not in staying}
    create_wanted(facts, buckets, rolling, wanted, leaving, effects)
    if buckets.relocations:
        relocate(facts, buckets.relocations, effects)
    if replicas := [i for i in buckets.replicas if i.id in staying]:
        start_replacements(facts, replicas, effects)
        start_restarting(facts, replicas, stopping_outdated(facts, buckets, effects), wanted, effects)
    if unblocks_next_step(facts, effects):
        effects.requeue(0.0)


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
