"""Proof that no process of an instance can still run, and that its GPU is gone.

Only proof of death releases claims, never a request to stop. A GPU that its driver lost, that is off the bus or no
longer there is gone although its worker answers. A GPU that cannot be read is not.
"""

from controller.domain.instances import ClaimedWorker, DeploymentSnapshot, InstanceState
from controller.domain.phases import InstancePhase
from controller.domain.workers import QUARANTINED

P = InstancePhase
GPU_LOST = "gpu_lost"
# A running instance is shown as unhealthy first; in `backoff` it is placed again when its delay is over.
_LEAVES = frozenset({P.SCHEDULED, P.STARTING, P.UNHEALTHY})


def host_is_dead(snapshot: DeploymentSnapshot, worker_id: str | None) -> bool:
    """Whether no process can still run there: the operator confirmed it dead, or it is lost and its fence expired."""
    host = snapshot.hosts.get(worker_id or "")
    if host is None:
        return False
    if host.confirmed_dead:
        return True
    return host.phase == "lost" and host.fence_until is not None and host.fence_until <= snapshot.now


def may_run(snapshot: DeploymentSnapshot, instance: InstanceState, rank: int) -> bool:
    """False only on proof that no process of that rank's current epoch runs or will be started.

    A start command that was never sent counts as running here; `InstanceState.unsent_start` finds it to be withdrawn.
    """
    process = instance.process(rank)
    if process is not None and process.state == "exited":
        return False
    if host_is_dead(snapshot, instance.host_of(rank)):
        return False
    start = instance.command("start", rank)
    never_started = process is None and (start is None or start.state in ("refused", "withdrawn"))
    return not never_started


def any_may_run(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    return any(may_run(snapshot, instance, rank) for rank in instance.ranks)


def hosts(snapshot: DeploymentSnapshot, instance: InstanceState) -> list[ClaimedWorker]:
    """The known workers of its ranks, in order of rank."""
    known = (snapshot.hosts.get(instance.host_of(rank) or "") for rank in instance.ranks)
    return [host for host in known if host is not None]


def is_silent(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether any of its workers is unreachable, lost or deleted. A quarantined worker is connected, so not silent."""
    return any(
        host.deleted or (host.phase in ("unreachable", "lost") and host.reason not in QUARANTINED)
        for host in hosts(snapshot, instance)
    )


def is_lost(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether any of its workers is lost, so that a substitute is due. While the breaker is open no worker is lost."""
    return any(map(is_given_up, hosts(snapshot, instance)))


def is_given_up(host: ClaimedWorker | None) -> bool:
    """Whether a worker is lost, or an operator has confirmed it dead."""
    return host is not None and (host.confirmed_dead or host.phase == "lost")


def never_ran(instance: InstanceState, rank: int) -> bool:
    """Whether no process of that rank's current epoch has been or will be, unless its command is sent after this."""
    start = instance.command("start", rank)
    unsent = instance.unsent_start(rank) is not None
    return instance.process(rank) is None and (start is None or unsent or start.state in ("refused", "withdrawn"))


def lost_gpu(snapshot: DeploymentSnapshot, instance: InstanceState) -> str | None:
    """The GPU of the instance that is gone, with the reason. None if all are there, or its worker is silent."""
    claim = next((c for c in instance.claims if c.gone), None)
    if claim is None or is_silent(snapshot, instance):
        return None
    return f"its GPU {claim.device} is gone: {claim.gone}"


def leaves_lost_gpu(snapshot: DeploymentSnapshot, instance: InstanceState) -> str | None:
    """As `lost_gpu`, but only where the instance must stop now and its spec allows a successor elsewhere.

    A task that must never run twice stays. So does an instance for which too few of the GPUs that it names are left.
    """
    why = lost_gpu(snapshot, instance)
    spec = snapshot.revisions[instance.revision].spec
    if why is None or instance.phase not in _LEAVES or spec.restart == "never":
        return None
    held = [c for c in instance.claims if c.kind == "gpu"]
    left = set(spec.placement.gpus) - {c.device for c in held if c.gone}
    return None if spec.placement.gpus and len(left) < len(held) else why
