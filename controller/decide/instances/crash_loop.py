"""The end of a process or the refusal of its start: the instance ends, or restarts after a growing delay.

A restart is on the same worker, until every third failure in a row there sends it back to placement.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from controller.decide.instances.gang import collateral_ranks, is_done_at_stop
from controller.domain.access.redaction import plain
from controller.domain.access.secret_scopes import SECRET_REFUSALS
from controller.domain.effects import DeploymentEffects, Restart
from controller.domain.events import NewEvent
from controller.domain.instances import CommandState, DeploymentSnapshot, InstanceState, ReportedProcess
from controller.domain.phases import InstancePhase
from controller.domain.restart_delays import BLAMELESS, ENDED_REPEATEDLY, ORDERLY, RestartSettings, ends_in_a_row
from schemas.exit_causes import Cause, cause_of, cause_of_failed_start

P = InstancePhase
_LACKING_S: Final = 60.0  # a start without its secret is tried this often, since a hint of the change may be lost
_SHUTTING_DOWN: Final = "shutting_down"
_EXIT_TEXTS: Final = {
    "spawn_failed": "could not be started",
    "start_timeout": "made no progress within its start timeout and was killed",
    "liveness": "stopped answering its probe and was killed",
    "agent_stopped": "was stopped with its agent",
    "disconnected": "was stopped by its agent, which had lost the controller",
    "gone": "is gone; its exit was not seen",
}


def after_exit(
    snapshot: DeploymentSnapshot,
    instance: InstanceState,
    process: ReportedProcess,
    effects: DeploymentEffects,
    settings: RestartSettings,
) -> None:
    """A process ended without a stop: the instance succeeded, failed, or goes to backoff and restarts."""
    if instance.phase is P.SCHEDULED:  # it started and ended between two steps
        effects.change_phase(instance, P.STARTING)
        effects.requeue(0.0)
        return
    restart = snapshot.revisions[instance.revision].spec.restart
    reason = _reason(process)
    text = _exit_text(process, serves=restart == "always")
    objects = (f"instance:{instance.id}", f"worker:{process.worker_id}")
    evidence: dict[str, Any] = {"exit_code": process.exit_code, "reason": reason, "epoch": process.epoch}
    if (collateral := collateral_ranks(instance, process)) is not None:
        evidence |= {"rank": process.rank, "collateral_ranks": collateral}
    failures = instance.failures + 1
    completed = process.exit_code == 0 and reason == Cause.EXIT and restart != "always"
    if completed or (reason in BLAMELESS and is_done_at_stop(snapshot, instance)):
        effects.change_phase(instance, P.SUCCEEDED, "completed", text)
        effects.release(instance)
        effects.events.append(NewEvent("succeeded", text, objects, evidence))
    elif (
        restart == "never"
        or _is_vain(instance, reason)
        or (restart == "on_failure" and reason not in BLAMELESS and failures > settings.on_failure_retries)
    ):
        effects.change_phase(instance, P.FAILED, reason, text, failures=failures)
        effects.release(instance)
        effects.events.append(NewEvent("failed", text, objects, evidence))
    elif reason in BLAMELESS:
        _after_blameless_end(snapshot, instance, NewEvent("ended", text, objects, evidence), effects, settings)
    else:
        delay_s = settings.delay_s(failures)
        effects.change_phase(
            instance,
            P.BACKOFF,
            reason,
            f"{text}; restarts in {delay_s:g} s",
            failures=failures,
            restarts=instance.restarts + 1,
            not_before=snapshot.now + timedelta(seconds=delay_s),
        )
        delayed = {**evidence, "failures": failures, "wait_s": delay_s}
        effects.events.append(NewEvent("backoff", text, objects, delayed))
        effects.requeue(delay_s)


def _after_blameless_end(
    snapshot: DeploymentSnapshot,
    instance: InstanceState,
    ended: NewEvent,
    effects: DeploymentEffects,
    settings: RestartSettings,
) -> None:
    """No failure is counted. It restarts at once, unless such ends repeat without an orderly cause."""
    reason, message = ended.evidence["reason"], ended.message
    ends = ends_in_a_row(instance.runs, settings.stable_after_s)
    delay_s = 0.0 if reason == ORDERLY else settings.delay_after_blameless_s(ends)
    if delay_s > 0:
        reason = ENDED_REPEATEDLY
        message = f"{message}; that was end {ends} in a row without a stable run; restarts in {delay_s:g} s"
        ended = replace(ended, message=message, evidence={**ended.evidence, "ends": ends, "wait_s": delay_s})
    effects.change_phase(
        instance,
        P.BACKOFF,
        reason,
        message,
        restarts=instance.restarts + 1,
        not_before=snapshot.now + timedelta(seconds=delay_s),
    )
    effects.events.append(ended)
    effects.requeue(delay_s)


def after_refusal(
    snapshot: DeploymentSnapshot,
    instance: InstanceState,
    refused: CommandState,
    effects: DeploymentEffects,
    settings: RestartSettings,
) -> None:
    """The agent refused a start: the instance is placed again, or stays in backoff if it was a restart in place.

    A refusal by an agent that shuts down neither counts nor delays: another start would not meet it again.
    """
    orderly = refused.code == _SHUTTING_DOWN
    failures = None if orderly else instance.failures + 1
    delay_s = 0.0 if failures is None else settings.delay_s(failures)
    text = f"the agent refused to start it: {refused.message or refused.code}"
    if refused.code in SECRET_REFUSALS:  # neither its fault nor the agent's, and no failure
        failures, text = None, refused.message
        delay_s = 0.0 if instance.mended else min(_LACKING_S, settings.cap_s)
    delay = timedelta(seconds=delay_s)
    first_start = instance.phase is P.SCHEDULED
    effects.change_phase(
        instance,
        P.PENDING if first_start else P.BACKOFF,
        refused.code or "refused",
        text,
        failures=failures,
        not_before=None if orderly else snapshot.now + delay,
    )
    if first_start:
        effects.release(instance)
    effects.events.append(NewEvent("start_refused", text, (f"instance:{instance.id}",), {"code": refused.code}))
    effects.requeue(delay.total_seconds())


def end_backoff(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    """Once its delay is over: restarts in place, or is placed again if its worker is unfit or failed it too often."""
    delay_s = delay_left_s(snapshot, instance, settings)
    if delay_s > 0:
        effects.requeue(delay_s)
        return
    host = snapshot.hosts.get(instance.host_of(0) or "")
    unfit = host is None or host.phase != "ready" or host.draining or not all(c.healthy for c in instance.claims)
    # A restart in place renews one rank's command, so all ranks of a gang are placed again.
    lacks_engine = instance.reason == Cause.ENGINE_MISSING  # its agent reports that, so another engine or worker is due
    if unfit or lacks_engine or len(instance.ranks) > 1 or settings.leaves_worker(instance.failures):
        requeue_for_placement(instance, effects, instance.reason)
        return
    effects.restarts.append(Restart(instance.id, instance.phase, instance.epoch))


def delay_left_s(snapshot: DeploymentSnapshot, instance: InstanceState, settings: RestartSettings) -> float:
    """Seconds that its delay still lasts; 0 if it is over, its user restarts it, or the clock was set back."""
    if instance.restarts_now or instance.mended or instance.not_before is None:
        return 0.0
    left_s = (instance.not_before - snapshot.now).total_seconds()
    return left_s if 0 < left_s <= settings.cap_s else 0.0


def requeue_for_placement(
    instance: InstanceState, effects: DeploymentEffects, reason: str, not_before: datetime | None = None
) -> None:
    """Releases its claims and makes it pending; it is placed from `not_before` on."""
    effects.change_phase(instance, P.PENDING, reason, "is placed again", not_before=not_before)
    effects.release(instance)
    effects.wake_placement = True


def forget_failures(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    """Resets the failure count of an instance that has run long enough."""
    stable_in_s = settings.stable_after_s - (snapshot.now - instance.phase_since).total_seconds()
    if stable_in_s > 0:
        effects.requeue(stable_in_s)
        return
    message = "runs stably again; earlier failures are forgotten"
    effects.events.append(NewEvent("stable", message, (f"instance:{instance.id}",)))
    effects.forget_failures.append(instance.id)


def _reason(process: ReportedProcess) -> str:
    """The reason code. Of an end that nothing requested it is the cause that the last lines of output show."""
    reason, message = process.reason or "exit", plain(process.message)
    if reason == "spawn_failed":
        return cause_of_failed_start(message) or reason
    cause = cause_of(message, process.exit_code)
    return cause.value if reason == "exit" or (reason == "gone" and cause is Cause.OOM_KILLED) else reason


def _is_vain(instance: InstanceState, reason: str) -> bool:
    """Whether another start would end alike: the engine refused its arguments, for the second time in a row."""
    return reason == Cause.ENGINE_USAGE and instance.phase is P.STARTING and instance.failures > 0


def _exit_text(process: ReportedProcess, *, serves: bool) -> str:
    code = process.exit_code
    text = _EXIT_TEXTS.get(process.reason or "exit")
    if text is None:
        exited = "exited, exit code unknown" if code is None else f"exited with code {code}"
        exited = "ended unexpectedly, with exit code 0" if code == 0 and serves else exited
        text = f"was killed by signal {-code}" if code is not None and code < 0 else exited
    return f"{text}: {process.message}" if process.message else text
