"""Relocating a running instance: a replacement starts at the chosen place first, and only then the old one stops.

Until it runs, the replacement is not counted as a replica, and if anything fails it is the replacement that stops. A
relocation also ends when the old instance leaves by itself. The replacement is then a replica like any other.

A drain relocates too (`drain.py`): its replacement waits for a place, and is tried again, as long as the drain waits.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from controller.decide.instances.drain import keeps_revision, off_worker, until_drained_s
from controller.decide.instances.restart import RESTARTED, left_until_ready_s
from controller.domain.effects import Create, DeploymentEffects, RelocationEnd
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts, RelocationFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
# Its place was free when it was chosen. If that is taken meanwhile, the relocation is abandoned instead of waiting.
_PLACED_WITHIN: Final = timedelta(seconds=60)
_RELOCATABLE: Final = frozenset({P.RUNNING, P.UNHEALTHY})
_UNPLACED: Final = frozenset({P.PENDING, P.ANALYZING})
_REASONS: Final = {"plan": "relocated", "drain": "drained", "restart": RESTARTED}
_GIVEN_UP: Final = frozenset({P.STOPPING, P.UNREACHABLE, P.REPLACED})  # a replacement that frees the way for another
_STARTING: Final = frozenset({P.SCHEDULED, P.STARTING})  # the agent kills a process that makes no progress


class RelocationState(Enum):
    """How far a relocation is."""

    NOT_BEGUN = "not_begun"
    UNDER_WAY = "under_way"
    DONE = "done"
    ABANDONED = "abandoned"  # the old instance stays
    OVERTAKEN = "overtaken"  # the old instance has left by itself


@dataclass(frozen=True, slots=True)
class Relocation:
    """A relocation with its state and, where it ended without success, the reason."""

    facts: RelocationFacts
    state: RelocationState
    why: str = ""

    @property
    def waits_for(self) -> str | None:
        """The replacement that is not counted as a replica yet."""
        return self.facts.replacement if self.state is RelocationState.UNDER_WAY else None

    @property
    def evicts(self) -> dict[str, tuple[str, str]]:
        """The instance that it ends, and why: the old one once its replacement runs, or a replacement that failed."""
        if self.state is RelocationState.DONE:
            why = f"{self.facts.replacement} runs in its place; its capacity here is freed"
            return {self.facts.instance: (_REASONS[self.facts.purpose], why)}
        if self.state is RelocationState.ABANDONED:
            return {self.facts.replacement: ("relocation_abandoned", self.why)}
        return {}


def judge_relocations(facts: DeploymentFacts, evicted: Collection[str]) -> tuple[Relocation, ...]:
    """The state of each of the deployment's relocations. `evicted`: instances that leave for another reason."""
    return tuple(_judge(facts, relocation, evicted) for relocation in facts.relocations)


def relocate(facts: DeploymentFacts, relocations: tuple[Relocation, ...], effects: DeploymentEffects) -> None:
    """Begins and ends relocations. The instances that they end are stopped by the eviction step."""
    changed = {change.instance for change in effects.phase_changes}
    for relocation in relocations:
        one = relocation.facts
        objects = tuple(f"instance:{id_}" for id_ in (one.instance, one.replacement) if id_)
        if relocation.state is RelocationState.NOT_BEGUN:
            effects.creates.append(Create(facts.revision, relocation=one.id))
            message = f"{one.instance} is relocated to {one.to}: a replacement starts there first"
            effects.events.append(NewEvent("relocating", message, objects, {"to": one.to}))
        elif relocation.state is RelocationState.UNDER_WAY:
            # The step after a phase change of the replacement may end the relocation, and nothing else wakes it.
            effects.requeue(0.0 if one.replacement in changed else _again_s(facts, one))
        else:
            done = relocation.state is RelocationState.DONE
            message = f"{one.instance} was relocated: {one.replacement} runs" if done else relocation.why
            effects.relocation_ends.append(RelocationEnd(one.id, "moved" if done else "abandoned", message))
            reason = "relocated" if done else "relocation_abandoned"
            effects.events.append(NewEvent(reason, message, objects, {"to": one.to}))
            if one.purpose != "plan" and not done:
                effects.requeue(0.0)  # the next step starts another replacement where one is due


