"""An instance of several ranks runs and ends as one: it keeps its claims until all ranks have ended."""

import math
from dataclasses import replace
from typing import Final

from controller.decide.instances.liveness import any_may_run, may_run, never_ran
from controller.decide.instances.stop import order_stop
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import CommandState, DeploymentSnapshot, InstanceState, ReportedProcess
from controller.domain.phases import InstancePhase
from controller.domain.restart_delays import ORDERLY

_ON_COMMAND: Final = "stopped"  # the exit reason of a process that was stopped by command
_PROGRESS: Final = ("starting", "stopping", "unhealthy", "running")  # states of live processes, least progress first


def stop_remaining_ranks(snapshot: DeploymentSnapshot, instance: InstanceState, effects: DeploymentEffects) -> bool:
    """Stops the remaining ranks once some have ended, or waits for them while all ended well.

    Returns:
        Whether some ranks have ended and others may still run.
    """
    alive = [rank for rank in instance.ranks if may_run(snapshot, instance, rank)]
    if not alive or len(alive) == len(instance.ranks):
        return False
    if _ended_well(snapshot, instance, alive):
        return True
    for rank in alive:
        if effects.withdraw(instance, rank):
            effects.requeue(0.0)
        else:
            order_stop(snapshot, instance, rank, effects, "rank_ended")
    return True


def has_lost_ranks(instance: InstanceState) -> bool:
    """Whether ranks with a start command hold no claims any more: their workers were lost or they were released."""
    ranks = instance.ranks
    return any(c.verb == "start" and c.epoch == instance.epoch and c.rank not in ranks for c in instance.commands)


def has_started(instance: InstanceState) -> bool:
    """Whether any of its ranks may have done some of its work."""
    return has_lost_ranks(instance) or any(not never_ran(instance, rank) for rank in instance.ranks)


def released_ranks_ended_well(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether all ranks that hold no claims any more had done their part of a task, so that the others continue."""
    if snapshot.revisions[instance.revision].spec.restart == "always":
        return False
    started = {c.rank for c in instance.commands if c.verb == "start" and c.epoch == instance.epoch}
    released = [instance.process(rank) for rank in started - set(instance.ranks)]
    return all(_is_done(process) for process in released)


def leading_process(instance: InstanceState) -> ReportedProcess | None:
    """The process that represents the instance: the first that failed by itself, else the one with least progress.

    Ranks that fail later fail because of the first, whatever their numbers. Rank 0 serves the requests, but only once
    the other ranks work with it. A rank without a report is about to start.
    """
    processes = [p for rank in instance.ranks if (p := instance.process(rank)) is not None]
    ended = [p for p in processes if p.state == "exited"]
    if ended:
        by_itself = [p for p in ended if p.reason != _ON_COMMAND]
        orderly = [p for p in by_itself if p.reason == ORDERLY]  # the other ranks failed because it had stopped
        failed = [p for p in by_itself if p.exit_code != 0]
        return min(orderly or failed or by_itself or ended, key=_end_order)
    if not processes:
        return instance.process()
    least = min(processes, key=lambda p: _PROGRESS.index(p.state))
    return least if len(processes) == len(instance.ranks) else replace(least, state="starting")


def collateral_ranks(instance: InstanceState, cause: ReportedProcess) -> list[int] | None:
    """The ranks that failed by themselves after the process that represents the gang; None if it has one rank."""
    if len(instance.ranks) <= 1:
        return None
    others = (p for rank in instance.ranks if (p := instance.process(rank)) is not None and p.rank != cause.rank)
    return [p.rank for p in others if p.state == "exited" and p.reason != _ON_COMMAND and p.exit_code != 0]


def refused_start(instance: InstanceState) -> CommandState | None:
    """A start command that its agent refused, so that the rank has no process."""
    for rank in instance.ranks:
        start = instance.command("start", rank)
        if start is not None and start.state == "refused" and instance.process(rank) is None:
            return start
    return None


def is_finished(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether it is a task that has ended by itself and must not run again elsewhere."""
    if instance.phase in (InstancePhase.SUCCEEDED, InstancePhase.FAILED):
        return True
    restart, process = snapshot.revisions[instance.revision].spec.restart, leading_process(instance)
    if restart == "always" or process is None or process.state != "exited":
        return False
    if process.reason not in (None, "exit"):
        return is_done_at_stop(snapshot, instance)
    return not any_may_run(snapshot, instance) and (process.exit_code == 0 or restart == "never")


def _end_order(process: ReportedProcess) -> tuple[float, int]:
    """By the time of the end, then by rank. A process without a time comes last."""
    return (math.inf if process.ended_at is None else process.ended_at.timestamp(), process.rank)


def is_task(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    spec = snapshot.revisions[instance.revision].spec
    return spec.restart != "always" and not spec.takes_requests


def is_done_at_stop(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether it is a task whose work was done within its time to stop: all of its ranks ended with code 0."""
    # Of a server such a code only means that it has obeyed the stop.
    return instance.ended_with_zero and is_task(snapshot, instance)


def _ended_well(snapshot: DeploymentSnapshot, instance: InstanceState, alive: list[int]) -> bool:
    """Whether all ended ranks of a task exited with code 0: the ranks of a task finish one after another."""
    ended = [instance.process(rank) for rank in instance.ranks if rank not in alive]
    task = snapshot.revisions[instance.revision].spec.restart != "always"
    return task and all(map(_is_done, ended))


def _is_done(process: ReportedProcess | None) -> bool:
    """Whether a rank of a task exited with code 0 by itself."""
    return process is not None and process.exit_code == 0 and process.reason == "exit"
