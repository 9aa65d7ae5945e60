"""Sorts a deployment's instances into buckets, once per step. The sub-steps read the buckets, not the phases."""

from dataclasses import dataclass

from controller.decide.instances.gang import is_finished
from controller.decide.instances.liveness import GPU_LOST, is_lost, leaves_lost_gpu
from controller.decide.instances.relocate import Relocation, drained_now, judge_relocations
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase


@dataclass(frozen=True, slots=True)
class Eviction:
    """An instance that must leave its worker although it is wanted."""

    instance: InstanceFacts
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Buckets:
    """Every instance is in exactly one of the first six. All are in the order of the facts.

    Attributes:
        stopping: being stopped already.
        replaced: their substitute is committed; they end when their worker returns or is proven dead.
        evicted: drained, preempted, relocated, or on a GPU that is gone.
        replacements: of relocations under way; not counted as replicas yet.
        given_up: their worker is lost and they may run twice, so a substitute is due.
        replicas: all others; each fills one of the wanted replicas.
        requeued: preempted instances of any bucket that still need a successor with their queue time.
        relocations: the deployment's relocations with their states.
    """

    stopping: tuple[InstanceFacts, ...]
    replaced: tuple[InstanceFacts, ...]
    evicted: tuple[Eviction, ...]
    replacements: tuple[InstanceFacts, ...]
    given_up: tuple[InstanceFacts, ...]
    replicas: tuple[InstanceFacts, ...]
    requeued: tuple[InstanceFacts, ...]
    relocations: tuple[Relocation, ...]


def classify(facts: DeploymentFacts) -> Buckets:
    """Sorts all instances of the deployment."""
    evictions = {i.id: why for i in facts.instances if (why := eviction_reason(facts, i)) is not None}
    relocations = judge_relocations(facts, evictions) if facts.relocations else ()
    uncounted = {relocation.waits_for for relocation in relocations}
    relocated = {id_: why for relocation in relocations for id_, why in relocation.evicts.items()}
    evictions = {**relocated, **evictions}
    stopping: list[InstanceFacts] = []
    replaced: list[InstanceFacts] = []
    evicted: list[Eviction] = []
    replacements: list[InstanceFacts] = []
    given_up: list[InstanceFacts] = []
    replicas: list[InstanceFacts] = []
    for instance in facts.instances:
        if instance.phase is P.STOPPING:
            stopping.append(instance)
        elif instance.phase is P.REPLACED:
            replaced.append(instance)
        elif instance.id in evictions:
            evicted.append(Eviction(instance, *evictions[instance.id]))
        elif instance.id in uncounted:
            replacements.append(instance)
        elif instance.phase is P.UNREACHABLE and may_be_substituted(facts, instance):
            given_up.append(instance)
        else:
            replicas.append(instance)
    substituted = {i.replaces for i in facts.instances}
    requeued = [
        i for i in facts.instances
        if i.preempted_for is not None and i.id not in substituted and not is_finished(facts, i)
    ]  # fmt: skip
    return Buckets(
        stopping=tuple(stopping),
        replaced=tuple(replaced),
        evicted=tuple(evicted),
        replacements=tuple(replacements),
        given_up=tuple(given_up),
        replicas=tuple(replicas),
        requeued=tuple(requeued),
        relocations=relocations,
    )


def eviction_reason(facts: DeploymentFacts, instance: InstanceFacts) -> tuple[str, str] | None:
    """Why it must leave its worker although it is wanted: reason and message; None if it stays as far as this goes."""
    if not is_finished(facts, instance):
        if (drained := drained_now(facts, instance)) is not None:
            return "drained", drained
        if instance.preempted_for is not None:
            return "preempted", f"preempted by {instance.preempted_for}, which has a higher priority"
        if (lost := leaves_lost_gpu(facts, instance)) is not None:
            return GPU_LOST, lost
    return None


def may_be_substituted(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether its worker is lost and another may run in its place. Two copies of a task never run at once."""
    return is_lost(facts, instance) and facts.revisions[instance.revision].spec.restart == "always"
