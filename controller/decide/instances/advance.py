"""The next step of one live instance: it follows its process. One branch per phase."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from controller.decide.instances.crash_loop import after_exit, after_refusal, end_backoff, forget_failures
from controller.decide.instances.gang import leading_process, refused_start, stop_remaining_ranks
from controller.decide.instances.liveness import GPU_LOST, is_silent, lost_gpu
from controller.decide.instances.unreachable import await_return, end_replaced, leave_silent_worker
from controller.domain.effects import DeploymentEffects, Progress
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentSnapshot, InstanceState, ReportedProcess
from controller.domain.phases import LIVE, PHASE_OF_STATE, InstancePhase
from controller.domain.restart_delays import RestartSettings
from schemas.wire import NO_ANSWER, PULLING

P = InstancePhase
FETCHING: Final = "fetching"
PULLING_IMAGE: Final = "pulling"
TOTAL: Final = "total"
_ORDER: Final[tuple[str, ...]] = ("analyzing", "pending", "scheduled", "pulling", "fetching", "starting")
_LEAST_SHOWN_S: Final = 0.05
_MINUTE_S: Final = 60
_TENTHS_BELOW_S: Final = 10


def advance(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    silent = instance.phase in LIVE and is_silent(snapshot, instance)
    if silent and leave_silent_worker(snapshot, instance, effects, settings):
        return
    match instance.phase:
        case P.SCHEDULED | P.STARTING | P.RUNNING | P.UNHEALTHY:
            _follow_process(snapshot, instance, effects, settings)
        case P.BACKOFF:
            end_backoff(snapshot, instance, effects, settings)
        case P.UNREACHABLE:
            await_return(snapshot, instance, effects, settings)
        case P.REPLACED:
            end_replaced(snapshot, instance, effects)
        case P.PENDING | P.ANALYZING | P.SUCCEEDED | P.FAILED | P.STOPPING:
            pass  # placement's, final, or `stop.py`'s


def _follow_process(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    if stop_remaining_ranks(snapshot, instance, effects):
        return
    process, refused = leading_process(instance), refused_start(instance)
    if process is None:
        if refused is not None:
            after_refusal(snapshot, instance, refused, effects, settings)
        return
    if process.state == "exited":
        after_exit(snapshot, instance, process, effects, settings)
        return
    phase = PHASE_OF_STATE.get(process.state)
    if phase is P.RUNNING and (why := lost_gpu(snapshot, instance)) is not None:
        if instance.phase is P.RUNNING:
            effects.change_phase(instance, P.UNHEALTHY, GPU_LOST, why)
            effects.requeue(0.0)  # the next step replaces it, where its spec allows that
        return
    if phase is not None and phase is not instance.phase:
        _step_towards(snapshot, instance, phase, process, effects)
    elif phase is P.STARTING:
        _record_progress(instance, effects)
    if instance.phase is P.RUNNING and phase is P.RUNNING and instance.failures:
        forget_failures(snapshot, instance, effects, settings)


def _record_progress(instance: InstanceState, effects: DeploymentEffects) -> None:
    """Records whether a process that is not started yet waits for its model or its image."""
    processes = [p for rank in instance.ranks if (p := instance.process(rank)) is not None]
    message = next((p.message for p in processes if p.state == "starting" and p.message), "")
    known = PULLING_IMAGE if message.startswith(PULLING) else FETCHING
    reason = known if message else ""
    if message != instance.message and (message or instance.reason in (FETCHING, PULLING_IMAGE)):
        effects.progress.append(Progress(instance.id, instance.epoch, reason, message))


def _step_towards(
    snapshot: DeploymentSnapshot,
    instance: InstanceState,
    phase: InstancePhase,
    process: ReportedProcess,
    effects: DeploymentEffects,
) -> None:
    """Takes one legal edge towards the reported phase. From `scheduled` it leads through `starting`."""
    if instance.phase is P.SCHEDULED or (instance.phase is P.STARTING and phase is P.UNHEALTHY):
        phase = P.STARTING if instance.phase is P.SCHEDULED else P.RUNNING
        effects.requeue(0.0)
    if phase is P.STARTING and instance.phase in (P.RUNNING, P.UNHEALTHY):
        return  # a late report of the same epoch, within which phases only go forward
    message = process.message if phase is P.UNHEALTHY else ""
    reason = "no_answer" if message.startswith(f"{NO_ANSWER}:") else "probe_failed"
    effects.change_phase(instance, phase, reason if phase is P.UNHEALTHY else "", message)
    if phase is P.RUNNING and instance.phase is P.STARTING:
        _record_start(snapshot, instance, effects)


def _record_start(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    durations = start_durations(instance, snapshot.now)
    workers = dict.fromkeys(claim.worker_id for claim in instance.claims if claim.epoch == instance.epoch)
    objects = (f"instance:{instance.id}", *(f"worker:{worker}" for worker in workers))
    evidence = {"epoch": instance.epoch, "durations": durations}
    effects.events.append(NewEvent("running", story(instance.id, durations), objects, evidence))


def start_durations(instance: InstanceState, now: datetime) -> dict[str, float]:
    """Seconds of each phase of this start, in order, with the present phase, and their `total`."""
    spent = {phase: instance.start_phases[phase] for phase in _ORDER if phase in instance.start_phases}
    since = instance.start_phase_since or instance.phase_since
    present = _present(instance)
    if present is not None:
        spent[present] = spent.get(present, 0.0) + max(0.0, (now - since).total_seconds())
    in_order: dict[str, float] = {phase: round(spent[phase], 3) for phase in _ORDER if phase in spent}
    return {**in_order, TOTAL: round(sum(spent.values()), 3)}


def _present(instance: InstanceState) -> str | None:
    if instance.phase is InstancePhase.STARTING and instance.reason in _ORDER:
        return instance.reason
    return instance.phase.value if instance.phase.value in _ORDER else None


def story(instance: str, durations: Mapping[str, float]) -> str:
    """The start in a sentence. Phases that took no time are left out."""
    parts = [f"{phase} {_words(durations[phase])}" for phase in _ORDER if durations.get(phase, 0) >= _LEAST_SHOWN_S]
    return f"{instance} runs after {_words(durations[TOTAL])}" + (f": {', '.join(parts)}" if parts else "")


def _words(seconds: float) -> str:
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
