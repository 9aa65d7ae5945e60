"""Running instances that are replaced: relocations, drains of workers, and restarts on a user's request.

A server that runs stays until its replacement runs: in a drain at most until its time is over, in a restart within
`surge` (or it stops within `unavailable`; with `update: recreate` one stops after another). In a drain, a task that
never restarts stays until it ends; only `drain_restarts_tasks` stops it once that time is over. An instance that does
not serve leaves or restarts at once. A restart is requested of one start, so the request ends with the next start.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from controller.decide.instances.gang import has_started
from controller.decide.instances.liveness import hosts
from controller.domain.effects import Create, DeploymentEffects, RelocationEnd, Replaced
from controller.domain.events import NewEvent
from controller.domain.instances import ClaimedWorker, DeploymentSnapshot, InstanceState, StoredRelocation
from controller.domain.phases import InstancePhase

P = InstancePhase
RESTARTED: Final = "restarted"
# Its place was free when it was chosen. If it is taken before, the relocation is abandoned instead of waiting.
_PLACED_WITHIN: Final = timedelta(seconds=60)
_RELOCATABLE: Final = frozenset({P.RUNNING, P.UNHEALTHY})
_UNPLACED: Final = frozenset({P.PENDING, P.ANALYZING})
_REASONS: Final = {"plan": "relocated", "drain": "drained", "restart": RESTARTED}
_GIVEN_UP: Final = frozenset({P.STOPPING, P.UNREACHABLE, P.REPLACED})  # a replacement that frees the way for another
_STARTING: Final = frozenset({P.SCHEDULED, P.STARTING})  # the agent kills a process that makes no progress
_SERVES: Final = frozenset({P.RUNNING, P.UNHEALTHY})
_WORKS: Final = frozenset({P.SCHEDULED, P.STARTING, P.RUNNING, P.UNHEALTHY, P.UNREACHABLE})
_MOST_STARTED: Final = 2_000  # in one step, so that it stays short; the next step continues
MESSAGE: Final = "its user restarts it"
_ENDED: Final = frozenset({P.SUCCEEDED, P.FAILED})
_AT_ONCE: Final = _ENDED | {P.SCHEDULED, P.STARTING, P.UNHEALTHY}
_CHECK_AGAIN_S: Final = 30.0


class RelocationState(Enum):
    """How far a relocation is."""

    NOT_STARTED = "not_started"
    UNDER_WAY = "under_way"
    DONE = "done"
    ABANDONED = "abandoned"  # the old instance stays
    OVERTAKEN = "overtaken"  # the old instance has left by itself


@dataclass(frozen=True, slots=True)
class Relocation:
    """A relocation with its state."""

    stored: StoredRelocation
    state: RelocationState
    why: str = ""  # it ended without success

    @property
    def waits_for(self) -> str | None:
        """The replacement that is not counted as a replica yet."""
        return self.stored.replacement if self.state is RelocationState.UNDER_WAY else None

    @property
    def evicts(self) -> dict[str, tuple[str, str]]:
        """The instance that it ends, and why: the old one once its replacement runs, or a replacement that failed."""
        if self.state is RelocationState.DONE:
            why = f"{self.stored.replacement} runs in its place; its capacity here is freed"
            return {self.stored.instance: (_REASONS[self.stored.purpose], why)}
        if self.state is RelocationState.ABANDONED:
            return {self.stored.replacement: ("relocation_abandoned", self.why)}
        return {}


def judge_relocations(snapshot: DeploymentSnapshot, evicted: Collection[str]) -> tuple[Relocation, ...]:
    """The state of each relocation. `evicted`: instances that leave for another reason."""
    return tuple(_judge(snapshot, relocation, evicted) for relocation in snapshot.relocations)


def relocate(snapshot: DeploymentSnapshot, relocations: tuple[Relocation, ...], effects: DeploymentEffects) -> None:
    """Starts and ends relocations. The instances that they end are stopped by the eviction step."""
    changed = {change.instance for change in effects.phase_changes}
    for relocation in relocations:
        order = relocation.stored
        objects = tuple(f"instance:{id_}" for id_ in (order.instance, order.replacement) if id_)
        if relocation.state is RelocationState.NOT_STARTED:
            effects.creates.append(Create(snapshot.revision, relocation=order.id))
            message = f"{order.instance} is relocated to {order.to}: a replacement starts there first"
            effects.events.append(NewEvent("relocating", message, objects, {"to": order.to}))
        elif relocation.state is RelocationState.UNDER_WAY:
            # The step after a phase change of the replacement may end the relocation, and no hint triggers that step.
            effects.requeue(0.0 if order.replacement in changed else _next_check_s(snapshot, order))
        else:
            done = relocation.state is RelocationState.DONE
            message = f"{order.instance} was relocated: {order.replacement} runs" if done else relocation.why
            effects.relocation_ends.append(RelocationEnd(order.id, "moved" if done else "abandoned", message))
            reason = "relocated" if done else "relocation_abandoned"
            effects.events.append(NewEvent(reason, message, objects, {"to": order.to}))
            if order.purpose != "plan" and not done:
                effects.requeue(0.0)  # the next step starts another replacement if it is due


def _judge(snapshot: DeploymentSnapshot, relocation: StoredRelocation, evicted: Collection[str]) -> Relocation:
    old = snapshot.by_id.get(relocation.instance)
    replacement = snapshot.by_id.get(relocation.replacement)
    if old is None or old.phase not in _RELOCATABLE or old.epoch != relocation.epoch or old.id in evicted:
        why = f"{relocation.instance} no longer runs as it did when its relocation was planned"
        return Relocation(relocation, RelocationState.OVERTAKEN, why)
    judge = _judge_planned if relocation.purpose == "plan" else _judge_unplanned
    return judge(snapshot, relocation, old, replacement)


def _judge_planned(
    snapshot: DeploymentSnapshot, relocation: StoredRelocation, old: InstanceState, replacement: InstanceState | None
) -> Relocation:
    stays = f"{relocation.instance} stays"
    if snapshot.deleted_at is not None or old.revision != snapshot.revision or not snapshot.spec.movable:
        return Relocation(relocation, RelocationState.ABANDONED, f"{stays}: its deployment was changed")
    if not relocation.replacement:
        return Relocation(relocation, RelocationState.NOT_STARTED)
    if replacement is None:
        return Relocation(relocation, RelocationState.ABANDONED, f"{stays}: its replacement is gone")
    waiting = replacement.phase in _UNPLACED and snapshot.now - replacement.created_at < _PLACED_WITHIN
    if waiting or replacement.phase in _STARTING or replacement.phase is P.RUNNING:
        done = replacement.phase is P.RUNNING
        return Relocation(relocation, RelocationState.DONE if done else RelocationState.UNDER_WAY)
    cause = replacement.message or replacement.reason
    why = f"{stays}: its replacement is {replacement.phase.value}" + (f" ({cause})" if cause else "")
    return Relocation(relocation, RelocationState.ABANDONED, why)


def _judge_unplanned(
    snapshot: DeploymentSnapshot, relocation: StoredRelocation, old: InstanceState, replacement: InstanceState | None
) -> Relocation:
    """The replacement is tried again while its drain or restart lasts, unless it has lost its place."""
    stays, why = f"{relocation.instance} stays", ""
    if relocation.purpose == "drain" and not off_worker(snapshot, old):
        why = f"{stays}: its worker is no longer drained"
    elif not keeps_revision(snapshot, old.revision):
        why = f"{stays}: its deployment was changed"
    elif replacement is None:
        why = f"{stays}: its replacement is gone"
    elif replacement.phase in _GIVEN_UP:
        why = f"{stays}: its replacement is {replacement.phase.value}"
    if why:
        return Relocation(relocation, RelocationState.ABANDONED, why)
    done = replacement is not None and _runs_long_enough(snapshot, relocation, replacement)
    return Relocation(relocation, RelocationState.DONE if done else RelocationState.UNDER_WAY)


def _runs_long_enough(snapshot: DeploymentSnapshot, relocation: StoredRelocation, replacement: InstanceState) -> bool:
    """Whether the old instance may stop. A drain must not wait; a restart replaces as a rollout does."""
    return replacement.phase is P.RUNNING and (
        relocation.purpose == "drain" or left_until_ready_s(snapshot, replacement) <= 0
    )


def _next_check_s(snapshot: DeploymentSnapshot, relocation: StoredRelocation) -> float:
    """Seconds until time alone may end it."""
    replacement = snapshot.by_id.get(relocation.replacement)
    if relocation.purpose == "drain":
        return until_drained_s(snapshot, relocation.instance)
    if replacement is not None and replacement.phase is P.RUNNING:  # of a restart: a planned relocation is done then
        return left_until_ready_s(snapshot, replacement)
    return (_PLACED_WITHIN / 2).total_seconds()


def drained_now(snapshot: DeploymentSnapshot, instance: InstanceState) -> str | None:
    """The message of a drain that stops it now; None if no worker of it is drained, or it stays for now."""
    drained = off_worker(snapshot, instance)
    if not drained or stays(snapshot, instance, drained):
        return None
    if snapshot.revisions[instance.revision].spec.restart == "never":
        return "its worker is being drained; it is started again elsewhere, from its beginning"
    return "its worker is being drained"


def stays(snapshot: DeploymentSnapshot, instance: InstanceState, drained: Sequence[ClaimedWorker]) -> bool:
    """Whether it stays on its drained workers for now."""
    if any(host.drain_until is None for host in drained):
        return False
    due = [host for host in drained if host.drain_until is not None and host.drain_until <= snapshot.now]
    restart = snapshot.revisions[instance.revision].spec.restart
    if restart == "never":
        # The drain must not restart an ended task: it would run a second time.
        return instance.phase in _WORKS and has_started(instance) and not any(host.drain_restarts_tasks for host in due)
    return restart == "always" and instance.phase in _SERVES and not due


def starts_elsewhere(snapshot: DeploymentSnapshot, instance: InstanceState) -> bool:
    """Whether the drain makes it start on another worker, now or once the drain's time is over."""
    drained = off_worker(snapshot, instance)
    task = snapshot.revisions[instance.revision].spec.restart == "never"
    return not task or drained_now(snapshot, instance) is not None or any(host.drain_restarts_tasks for host in drained)


