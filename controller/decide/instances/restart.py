"""Restarting on a user's request: each instance ends and starts again, with the same revision.

What serves stops within `unavailable`, or once its replacement runs, within `surge`; with `update: recreate` one stops
after another. What serves nothing stops at once, what has ended is created again, and what waits out a delay
is tried now. The request is of one start, so it ends with the next one.
"""

from collections.abc import Collection, Sequence
from typing import Final

from controller.decide.instances.drain import keeps_revision
from controller.domain.effects import Create, DeploymentEffects, Replaced
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
RESTARTED: Final = "restarted"
MESSAGE: Final = "its user restarts it"
_ENDED: Final = frozenset({P.SUCCEEDED, P.FAILED})
_AT_ONCE: Final = _ENDED | {P.SCHEDULED, P.STARTING, P.UNHEALTHY}
_UNPLACED: Final = frozenset({P.PENDING, P.ANALYZING})
_CHECK_AGAIN_S: Final = 30.0


def restarts_now(facts: DeploymentFacts, staying: Sequence[InstanceFacts], wanted: int) -> list[InstanceFacts]:
    """The instances that stop now for their restart.

    Args:
        facts: the deployment.
        staying: its replicas that nothing else stops, without replacements under way.
        wanted: number of wanted replicas.
    """
    asked = _asked(facts, staying) if wanted else []
    chosen = [i for i in asked if i.phase in _AT_ONCE]
    running = [i for i in asked if i.phase is P.RUNNING]
    tasks = [i for i in running if facts.revisions[i.revision].spec.restart != "always"]
    servers = [i for i in running if facts.revisions[i.revision].spec.restart == "always"]
    replaced = {relocation.instance for relocation in facts.relocations}
    ready = sum(i.phase is P.RUNNING and left_until_ready_s(facts, i) <= 0 for i in staying)
    # What was pending at the request already serves nothing, and keeps nothing from its restart.
    absent = sum(i.phase in _UNPLACED for i in asked)
    least = wanted - absent - bounds(facts)[1]
    number = max(ready - least, 0)
    return [*chosen, *tasks, *[i for i in _oldest_first(servers) if i.id not in replaced][:number]]


def start_restarting(
    facts: DeploymentFacts,
    staying: Sequence[InstanceFacts],
    stopping: Sequence[InstanceFacts],
    wanted: int,
    effects: DeploymentEffects,
) -> None:
    """Creates the replacements of servers that restart, within the surge; tries what waits out a delay.

    Args:
        facts: the deployment.
        staying: its replicas that this step does not stop.
        stopping: its instances that stop already.
        wanted: number of wanted replicas.
        effects: what is added to.
    """
    asked = _asked(facts, staying)
    if not asked or not wanted:
        return
    effects.requeue(0.0 if effects.phase_changes or effects.removals else _CHECK_AGAIN_S)
    if any(i.phase in _UNPLACED and i.not_before is not None and i.not_before > facts.now for i in asked):
        effects.wake_placement = True
    replaced = {relocation.instance for relocation in facts.relocations}
    open_now = sum(relocation.purpose == "restart" for relocation in facts.relocations)
    leaving = {i.id for i in stopping if i.reason == RESTARTED}
    leaving |= {change.instance for change in effects.phase_changes if change.reason == RESTARTED}
    leaving -= {removal.instance for removal in effects.removals}
    created = sum(create.replaced is None for create in effects.creates)
    surge, unavailable = bounds(facts)
    # Where some may be missing, successors use the surge themselves: they need not await the end of those that stop.
    room = wanted + surge - len(staying) - created - open_now - len(leaving) if not unavailable else 0
    servers = [
        i for i in asked
        if i.phase is P.RUNNING and i.id not in replaced and facts.revisions[i.revision].spec.restart == "always"
    ]  # fmt: skip
    for instance in _oldest_first(servers)[: max(room, 0)]:
        effects.creates.append(Create(instance.revision, replaced=Replaced(instance.id, instance.epoch, "restart")))
        message = f"{instance.id} is restarted by its user: a replacement starts first"
        effects.events.append(NewEvent("relocating", message, (f"instance:{instance.id}",)))


def bounds(facts: DeploymentFacts) -> tuple[int, int]:
    """Instances beyond the wanted ones that may exist, and wanted ones that may be missing."""
    rollout = facts.spec.rollout
    return (rollout.surge, rollout.unavailable) if facts.spec.update == "rolling" else (0, 1)


def left_until_ready_s(facts: DeploymentFacts, instance: InstanceFacts) -> float:
    """Seconds until a running instance counts as ready."""
    ready_for_s = facts.spec.rollout.ready_for if facts.spec.update == "rolling" else 0.0
    return ready_for_s - max((facts.now - instance.phase_since).total_seconds(), 0.0)


def _asked(facts: DeploymentFacts, staying: Sequence[InstanceFacts]) -> list[InstanceFacts]:
    """Those that restart. An outdated one is its rollout's to replace."""
    return [i for i in staying if i.restarts_now and keeps_revision(facts, i.revision)]


def _oldest_first(instances: Collection[InstanceFacts]) -> list[InstanceFacts]:
    return sorted(instances, key=lambda i: (i.created_at, i.id))
