"""What one live instance does next: it follows its process. One branch per phase."""

from controller.decide.instances.crash_loop import after_exit, after_refusal, end_backoff, forget_failures
from controller.decide.instances.gang import leading_process, refused_start, stop_remaining_ranks
from controller.decide.instances.liveness import is_silent
from controller.decide.instances.unreachable import await_return, end_replaced, leave_silent_worker
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts, InstanceFacts, ProcessFacts
from controller.domain.phases import LIVE, PHASE_OF_STATE, InstancePhase
from controller.domain.restart_delays import RestartSettings

P = InstancePhase


def advance(
    facts: DeploymentFacts, instance: InstanceFacts, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    """Adds what this instance does next."""
    if instance.phase in LIVE and is_silent(facts, instance) and leave_silent_worker(facts, instance, effects):
        return
    match instance.phase:
        case P.SCHEDULED | P.STARTING | P.RUNNING | P.UNHEALTHY:
            _follow_process(facts, instance, effects, settings)
        case P.BACKOFF:
            end_backoff(facts, instance, effects, settings)
        case P.UNREACHABLE:
            await_return(facts, instance, effects, settings)
        case P.REPLACED:
            end_replaced(facts, instance, effects)
        case P.PENDING | P.ANALYZING | P.SUCCEEDED | P.FAILED | P.STOPPING:
            pass  # placement's, final, or `stop.py`'s


def _follow_process(
    facts: DeploymentFacts, instance: InstanceFacts, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    if stop_remaining_ranks(facts, instance, effects):
        return
    process, refused = leading_process(instance), refused_start(instance)
    if process is None:
        if refused is not None:
            after_refusal(facts, instance, refused, effects, settings)
        return
    if process.state == "exited":
        after_exit(facts, instance, process, effects, settings)
        return
    phase = PHASE_OF_STATE.get(process.state)
    if phase is not None and phase is not instance.phase:
        _step_towards(instance, phase, process, effects)
    if instance.phase is P.RUNNING and phase is P.RUNNING and instance.failures:
        forget_failures(facts, instance, effects, settings)


def _step_towards(
    instance: InstanceFacts, phase: InstancePhase, process: ProcessFacts, effects: DeploymentEffects
) -> None:
    """Takes one legal edge towards the reported phase; from `scheduled` the way leads through `starting`."""
    if instance.phase is P.SCHEDULED or (instance.phase is P.STARTING and phase is P.UNHEALTHY):
        phase = P.STARTING if instance.phase is P.SCHEDULED else P.RUNNING
        effects.requeue(0.0)
    if phase is P.STARTING and instance.phase in (P.RUNNING, P.UNHEALTHY):
        return  # a late report of the same epoch, within which phases only go forward
    unhealthy = phase is P.UNHEALTHY
    effects.change_phase(instance, phase, "probe_failed" if unhealthy else "", process.message if unhealthy else "")