def off_worker(snapshot: DeploymentSnapshot, instance: InstanceState) -> list[ClaimedWorker]:
    """The workers of its ranks that are drained."""
    return [host for host in hosts(snapshot, instance) if host.draining]


def until_drained_s(snapshot: DeploymentSnapshot, instance_id: str) -> float:
    """Seconds until the drain of the first of its workers is due."""
    instance = snapshot.by_id.get(instance_id)
    drained = off_worker(snapshot, instance) if instance is not None else []
    left = [(host.drain_until - snapshot.now).total_seconds() for host in drained if host.drain_until is not None]
    return max(min(left, default=0.0), 0.0)


def keeps_revision(snapshot: DeploymentSnapshot, revision: int) -> bool:
    """Whether new replicas may be of this revision: the newest, or that to which a failed rollout has gone back."""
    record = snapshot.rollout.record if snapshot.rollout is not None else None
    return revision == snapshot.revision or (record is not None and record.holds and record.stable == revision)


def start_replacements(
    snapshot: DeploymentSnapshot, staying: Sequence[InstanceState], effects: DeploymentEffects
) -> None:
    """Creates the replacements of servers that stay while their worker is drained.

    `staying`: replicas that this step does not stop.
    """
    relocated = {relocation.instance for relocation in snapshot.relocations}
    replacements = {relocation.replacement for relocation in snapshot.relocations}
    started = 0
    for instance in staying:
        if instance.phase not in _WORKS or not (drained := off_worker(snapshot, instance)):
            continue
        if (left_s := until_drained_s(snapshot, instance.id)) > 0:
            effects.requeue(left_s)
        serves = instance.phase in _SERVES and snapshot.revisions[instance.revision].spec.restart == "always"
        if not serves or instance.id in relocated | replacements or not keeps_revision(snapshot, instance.revision):
            continue
        if started == _MOST_STARTED:
            effects.requeue(0.0)
            return
        started += 1
        effects.creates.append(Create(instance.revision, replaced=Replaced(instance.id, instance.epoch, "drain")))
        names = ", ".join(dict.fromkeys(host.name for host in drained))
        message = f"{instance.id} leaves {names}, which is drained: a replacement starts first"
        effects.events.append(NewEvent("relocating", message, (f"instance:{instance.id}",), {"from": names}))


