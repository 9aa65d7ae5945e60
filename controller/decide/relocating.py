"""Moving an instance that runs: a copy comes up at the place that was chosen, and only then the old one goes. Pure.

Until then the copy is nobody's replica: it is not counted, and if anything goes wrong it is the copy that goes. A
relocation ends with the old one as well: then the copy is a replica like any other, and needed or surplus as those are.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from controller.decide.draft import Draft
from controller.domain.effects import Create, Fact, RelocationEnd
from controller.domain.instances import DeploymentFacts, InstanceFacts, RelocationFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
_PLACED_WITHIN: Final = timedelta(seconds=60)  # its room was free when it was chosen; who finds it taken does not wait
_MAY_GO: Final = frozenset({P.RUNNING, P.UNHEALTHY})
_WAITS: Final = frozenset({P.PENDING, P.ANALYZING})
_COMES_UP: Final = frozenset({P.SCHEDULED, P.STARTING})  # the agent ends what makes no progress


class _State(Enum):
    TO_BEGIN = "to_begin"
    UNDER_WAY = "under_way"
    MOVED = "moved"
    ABANDONED = "abandoned"  # the old one stays
    OVERTAKEN = "overtaken"  # the old one has left its place by itself


@dataclass(frozen=True, slots=True)
class _Verdict:
    state: _State
    why: str = ""


def is_on_trial(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it is a copy that does not count as a replica yet."""
    return any(r.copy == instance.id and _judge(facts, r).state is _State.UNDER_WAY for r in facts.relocations)


def why_relocated(facts: DeploymentFacts, instance: InstanceFacts) -> tuple[str, str] | None:
    """Why it goes: as the old one since its copy runs, or as a copy that came to nothing. Reason and message."""
    for relocation in facts.relocations:
        verdict = _judge(facts, relocation)
        if verdict.state is _State.MOVED and relocation.instance == instance.id:
            return "relocated", f"{relocation.copy} has taken its place, so that there is room here"
        if verdict.state is _State.ABANDONED and relocation.copy == instance.id:
            return "relocation_abandoned", verdict.why
    return None


def relocate(facts: DeploymentFacts, draft: Draft) -> None:
    """Begins and ends relocations; who goes is let go with everybody else."""
    for relocation in facts.relocations:
        verdict = _judge(facts, relocation)
        objects = tuple(f"instance:{id_}" for id_ in (relocation.instance, relocation.copy) if id_)
        if verdict.state is _State.TO_BEGIN:
            draft.creates.append(Create(facts.revision, relocation=relocation.id))
            message = f"{relocation.instance} is moved to {relocation.to}: a copy comes up there first"
            draft.facts.append(Fact("relocating", message, objects, {"to": relocation.to}))
        elif verdict.state is _State.UNDER_WAY:
            # The step after one that moved the copy on may end it; nobody else would hint at that.
            moves_on = any(move.instance == relocation.copy for move in draft.moves)
            draft.again(0.0 if moves_on else (_PLACED_WITHIN / 2).total_seconds())
        else:
            moved = verdict.state is _State.MOVED
            message = f"{relocation.instance} was moved: {relocation.copy} runs" if moved else verdict.why
            draft.relocated.append(RelocationEnd(relocation.id, "moved" if moved else "abandoned", message))
            reason = "relocated" if moved else "relocation_abandoned"
            draft.facts.append(Fact(reason, message, objects, {"to": relocation.to}))


def _judge(facts: DeploymentFacts, relocation: RelocationFacts) -> _Verdict:
    old = next((i for i in facts.instances if i.id == relocation.instance), None)
    copy = next((i for i in facts.instances if i.id == relocation.copy), None)
    if old is None or old.phase not in _MAY_GO or old.epoch != relocation.epoch:
        return _Verdict(_State.OVERTAKEN, f"{relocation.instance} no longer runs as it did when its move was planned")
    if facts.deleted_at is not None or old.revision != facts.revision or not facts.spec.movable:
        return _Verdict(_State.ABANDONED, f"{relocation.instance} stays: its deployment was changed")
    if copy is None:
        stays = f"{relocation.instance} stays: its copy is gone"
        return _Verdict(_State.ABANDONED, stays) if relocation.copy else _Verdict(_State.TO_BEGIN)
    if copy.phase is P.RUNNING:
        return _Verdict(_State.MOVED)
    waits = copy.phase in _WAITS and facts.now - copy.created_at < _PLACED_WITHIN
    if waits or copy.phase in _COMES_UP:
        return _Verdict(_State.UNDER_WAY)
    why = f"{relocation.instance} stays: its copy is {copy.phase.value}"
    return _Verdict(_State.ABANDONED, f"{why} ({copy.message or copy.reason})" if copy.message or copy.reason else why)
