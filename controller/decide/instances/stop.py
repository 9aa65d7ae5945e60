"""Stopping an instance: unsent commands are withdrawn, processes are stopped, claims of dead ones are released."""

from typing import Any, Final

from controller.decide.instances.liveness import host_is_dead, is_lost, may_run
from controller.domain.effects import DeploymentEffects, Stop
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import InstancePhase

P = InstancePhase
NEW_REVISION: Final = "new_revision"  # the stop reason of what a rollout or a restart replaces


def stop(
    snapshot: DeploymentSnapshot,
    instance: InstanceState,
    effects: DeploymentEffects,
    reason: str,
    message: str,
    *,
    stop_reason: str | None = None,
) -> None:
    """Begins or continues the stop of an instance. Its row is removed as soon as no rank may run.

    `reason` is a code. `stop_reason`: the code by which its successor is counted, where that differs.
    """
    unsent = [rank for rank in instance.ranks if effects.withdraw(instance, rank)]
    running = [rank for rank in instance.ranks if rank not in unsent and may_run(snapshot, instance, rank)]
    objects = _objects(instance)
    evidence: dict[str, Any] = {"reason": reason}
    if not running:
        effects.remove(instance)
        if instance.phase is P.STOPPING:
            spent_s = max(0.0, (snapshot.now - instance.phase_since).total_seconds())
            evidence["durations"] = {"stopping": round(spent_s, 3)}
        effects.events.append(NewEvent("removed", message or f"removed: {reason}", objects, evidence))
        return
    if instance.phase is not P.STOPPING:
        effects.change_phase(instance, P.STOPPING, reason, message, stop_reason=stop_reason or reason)
        effects.events.append(NewEvent("stopping", message or f"stopping: {reason}", objects, evidence))
    for rank in running:
        host = snapshot.hosts.get(instance.host_of(rank) or "")
        if host is not None and host.fence_until is not None and host.fence_until > snapshot.now:
            effects.requeue((host.fence_until - snapshot.now).total_seconds())
        order_stop(snapshot, instance, rank, effects, reason)
    if len(running) < len(instance.ranks) and is_lost(snapshot, instance):
        stop_reachable_ranks(snapshot, instance, effects)


def stop_reachable_ranks(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    """Of a gang that lost a worker: stops the ranks on ready workers and releases the claims of those that ended.

    The lost worker's fence may last long, and the GPUs of the other ranks need not wait for it.
    """
    for rank in instance.ranks:
        host = snapshot.hosts.get(instance.host_of(rank) or "")
        if host is None or host.phase != "ready" or host.deleted:
            continue
        if effects.withdraw(instance, rank):
            effects.requeue(0.0)
        elif may_run(snapshot, instance, rank):
            order_stop(snapshot, instance, rank, effects, "rank_lost")
        else:
            effects.release_rank(instance, rank)


def order_stop(
    snapshot: DeploymentSnapshot, instance: InstanceState, rank: int, effects: DeploymentEffects, reason: str
) -> None:
    """Adds a stop command for one rank, once per epoch, unless its host is dead."""
    worker = instance.host_of(rank)
    if worker is None or host_is_dead(snapshot, worker) or instance.command("stop", rank) is not None:
        return
    effects.stops.append(Stop(instance.id, instance.epoch, rank, worker, snapshot.spec.drain_s, reason))


def _objects(instance: InstanceState) -> tuple[str, ...]:
    devices = sorted({c.device for c in instance.claims if c.kind == "gpu"})
    workers = sorted({c.worker_id for c in instance.claims})
    return (f"instance:{instance.id}", *(f"worker:{w}" for w in workers), *(f"gpu:{d}" for d in devices))
