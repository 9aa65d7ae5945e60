"""The replicas: instances are sorted into buckets once per step; missing replicas are created, surplus replicas stop.

The sub-steps read the buckets, not the phases. An evicted task has no successor until its end is known: its last
seconds may complete it, and two copies would work at once. A server is different: at SIGTERM its exit code 0 only means
that it has stopped.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from controller.decide.instances.gang import is_done_at_stop, is_finished, is_task
from controller.decide.instances.liveness import GPU_LOST, is_lost, leaves_lost_gpu
from controller.decide.instances.relocate import RESTARTED, Relocation, drained_now, judge_relocations
from controller.decide.instances.stop import NEW_REVISION, stop
from controller.domain import wanted
from controller.domain.effects import Create, DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import InstancePhase

P = InstancePhase
_VICTIM_RANK = {
    P.PENDING: 0,
    P.ANALYZING: 0,
    P.FAILED: 1,
    P.SUCCEEDED: 1,
    P.BACKOFF: 2,
    P.UNHEALTHY: 3,  # it holds its place and does not serve; unlike a starting instance it may never serve again
    P.SCHEDULED: 4,
    P.UNREACHABLE: 4,
    P.STARTING: 5,
}
_SERVES = 9
MAX_CREATED: Final = 2_000  # in one step, so that it stays short; the next step continues
_WANTED_ELSEWHERE = frozenset({"drained", "preempted", GPU_LOST})  # reasons of stops after which it would run again


@dataclass(frozen=True, slots=True)
class Eviction:
    """An instance that must leave its worker although it is wanted."""

    instance: InstanceState
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Buckets:
    """Every instance is in exactly one of the first six buckets. All are in the order of the snapshot."""

    stopping: tuple[InstanceState, ...]
    replaced: tuple[InstanceState, ...]  # their substitute is committed; they end when their worker returns or is dead
    evicted: tuple[Eviction, ...]  # drained, preempted, relocated, or on a GPU that is gone
    replacements: tuple[InstanceState, ...]  # of relocations under way; not counted as replicas yet
    given_up: tuple[InstanceState, ...]  # their worker is lost and they may run twice, so a substitute is due
    replicas: tuple[InstanceState, ...]  # all remaining; each fills one of the wanted replicas
    requeued: tuple[InstanceState, ...]  # preempted, of any bucket: each needs a successor with its queue time
    relocations: tuple[Relocation, ...]


def classify(snapshot: DeploymentSnapshot) -> Buckets:
    evictions = {i.id: why for i in snapshot.instances if (why := eviction_reason(snapshot, i)) is not None}
    relocations = judge_relocations(snapshot, evictions) if snapshot.relocations else ()
    uncounted = {relocation.waits_for for relocation in relocations}
    relocated = {id_: why for relocation in relocations for id_, why in relocation.evicts.items()}
    evictions = {**relocated, **evictions}
    stopping: list[InstanceState] = []
    replaced: list[InstanceState] = []
    evicted: list[Eviction] = []
    replacements: list[InstanceState] = []
    given_up: list[InstanceState] = []
    replicas: list[InstanceState] = []
    for instance in snapshot.instances:
        if instance.phase is P.STOPPING:
            stopping.append(instance)
        elif instance.phase is P.REPLACED:
            replaced.append(instance)
        elif instance.id in evictions:
            evicted.append(Eviction(instance, *evictions[instance.id]))
        elif instance.id in uncounted:
            replacements.append(instance)
        elif instance.phase is P.UNREACHABLE and may_be_substituted(snapshot, instance):
            given_up.append(instance)
        else:
            replicas.append(instance)
    substituted = {i.replaces for i in snapshot.instances}
    requeued = [
        i for i in snapshot.instances
        if i.preempted_for is not None and i.id not in substituted and not is_finished(snapshot, i)
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


def eviction_reason(snapshot: DeploymentSnapshot, instance: InstanceState) -> tuple[str, str] | None:
    """Reason and message if it must leave its worker although it is wanted. Relocations are judged apart."""
    if not is_finished(snapshot, instance):
        if (drained := drained_now(snapshot, instance)) is not None:
            return "drained", drained
        if instance.preempted_for is not None:
            return "preempted", f"preempted by {instance.preempted_for}, which has a higher priority"
        if (lost := leaves_lost_gpu(snapshot, instance)) is not None:
            return GPU_LOST, lost
    return None


def may_be_substituted(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether its worker is lost and a substitute may run. Two copies of a task never run at once."""
    return is_lost(snapshot, instance) and snapshot.revisions[instance.revision].spec.restart == "always"


def wanted_replicas(snapshot: DeploymentSnapshot) -> int:
    """The spec's replicas, as the autoscaler wants them, limited by the other intents."""
    return 0 if snapshot.deleted_at is not None else wanted.wanted_replicas(snapshot.spec, snapshot.intents)


def scale_down(
    snapshot: DeploymentSnapshot, buckets: Buckets, number: int, leaving: Collection[str], effects: DeploymentEffects
) -> set[str]:
    """Stops surplus replicas, and with no replica wanted also instances on lost workers; returns their ids.

    `leaving`: instances that earlier sub-steps have stopped.
    """
    # A cap of user or policy goes before the autoscaler's number.
    limits = sorted(snapshot.intents, key=lambda i: i.source == wanted.AUTOSCALER)
    limited_by = next((i.reason for i in limits if i.max_replicas <= number and i.reason), "scaled_down")
    reason = limited_by if number < snapshot.spec.replica_bounds[1] else "scaled_down"
    chosen = [(i, reason) for i in surplus(snapshot, buckets, number, leaving)]
    if number == 0:
        chosen += [(i, limited_by) for i in buckets.given_up if i.id not in leaving]
    for instance, why in chosen:
        stop(snapshot, instance, effects, why, "")
    return {i.id for i, _ in chosen}


