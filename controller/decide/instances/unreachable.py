"""The step of an instance while its worker is silent, when the worker returns, and when it is lost.

`replicas.py` decides on the instance that replaces it.
"""

from controller.decide.instances.crash_loop import after_exit, delay_left_s, requeue_for_placement
from controller.decide.instances.gang import (
    has_lost_ranks,
    has_started,
    leading_process,
    refused_start,
    released_ranks_ended_well,
    stop_remaining_ranks,
)
from controller.decide.instances.liveness import (
    any_may_run,
    host_is_dead,
    hosts,
    is_given_up,
    is_lost,
    is_silent,
    may_run,
)
from controller.decide.instances.replicas import may_be_substituted
from controller.decide.instances.stop import order_stop, stop, stop_reachable_ranks
from controller.domain.effects import DeploymentEffects, Progress
from controller.domain.instances import DeploymentSnapshot, InstanceState
from controller.domain.phases import PHASE_OF_STATE, InstancePhase
from controller.domain.restart_delays import RestartSettings
from schemas.placement_reasons import Reason

P = InstancePhase
_BACK = "its worker is back"
TASK_MAY_RUN = "task_may_run"


def leave_silent_worker(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> bool:
    """Makes a live instance on a silent worker unreachable, or pending where no process of it can run.

    Returns:
        False if its end is already known; it is then handled as on any other worker.
    """
    if instance.phase is P.BACKOFF and not any_may_run(snapshot, instance):
        # Its delay continues, or an agent that falls silent after each end would evade it.
        left = delay_left_s(snapshot, instance, settings) > 0
        not_before = instance.not_before if left else None
        requeue_for_placement(instance, effects, "worker_unreachable", not_before)
        return True
    if has_known_end(snapshot, instance):
        return False
    host = snapshot.hosts.get(instance.host_of(0) or "")
    name = host.name if host is not None else None
    effects.change_phase(instance, P.UNREACHABLE, "worker_unreachable", f"worker {name} is silent")
    return True


def has_known_end(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether its exit or its refused start was reported, so that the silence of its worker does not matter."""
    process = leading_process(instance)
    # An agent that shuts down refuses starts and falls silent. An instance on a lost worker is substituted instead.
    if process is None:
        known = refused_start(instance) is not None and not is_lost(snapshot, instance)
    else:
        known = process.state == "exited"
    return known and not any_may_run(snapshot, instance)


def await_return(
    snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects, settings: RestartSettings
) -> None:
    """The step of an unreachable instance: to the phase that the returned agent reports, or to `replaced`."""
    gang = len(instance.ranks) > 1 or has_lost_ranks(instance)
    if gang and is_lost(snapshot, instance) and _is_open(snapshot, instance):  # the other ranks hang, and hold GPUs
        stop_reachable_ranks(snapshot, instance, effects)
        _await_substitute(snapshot, instance, effects)
        return
    if has_lost_ranks(instance) and not released_ranks_ended_well(snapshot, instance):
        _end_incomplete_gang(snapshot, instance, effects)
        return
    if stop_remaining_ranks(snapshot, instance, effects):
        return
    if is_silent(snapshot, instance) and not has_known_end(snapshot, instance):
        _await_substitute(snapshot, instance, effects)
        return
    process = leading_process(instance)
    if process is None:
        start = instance.command("start")
        if start is not None and start.state == "refused":
            effects.change_phase(instance, P.SCHEDULED)
            effects.requeue(0.0)
        else:  # the start command is still on its way
            effects.change_phase(instance, P.SCHEDULED, "", _BACK)
    elif process.state == "exited":
        after_exit(snapshot, instance, process, effects, settings)
    else:
        effects.change_phase(instance, PHASE_OF_STATE.get(process.state, P.RUNNING), "", _BACK)


def _is_open(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether it is unknown how a rank on a lost worker ends. A task whose ends are all known has its result."""
    if snapshot.revisions[instance.revision].spec.restart == "always":
        return True
    ends = [instance.process(r) for r in instance.ranks if is_given_up(snapshot.hosts.get(instance.host_of(r) or ""))]
    return any(process is None or process.state != "exited" for process in ends)


def _end_incomplete_gang(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    """Ends what is left of a gang whose other ranks were stopped while its worker was lost.

    A task with `restart: never` has failed then: another instance would do its work a second time.
    """
    message = "one of its workers was lost, so its other ranks were stopped"
    if snapshot.revisions[instance.revision].spec.restart != "never":
        stop(snapshot, instance, effects, "rank_lost", message)
        effects.requeue(0.0)  # the next step creates a successor
        return
    alive = [rank for rank in instance.ranks if may_run(snapshot, instance, rank)]
    for rank in alive:
        if effects.withdraw(instance, rank):
            effects.requeue(0.0)
        else:
            order_stop(snapshot, instance, rank, effects, "rank_lost")
    if not alive:
        effects.change_phase(instance, P.FAILED, "rank_lost", f"{message}; with restart: never it does not run again")
        effects.release(instance)


def end_replaced(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    """Stops a replaced instance once its worker is back, or no process of it can run."""
    if not is_silent(snapshot, instance) or not any_may_run(snapshot, instance):
        stop(snapshot, instance, effects, "replaced", "its substitute runs elsewhere")
    elif len(instance.ranks) > 1:
        stop_reachable_ranks(snapshot, instance, effects)


def _await_substitute(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    substitute = snapshot.substitutes.get(instance.id)
    if substitute is not None and substitute.claims:
        effects.change_phase(instance, P.REPLACED, "replaced", f"{substitute.id} runs in its place")
        return
    fences = [host.fence_until for host in hosts(snapshot, instance) if host.fence_until is not None]
    if not any_may_run(snapshot, instance):
        spec = snapshot.revisions[instance.revision].spec
        if spec.restart == "never" and has_started(instance):
            message = "its worker is lost; with restart: never it does not run again"
            effects.change_phase(instance, P.FAILED, "worker_lost", message)
            effects.release(instance)
        else:
            message = "its worker is lost and none of its processes can still run"
            stop(snapshot, instance, effects, Reason.NOT_READY, message)
            effects.requeue(0.0)  # where it has no substitute, the next step creates a successor
        return
    if fences:
        effects.requeue(max((min(fences) - snapshot.now).total_seconds(), 0.05))
    if is_lost(snapshot, instance) and not may_be_substituted(snapshot, instance):
        _record_remedy(snapshot, instance, effects)


def _record_remedy(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> None:
    """A task gets no substitute while it may still run. Its reason names the command that proves that it does not."""
    lost = [host for host in hosts(snapshot, instance) if host.phase == "lost" and not host_is_dead(snapshot, host.id)]
    if not lost:
        return
    name, fence = lost[0].name, lost[0].fence_until
    again = "ends" if snapshot.revisions[instance.revision].spec.restart == "never" else "starts elsewhere"
    by_itself = f" at {fence:%H:%M:%S} UTC, when its fence is over, or" if fence is not None else ""
    message = (
        f"worker {name} is lost and may still run it. Bring the worker back; if it is dead for certain, the task "
        f"{again}{by_itself} after: gpuward delete worker {name} --confirm-dead"
    )
    if (instance.reason, instance.message) != (TASK_MAY_RUN, message):
        effects.progress.append(Progress(instance.id, instance.epoch, TASK_MAY_RUN, message))