def restarts_now(snapshot: DeploymentSnapshot, staying: Sequence[InstanceState], wanted: int) -> list[InstanceState]:
    """The instances that stop now for their restart.

    `staying`: replicas that no other sub-step stops, without replacements under way.
    """
    restarting = _restarting(snapshot, staying)
    chosen = [i for i in restarting if i.phase in _AT_ONCE]
    running = [i for i in restarting if i.phase is P.RUNNING]
    tasks = [i for i in running if snapshot.revisions[i.revision].spec.restart != "always"]
    servers = [i for i in running if snapshot.revisions[i.revision].spec.restart == "always"]
    replaced = {relocation.instance for relocation in snapshot.relocations}
    ready = sum(i.phase is P.RUNNING and left_until_ready_s(snapshot, i) <= 0 for i in staying)
    # An instance that was pending at the request does not serve, so it must not delay the restart of others.
    absent = sum(i.phase in _UNPLACED for i in restarting)
    least = wanted - absent - bounds(snapshot)[1]
    number = max(ready - least, 0)
    return [*chosen, *tasks, *[i for i in _oldest_first(servers) if i.id not in replaced][:number]]


def start_restarting(
    snapshot: DeploymentSnapshot,
    staying: Sequence[InstanceState],
    leaving: int,
    wanted: int,
    effects: DeploymentEffects,
) -> None:
    """Creates the replacements of servers that restart, within the surge, and ends delays of placement.

    `staying`: replicas that this step does not stop. `leaving`: number of instances that stop for a restart or a
    rollout, and still hold their place.
    """
    restarting = _restarting(snapshot, staying)
    if not restarting:
        return
    effects.requeue(0.0 if effects.phase_changes or effects.removals else _CHECK_AGAIN_S)
    if any(i.phase in _UNPLACED and i.not_before is not None and i.not_before > snapshot.now for i in restarting):
        effects.wake_placement = True
    replaced = {relocation.instance for relocation in snapshot.relocations}
    open_now = sum(relocation.purpose == "restart" for relocation in snapshot.relocations)
    created = sum(create.replaced is None for create in effects.creates)
    surge, unavailable = bounds(snapshot)
    # Where replicas may be missing, successors use the surge themselves: they need not await the end of the stopping.
    room = wanted + surge - len(staying) - created - open_now - leaving if not unavailable else 0
    servers = [
        i for i in restarting
        if i.phase is P.RUNNING and i.id not in replaced and snapshot.revisions[i.revision].spec.restart == "always"
    ]  # fmt: skip
    for instance in _oldest_first(servers)[: max(room, 0)]:
        effects.creates.append(Create(instance.revision, replaced=Replaced(instance.id, instance.epoch, "restart")))
        message = f"{instance.id} is restarted by its user: a replacement starts first"
        effects.events.append(NewEvent("relocating", message, (f"instance:{instance.id}",)))


def bounds(snapshot: DeploymentSnapshot) -> tuple[int, int]:
    """Number of instances that may exist beyond the wanted number, and number that may be missing from it."""
    rollout = snapshot.spec.rollout
    return (rollout.surge, rollout.unavailable) if snapshot.spec.update == "rolling" else (0, 1)


def left_until_ready_s(snapshot: DeploymentSnapshot, instance: InstanceState) -> float:
    """Seconds until a running instance counts as ready."""
    ready_for_s = snapshot.spec.rollout.ready_for if snapshot.spec.update == "rolling" else 0.0
    return ready_for_s - max((snapshot.now - instance.phase_since).total_seconds(), 0.0)


def _restarting(snapshot: DeploymentSnapshot, staying: Sequence[InstanceState]) -> list[InstanceState]:
    """The instances that restart. Outdated instances are replaced by their rollout."""
    return [i for i in staying if i.restarts_now and keeps_revision(snapshot, i.revision)]


def _oldest_first(instances: Collection[InstanceState]) -> list[InstanceState]:
    return sorted(instances, key=lambda i: (i.created_at, i.id))
