"""The next step of one deployment: its instances, its revision's need and its own status. Pure.

`decide` lists the sub-steps in order. Each is a file of this folder: it reads the facts and the buckets, and adds to
the effects.
"""

from collections.abc import Collection

from controller.decide.instances.advance import advance
from controller.decide.instances.classify import classify
from controller.decide.instances.create import stopping_outdated
from controller.decide.instances.done_tasks import finish_done
from controller.decide.instances.drain import start_replacements
from controller.decide.instances.need import Finished, analyse, is_placeable, settle_need
from controller.decide.instances.relocate import relocate
from controller.decide.instances.replicas import create_wanted, stop_unwanted
from controller.decide.instances.restart import start_restarting
from controller.decide.instances.rolling import note_rollout, rolling_of
from controller.decide.instances.rollout import unblocks_next_step
from controller.decide.instances.scale import stop_all, wanted_replicas
from controller.decide.instances.status import derive_status
from controller.decide.instances.stop import stop
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
