"""An instance of several ranks lives and ends as one: claims stay until all have ended, and one of them tells why."""

from dataclasses import replace
from typing import Final

from controller.decide.draft import Draft
from controller.decide.liveness import may_run
from controller.decide.stopping import order_stop
from controller.domain.instances import CommandFacts, DeploymentFacts, InstanceFacts, ProcessFacts

_TOLD_TO: Final = "stopped"
_FAR: Final = ("starting", "stopping", "unhealthy", "running")  # states of what lives, least far first


def ends_together(facts: DeploymentFacts, instance: InstanceFacts, draft: Draft) -> bool:
    """Whether some ranks have ended and others may still run; those are stopped, or awaited where all goes well."""
    alive = [rank for rank in instance.ranks if may_run(facts, instance, rank)]
    if not alive or len(alive) == len(instance.ranks):
        return False
    if _finishes(facts, instance, alive):
        return True
    for rank in alive:
        if draft.withdraw(instance, rank):
            draft.again(0.0)
        else:
            order_stop(facts, instance, rank, draft, "rank_ended")
    return True


def has_lost_ranks(instance: InstanceFacts) -> bool:
    """Whether ranks that were to start hold no claims any more: a worker was lost, and the others were let go."""
    ranks = instance.ranks
    return any(c.verb == "start" and c.epoch == instance.epoch and c.rank not in ranks for c in instance.commands)


def telling(instance: InstanceFacts) -> ProcessFacts | None:
    """The process that stands for the instance: the one that ended by itself, else the one that is least far.

    Requests go to rank 0, but it can answer none before the others work with it. A rank of which no agent has spoken
    yet is about to start.
    """
    processes = [p for rank in instance.ranks if (p := instance.process(rank)) is not None]
    ended = [p for p in processes if p.state == "exited"]
    if ended:
        own = [p for p in ended if p.reason != _TOLD_TO]
        failed = [p for p in own if p.exit_code != 0]
        return next(iter(failed or own or ended))
    if not processes:
        return instance.process()
    least = min(processes, key=lambda p: _FAR.index(p.state))
    return least if len(processes) == len(instance.ranks) else replace(least, state="starting")


def refusal(instance: InstanceFacts) -> CommandFacts | None:
    """A start that its agent refused, so that there is no process of that rank."""
    for rank in instance.ranks:
        start = instance.command("start", rank)
        if start is not None and start.state == "refused" and instance.process(rank) is None:
            return start
    return None


def _finishes(facts: DeploymentFacts, instance: InstanceFacts, alive: list[int]) -> bool:
    """Whether the ranks of a task have ended well so far: ranks finish one after another."""
    over = [instance.process(rank) for rank in instance.ranks if rank not in alive]
    task = facts.revisions[instance.revision].spec.restart != "always"
    return task and all(p is not None and p.exit_code == 0 and p.reason == "exit" for p in over)
