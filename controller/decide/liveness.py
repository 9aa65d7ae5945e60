"""Whether anything of an instance can still run. Claims go only on proof of death; a request to stop proves nothing."""

from controller.domain.instances import DeploymentFacts, HostFacts, InstanceFacts


def host_is_dead(facts: DeploymentFacts, worker_id: str | None) -> bool:
    """The operator confirmed it, or its fence has passed: nothing there can still run."""
    host = facts.hosts.get(worker_id or "")
    if host is None:
        return False
    if host.confirmed_dead:
        return True
    return host.phase == "lost" and host.fence_until is not None and host.fence_until <= facts.now


def may_run(facts: DeploymentFacts, instance: InstanceFacts, rank: int) -> bool:
    """True unless it is proven that no process of that rank's present epoch runs or will be started.

    An order that was never sent counts as running here; `unsent_start` tells those, which can be withdrawn.
    """
    process = instance.process(rank)
    if process is not None and process.state == "exited":
        return False
    if host_is_dead(facts, instance.host_of(rank)):
        return False
    start = instance.command("start", rank)
    never_started = process is None and (start is None or start.state in ("refused", "withdrawn"))
    return not never_started


def unsent_start(instance: InstanceFacts, rank: int) -> int | None:
    """The id of the rank's start order if no agent can have seen it."""
    start = instance.command("start", rank)
    if start is not None and start.state == "open" and not start.sent and instance.process(rank) is None:
        return start.id
    return None


def host(facts: DeploymentFacts, instance: InstanceFacts, rank: int = 0) -> HostFacts | None:
    """The worker on which a rank has its claims."""
    return facts.hosts.get(instance.host_of(rank) or "")


def is_silent(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether any worker of the instance is unreachable, lost or deleted."""
    hosts = [host(facts, instance, rank) for rank in instance.ranks]
    return any(h is not None and (h.phase in ("unreachable", "lost") or h.deleted) for h in hosts)


def is_lost(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether a worker of the instance is given up, so that a substitute is due. While the breaker is open, none is."""
    hosts = [host(facts, instance, rank) for rank in instance.ranks]
    return any(h is not None and (h.confirmed_dead or h.phase == "lost") for h in hosts)
