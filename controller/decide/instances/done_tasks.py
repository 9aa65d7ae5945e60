"""Tasks that end with code 0 while they are stopped: such a task is done, so it must not run again elsewhere.

Until its end is known, nothing takes the place of an evicted task: its last seconds may be those that complete it, and
two copies would work at once. A server is different: at SIGTERM its exit code 0 only means that it has stopped.
"""

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.gang import is_done_at_stop, is_task
from controller.decide.instances.gone_gpus import GPU_LOST
from controller.domain.effects import DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
_WANTED_ELSEWHERE = frozenset({"drained", "preempted", GPU_LOST})  # reasons of stops after which it would run again


def finish_done(facts: DeploymentFacts, instance: InstanceFacts, effects: DeploymentEffects) -> bool:
    """Ends an evicted task as succeeded, if all of its ranks ended with code 0; returns whether it did."""
    if instance.stop_reason not in _WANTED_ELSEWHERE or not is_done_at_stop(facts, instance):
        return False
    text = "exited with code 0 while it was stopped, so it is done"
    effects.change_phase(instance, P.SUCCEEDED, "completed", text)
    effects.release(instance)
    objects = (f"instance:{instance.id}",)
    effects.events.append(NewEvent("succeeded", text, objects, {"exit_code": 0, "reason": instance.stop_reason}))
    return True


def paused_tasks(facts: DeploymentFacts, buckets: Buckets, effects: DeploymentEffects) -> int:
    """How many evicted tasks count as replicas: those that still stop, and those that this step found done."""
    removed = {removal.instance for removal in effects.removals}
    stopping = sum(
        _pauses(facts, one, one.stop_reason) and one.id not in removed and not may_be_substituted(facts, one)
        for one in buckets.stopping
    )
    evicted = {change.instance: change.stop_reason for change in effects.phase_changes if change.to is P.STOPPING}
    return stopping + sum(_pauses(facts, one, evicted[one.id]) for one in facts.instances if one.id in evicted)


def _pauses(facts: DeploymentFacts, instance: InstanceFacts, stop_reason: str | None) -> bool:
    return stop_reason in _WANTED_ELSEWHERE and is_task(facts, instance)