def surplus(
    snapshot: DeploymentSnapshot, buckets: Buckets, wanted: int, leaving: Collection[str]
) -> list[InstanceState]:
    """The replicas beyond the wanted number, without those in `leaving`.

    No serving replica is among them while one that does not serve stays. Of serving replicas those that intents name
    come first.
    """
    counted = [i for i in buckets.replicas if i.id not in leaving]
    named = {id_ for intent in snapshot.intents for id_ in intent.instances}

    def order(instance: InstanceState) -> tuple[int, bool, int, int, float]:
        rank, requests, seen_requests, age = victim_order(instance)
        return (rank, instance.id not in named, requests, seen_requests, age)

    return sorted(counted, key=order)[: max(len(counted) - wanted, 0)]


def victim_order(instance: InstanceState) -> tuple[int, int, int, float]:
    """The order in which surplus instances stop: without claims, then not running, then the least busy, the newest.

    The gateways' counts come first. The agent's counts decide between instances that are equal by them.
    """
    rank = _VICTIM_RANK.get(instance.phase, _SERVES)
    return (rank, instance.requests, instance.seen_requests, -instance.created_at.timestamp())


def evict(snapshot: DeploymentSnapshot, buckets: Buckets, effects: DeploymentEffects) -> set[str]:
    for eviction in buckets.evicted:
        counted = NEW_REVISION if eviction.reason == RESTARTED else None
        stop(snapshot, eviction.instance, effects, eviction.reason, eviction.message, stop_reason=counted)
    return {eviction.instance.id for eviction in buckets.evicted}


def create_missing(
    snapshot: DeploymentSnapshot, buckets: Buckets, wanted: int, leaving: Collection[str], effects: DeploymentEffects
) -> None:
    """Creates missing replicas.

    An outdated instance must be gone before its successor is created, and so must an evicted task.

    `leaving`: instances that this step has stopped.
    """
    counted = sum(i.id not in leaving for i in buckets.replicas)
    missing = (
        wanted - counted - stopping_outdated(snapshot, buckets, effects) - paused_tasks(snapshot, buckets, effects)
    )
    add_creates(snapshot, buckets, leaving, snapshot.revision, min(max(missing, 0), MAX_CREATED), effects)
    if missing > MAX_CREATED:
        effects.requeue(0.0)


def add_creates(
    snapshot: DeploymentSnapshot,
    buckets: Buckets,
    leaving: Collection[str],
    revision: int,
    number: int,
    effects: DeploymentEffects,
) -> None:
    """Adds `number` instances of a revision. The first are successors that this step has not created yet."""
    substituted = {i.replaces for i in snapshot.instances}
    given_up = [i.id for i in buckets.given_up if i.id not in leaving and i.id not in substituted]
    # Successors of preempted instances come first and keep their queue time.
    successors = [(i.id, i.created_at) for i in buckets.requeued] + [(id_, None) for id_ in given_up]
    created = {create.replaces for create in effects.creates}
    successors = [successor for successor in successors if successor[0] not in created]

    analyzing = effects.analyse == revision
    for n in range(number):
        replaces, born = successors[n] if n < len(successors) else (None, None)
        effects.creates.append(Create(revision, replaces, analyzing=analyzing, born=born))


def stopping_outdated(snapshot: DeploymentSnapshot, buckets: Buckets, effects: DeploymentEffects) -> int:
    """Instances that a rollout stops and that still hold their place."""
    removed = {removal.instance for removal in effects.removals}
    number = sum(
        i.stop_reason == NEW_REVISION and i.id not in removed and not may_be_substituted(snapshot, i)
        for i in buckets.stopping
    )
    return number + sum(change.stop_reason == NEW_REVISION for change in effects.phase_changes)


def finish_done(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> bool:
    """Ends an evicted task as succeeded, if all of its ranks ended with code 0; returns whether it did."""
    if instance.stop_reason not in _WANTED_ELSEWHERE or not is_done_at_stop(snapshot, instance):
        return False
    text = "exited with code 0 while it was stopped, so it is done"
    effects.change_phase(instance, P.SUCCEEDED, "completed", text)
    effects.release(instance)
    objects = (f"instance:{instance.id}",)
    effects.events.append(NewEvent("succeeded", text, objects, {"exit_code": 0, "reason": instance.stop_reason}))
    return True


def paused_tasks(snapshot: DeploymentSnapshot, buckets: Buckets, effects: DeploymentEffects) -> int:
    """Number of evicted tasks that count as replicas: those that still stop, and those that this step found done."""
    removed = {removal.instance for removal in effects.removals}
    stopping = sum(
        _pauses(snapshot, i, i.stop_reason) and i.id not in removed and not may_be_substituted(snapshot, i)
        for i in buckets.stopping
    )
    evicted = {change.instance: change.stop_reason for change in effects.phase_changes if change.to is P.STOPPING}
    return stopping + sum(_pauses(snapshot, i, evicted[i.id]) for i in snapshot.instances if i.id in evicted)


def _pauses(snapshot: DeploymentSnapshot, instance: InstanceState, stop_reason: str | None) -> bool:
    return stop_reason in _WANTED_ELSEWHERE and is_task(snapshot, instance)
