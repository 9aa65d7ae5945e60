"""The number of wanted replicas, and which instances stop when there are more."""

from collections.abc import Collection

from controller.decide.instances.classify import Buckets
from controller.decide.instances.stop import stop
from controller.domain import wanted
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
_VICTIM_RANK = {
    P.PENDING: 0,
    P.ANALYZING: 0,
    P.FAILED: 1,
    P.SUCCEEDED: 1,
    P.BACKOFF: 2,
    P.UNHEALTHY: 3,  # it holds its place and serves nothing, and unlike one that starts it may never serve again
    P.SCHEDULED: 4,
    P.UNREACHABLE: 4,
    P.STARTING: 5,
}
_SERVES = 9


def wanted_replicas(facts: DeploymentFacts) -> int:
    """The spec's replicas, as the autoscaler asks for them, limited by the other intents."""
    return 0 if facts.deleted_at is not None else wanted.wanted_replicas(facts.spec, facts.intents)


def stop_all(facts: DeploymentFacts, effects: DeploymentEffects) -> set[str]:
    """Stops every instance of a deleted deployment; returns their ids."""
    chosen = [i for i in facts.instances if i.phase is not P.STOPPING]
    for instance in chosen:
        stop(facts, instance, effects, "deleted", "the deployment was deleted")
    return {i.id for i in chosen}


def scale_down(
    facts: DeploymentFacts, buckets: Buckets, number: int, leaving: Collection[str], effects: DeploymentEffects
) -> set[str]:
    """Stops surplus replicas, and instances on lost workers once none is wanted; returns their ids.

    Args:
        facts: the deployment.
        buckets: its instances.
        number: of wanted replicas.
        leaving: instances that earlier sub-steps have stopped.
        effects: what is added to.
    """
    # A cap of user or policy goes before the autoscaler's number.
    limits = sorted(facts.intents, key=lambda i: i.source == wanted.AUTOSCALER)
    limited_by = next((i.reason for i in limits if i.max_replicas <= number and i.reason), "scaled_down")
    reason = limited_by if number < facts.spec.replica_bounds[1] else "scaled_down"
    chosen = [(i, reason) for i in surplus(facts, buckets, number, leaving)]
    if number == 0:
        chosen += [(i, limited_by) for i in buckets.given_up if i.id not in leaving]
    for instance, why in chosen:
        stop(facts, instance, effects, why, "")
    return {i.id for i, _ in chosen}


def surplus(facts: DeploymentFacts, buckets: Buckets, wanted: int, leaving: Collection[str]) -> list[InstanceFacts]:
    """The replicas beyond the wanted number, without those in `leaving`.

    None that serves is among them while one that does not serve stays. Of those that serve, the ones that intents name
    come first.
    """
    counted = [i for i in buckets.replicas if i.id not in leaving]
    named = {id_ for intent in facts.intents for id_ in intent.instances}

    def order(instance: InstanceFacts) -> tuple[int, bool, int, int, float]:
        rank, requests, seen_requests, age = victim_order(instance)
        return (rank, instance.id not in named, requests, seen_requests, age)

    return sorted(counted, key=order)[: max(len(counted) - wanted, 0)]


def victim_order(instance: InstanceFacts) -> tuple[int, int, int, float]:
    """The order in which surplus instances stop: without claims, then not running, then the least busy, the newest.

    The gateways' counts go first. What its agent has seen decides between those that are equal by them.
    """
    rank = _VICTIM_RANK.get(instance.phase, _SERVES)
    return (rank, instance.requests, instance.seen_requests, -instance.created_at.timestamp())