def _judge(facts: DeploymentFacts, relocation: RelocationFacts, evicted: Collection[str]) -> Relocation:
    old = facts.by_id.get(relocation.instance)
    replacement = facts.by_id.get(relocation.replacement)
    if old is None or old.phase not in _RELOCATABLE or old.epoch != relocation.epoch or old.id in evicted:
        why = f"{relocation.instance} no longer runs as it did when its relocation was planned"
        return Relocation(relocation, RelocationState.OVERTAKEN, why)
    judge = _judge_planned if relocation.purpose == "plan" else _judge_unplanned
    return judge(facts, relocation, old, replacement)


def _judge_planned(
    facts: DeploymentFacts, relocation: RelocationFacts, old: InstanceFacts, replacement: InstanceFacts | None
) -> Relocation:
    stays = f"{relocation.instance} stays"
    if facts.deleted_at is not None or old.revision != facts.revision or not facts.spec.movable:
        return Relocation(relocation, RelocationState.ABANDONED, f"{stays}: its deployment was changed")
    if not relocation.replacement:
        return Relocation(relocation, RelocationState.NOT_BEGUN)
    if replacement is None:
        return Relocation(relocation, RelocationState.ABANDONED, f"{stays}: its replacement is gone")
    waiting = replacement.phase in _UNPLACED and facts.now - replacement.created_at < _PLACED_WITHIN
    if waiting or replacement.phase in _STARTING or replacement.phase is P.RUNNING:
        done = replacement.phase is P.RUNNING
        return Relocation(relocation, RelocationState.DONE if done else RelocationState.UNDER_WAY)
    cause = replacement.message or replacement.reason
    why = f"{stays}: its replacement is {replacement.phase.value}" + (f" ({cause})" if cause else "")
    return Relocation(relocation, RelocationState.ABANDONED, why)


def _judge_unplanned(
    facts: DeploymentFacts, relocation: RelocationFacts, old: InstanceFacts, replacement: InstanceFacts | None
) -> Relocation:
    """The replacement is tried again for as long as its drain or restart lasts. One that has lost its place is not."""
    stays, why = f"{relocation.instance} stays", ""
    if relocation.purpose == "drain" and not off_worker(facts, old):
        why = f"{stays}: its worker is no longer drained"
    elif not keeps_revision(facts, old.revision):
        why = f"{stays}: its deployment was changed"
    elif replacement is None:
        why = f"{stays}: its replacement is gone"
    elif replacement.phase in _GIVEN_UP:
        why = f"{stays}: its replacement is {replacement.phase.value}"
    if why:
        return Relocation(relocation, RelocationState.ABANDONED, why)
    done = replacement is not None and _runs_long_enough(facts, relocation, replacement)
    return Relocation(relocation, RelocationState.DONE if done else RelocationState.UNDER_WAY)


def _runs_long_enough(facts: DeploymentFacts, relocation: RelocationFacts, replacement: InstanceFacts) -> bool:
    """Whether the old one may stop. A drain must not wait; a restart replaces as a rollout does."""
    return replacement.phase is P.RUNNING and (
        relocation.purpose == "drain" or left_until_ready_s(facts, replacement) <= 0
    )


def _again_s(facts: DeploymentFacts, relocation: RelocationFacts) -> float:
    """Seconds until time alone may end it."""
    replacement = facts.by_id.get(relocation.replacement)
    if relocation.purpose == "drain":
        return until_drained_s(facts, relocation.instance)
    if relocation.purpose == "restart" and replacement is not None and replacement.phase is P.RUNNING:
        return left_until_ready_s(facts, replacement)
    return (_PLACED_WITHIN / 2).total_seconds()
