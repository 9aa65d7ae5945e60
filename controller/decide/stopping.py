"""Taking an instance down: orders never sent are withdrawn, processes are stopped, and only the dead are let go."""

from controller.decide.draft import Draft
from controller.decide.liveness import host_is_dead, is_lost, may_run
from controller.domain.effects import Fact, StopOrderPlan
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase


def stop(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft, reason: str, message: str) -> None:
    """Begins or continues the stop of an instance; what is proven dead is removed at once."""
    unsent = [rank for rank in instance.ranks if draft.withdraw(instance, rank)]
    running = [rank for rank in instance.ranks if rank not in unsent and may_run(facts, instance, rank)]
    if not running:
        draft.remove(instance)
        draft.facts.append(Fact("removed", message or f"removed: {reason}", _objects(instance), {"reason": reason}))
        return
    if instance.phase is not P.STOPPING:
        draft.move(instance, P.STOPPING, reason, message, stop_reason=reason)
        draft.facts.append(Fact("stopping", message or f"stopping: {reason}", _objects(instance), {"reason": reason}))
    for rank in running:
        home = facts.hosts.get(instance.host_of(rank) or "")
        if home is not None and home.fence_until is not None and home.fence_until > facts.now:
            draft.again((home.fence_until - facts.now).total_seconds())
        order_stop(facts, instance, rank, draft, reason)
    if len(running) < len(instance.ranks) and is_lost(facts, instance):
        reap(facts, instance, draft)


def reap(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft) -> None:
    """Stops the ranks of a gang that has lost a worker, where somebody is left to do it, and lets go of the dead ones.

    The lost worker's fence may last long, and the GPUs of the others need not wait for it.
    """
    for rank in instance.ranks:
        home = facts.hosts.get(instance.host_of(rank) or "")
        if home is None or home.phase != "ready" or home.deleted:
            continue
        if draft.withdraw(instance, rank):
            draft.again(0.0)
        elif may_run(facts, instance, rank):
            order_stop(facts, instance, rank, draft, "rank_lost")
        else:
            draft.release_rank(instance, rank)


def order_stop(facts: DeploymentFacts, instance: InstanceFacts, rank: int, draft: Draft, reason: str) -> None:
    """Orders one rank to stop, once, where anybody is left to carry it out."""
    worker = instance.host_of(rank)
    if worker is None or host_is_dead(facts, worker) or instance.command("stop", rank) is not None:
        return
    drain_time_s = facts.revisions[instance.revision].spec.drain_time
    draft.stops.append(StopOrderPlan(instance.id, instance.epoch, rank, worker, drain_time_s, reason))


def _objects(instance: InstanceFacts) -> tuple[str, ...]:
    devices = sorted({c.device for c in instance.claims if c.kind == "gpu"})
    workers = sorted({c.worker_id for c in instance.claims})
    return (f"instance:{instance.id}", *(f"worker:{w}" for w in workers), *(f"gpu:{d}" for d in devices))
