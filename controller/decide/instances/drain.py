"""Draining a worker: what leaves it at once, what stays for the moment, and the replacements that start first.

A server that runs stays until its replacement runs elsewhere, at most until the drain's time is over. A task that never
restarts stays until it ends; only `drain_restarts_tasks` stops it once that time is over. All else leaves at once:
nothing is served by it, or it must not run twice at the same time.
"""

from collections.abc import Sequence
from typing import Final

from controller.decide.instances.liveness import any_may_run, hosts
from controller.domain.effects import Create, DeploymentEffects, Replaced
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, HostFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
_SERVES: Final = frozenset({P.RUNNING, P.UNHEALTHY})
_WORKS: Final = frozenset({P.SCHEDULED, P.STARTING, P.RUNNING, P.UNHEALTHY, P.UNREACHABLE})
_MOST_STARTED: Final = 2_000  # in one step, so that it stays short; the next step continues


def drained_now(facts: DeploymentFacts, instance: InstanceFacts) -> str | None:
    """Why a drain stops it now, in words; None: no worker of it is drained, or it stays for the moment."""
    drained = off_worker(facts, instance)
    if not drained or stays(facts, instance, drained):
        return None
    if facts.revisions[instance.revision].spec.restart == "never":
        return "its worker is being drained; it is started again elsewhere, from its beginning"
    return "its worker is being drained"


def stays(facts: DeploymentFacts, instance: InstanceFacts, drained: Sequence[HostFacts]) -> bool:
    """Whether it stays on its drained workers for the moment."""
    if any(host.drain_until is None for host in drained):
        return False
    due = [host for host in drained if host.drain_until is not None and host.drain_until <= facts.now]
    restart = facts.revisions[instance.revision].spec.restart
    if restart == "never":
        began = any(instance.unsent_start(rank) is None for rank in instance.ranks)
        works = instance.phase in _WORKS and began and any_may_run(facts, instance)
        return works and not any(host.drain_restarts_tasks for host in due)
    return restart == "always" and instance.phase in _SERVES and not due


def starts_elsewhere(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether the drain makes it start on another worker, now or once the drain's time is over."""
    drained = off_worker(facts, instance)
    task = facts.revisions[instance.revision].spec.restart == "never"
    return not task or drained_now(facts, instance) is not None or any(host.drain_restarts_tasks for host in drained)


def off_worker(facts: DeploymentFacts, instance: InstanceFacts) -> list[HostFacts]:
    """The workers of its ranks that are drained."""
    return [host for host in hosts(facts, instance) if host.draining]


def until_drained_s(facts: DeploymentFacts, instance_id: str) -> float:
    """Seconds until the drain of the first of its workers is due."""
    instance = facts.by_id.get(instance_id)
    drained = off_worker(facts, instance) if instance is not None else []
    left = [(host.drain_until - facts.now).total_seconds() for host in drained if host.drain_until is not None]
    return max(min(left, default=0.0), 0.0)


def keeps_revision(facts: DeploymentFacts, revision: int) -> bool:
    """Whether new replicas may be of this revision: the newest, or the one to which a failed rollout has gone back."""
    record = facts.rollout.record if facts.rollout is not None else None
    return revision == facts.revision or (record is not None and record.holds and record.stable == revision)


def start_replacements(facts: DeploymentFacts, staying: Sequence[InstanceFacts], effects: DeploymentEffects) -> None:
    """Creates the replacements of servers that stay while their worker is drained, and wakes when its time is over.

    Args:
        facts: the deployment.
        staying: its replicas that this step does not stop.
        effects: what is added to.
    """
    relocated = {relocation.instance for relocation in facts.relocations}
    replacements = {relocation.replacement for relocation in facts.relocations}
    started = 0
    for instance in staying:
        if instance.phase not in _WORKS or not (drained := off_worker(facts, instance)):
            continue
        if (left_s := until_drained_s(facts, instance.id)) > 0:
            effects.requeue(left_s)
        serves = instance.phase in _SERVES and facts.revisions[instance.revision].spec.restart == "always"
        if not serves or instance.id in relocated | replacements or not keeps_revision(facts, instance.revision):
            continue
        if started == _MOST_STARTED:
            effects.requeue(0.0)
            return
        started += 1
        effects.creates.append(Create(instance.revision, replaced=Replaced(instance.id, instance.epoch, "drain")))
        names = ", ".join(dict.fromkeys(host.name for host in drained))
        message = f"{instance.id} leaves {names}, which is drained: a replacement starts first"
        effects.events.append(NewEvent("relocating", message, (f"instance:{instance.id}",), {"from": names}))
