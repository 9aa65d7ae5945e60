"""The newest revision's need: storing the result of its analysis, and deciding whether the analysis must run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from controller.domain.effects import ANALYZING_MESSAGE, DeploymentEffects, StoreNeed
from controller.domain.events import NewEvent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase
from controller.domain.placement import Need, NeedError
from controller.domain.restart_delays import RestartSettings
from schemas.placement_reasons import Reason

P = InstancePhase
_WAITING = frozenset({P.PENDING, P.ANALYZING})


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an analysis: a need, or an error. `reason`: the error's code."""

    input_hash: str
    need: Need | None = None
    error: str = ""
    retryable: bool = False
    reason: str = Reason.METADATA_UNKNOWN
    commits: Mapping[str, str] = field(default_factory=dict)  # that were read, by `org/name@revision`


def settle_need(
    facts: DeploymentFacts,
    wanted: int,
    finished: Finished | None,
    known: Need | None,
    settings: RestartSettings,
    effects: DeploymentEffects,
) -> bool:
    """Stores the newest revision's need, or the error of its analysis; returns whether the need is known now."""
    revision = facts.revisions[facts.revision]
    if revision.need is not None:
        return True
    if known is not None:
        effects.store_need = StoreNeed(revision.generation, known, None)
        return True
    if finished is None or finished.input_hash != revision.input_hash:
        if wanted == 0 and revision.need_error is not None:  # a later start reads the files again
            effects.store_need = StoreNeed(revision.generation, None, None)
        return False
    if finished.need is not None:
        effects.store_need = StoreNeed(revision.generation, finished.need, None, finished.commits)
        effects.events.append(_analyzed(facts, finished.need))
        return True
    attempts = (revision.need_error.attempts if revision.need_error else 0) + 1
    delay = timedelta(seconds=settings.delay_s(attempts))
    retry_at = facts.now + delay if finished.retryable else None
    error = NeedError(finished.error, finished.retryable, attempts, retry_at, str(finished.reason))
    effects.store_need = StoreNeed(revision.generation, None, error)
    evidence = {"attempts": attempts, "retryable": finished.retryable}
    effects.events.append(NewEvent(Reason.METADATA_UNKNOWN, finished.error, (), evidence))
    return False


def _analyzed(facts: DeploymentFacts, need: Need) -> NewEvent:
    """With how long the first instance has waited for it, where one has."""
    waiting = [i for i in facts.instances if i.phase is P.ANALYZING and i.revision == facts.revision]
    spent = max(((facts.now - i.phase_since).total_seconds() for i in waiting), default=None)
    evidence: dict[str, Any] = {"memory_mib": need.memory_mib}
    if spent is not None:
        evidence["durations"] = {"analyzing": round(max(spent, 0.0), 3)}
    return NewEvent("analyzed", "its need is known", (), evidence)


def analyse(facts: DeploymentFacts, staying: Sequence[InstanceFacts], wanted: int, effects: DeploymentEffects) -> None:
    """Lets the analysis run while an instance needs it, and moves the pending instances with it.

    To be called only while the need is unknown.
    """
    waiting = [i for i in staying if i.phase in _WAITING and i.revision == facts.revision]
    if not waiting and wanted == 0:
        return
    error = effects.store_need.error if effects.store_need else facts.revisions[facts.revision].need_error
    if error is not None and not error.retryable:
        for instance in waiting:
            effects.change_phase(instance, P.FAILED, error.reason, error.message)
        return
    if error is not None and error.retry_at is not None and error.retry_at > facts.now:
        for instance in waiting:
            if instance.phase is P.ANALYZING:
                effects.change_phase(instance, P.PENDING, error.reason, error.message)
        effects.requeue((error.retry_at - facts.now).total_seconds())
        return
    effects.analyse = facts.revision
    for instance in waiting:
        if instance.phase is P.PENDING:
            effects.change_phase(instance, P.ANALYZING, "", ANALYZING_MESSAGE)


def is_placeable(facts: DeploymentFacts, effects: DeploymentEffects) -> bool:
    """Whether these effects give placement a new instance, or the need of a pending one."""
    stored = effects.store_need
    stores_need = stored is not None and stored.need is not None
    known = {generation for generation, revision in facts.revisions.items() if revision.need is not None}
    if stores_need:
        known.add(facts.revision)
    if any(i.mended and i.phase is P.PENDING for i in facts.instances):
        return True
    waiting = any(i.phase in _WAITING for i in facts.instances)
    return any(create.revision in known for create in effects.creates) or (stores_need and waiting)
