"""A deployment's status: its phase, reason and conditions, derived from its instances as this step leaves them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.decide.rollouts.judge import BLOCKED
from controller.domain.access.grants import Grant
from controller.domain.effects import DeploymentEffects, DeploymentStatus
from controller.domain.instances import DeploymentFacts
from controller.domain.phases import DeploymentPhase, InstancePhase
from controller.domain.rollouts import RolloutRecord, RolloutState
from controller.domain.wanted import AUTOSCALER, is_asleep
from controller.engines.arguments.privileges import next_change_needs

P = InstancePhase
D = DeploymentPhase
_ALL_GRANTS = frozenset(Grant)
_PROGRESSING = frozenset({P.ANALYZING, P.SCHEDULED, P.STARTING})
_STANDS = frozenset({RolloutState.FAILED, RolloutState.ABORTED})
_TROUBLED = frozenset({P.UNHEALTHY, P.BACKOFF, P.UNREACHABLE, P.FAILED})


@dataclass(frozen=True, slots=True)
class _After:
    """An instance as it will be once the effects are written."""

    phase: InstancePhase
    reason: str
    message: str
    revision: int


def derive_status(
    facts: DeploymentFacts,
    wanted: int,
    effects: DeploymentEffects,
    rollout: RolloutRecord | None = None,
    operators_may: Collection[Grant] = frozenset(Grant),
) -> None:
    """Adds the deployment's status to the effects where it differs from the stored one."""
    instances = _after(facts, effects)
    current = all(i.revision == facts.revision for i in instances if i.phase is not P.REPLACED)
    phases: list[InstancePhase] = [i.phase for i in instances if i.phase is not P.REPLACED]
    phases += [P.PENDING] * len(effects.creates)
    ready = phases.count(P.RUNNING)
    phase = _phase(facts, wanted, phases, ready)
    stands = rollout is not None and rollout.state in _STANDS
    if phase is D.RUNNING and not current:
        # All run between two replacements of a rollout, but not all as applied.
        phase = D.DEGRADED if stands else D.PROGRESSING
    reason, message = _why(facts, phase, instances, rollout if phase in (D.PROGRESSING, D.DEGRADED) else None)
    all_granted = _ALL_GRANTS.issubset(operators_may)
    needs = "" if all_granted else next_change_needs(facts.spec, operators_may)
    conditions = _conditions(facts, wanted, ready, phase, needs, current=current)
    status = DeploymentStatus(phase, reason, message, ready, facts.generation, conditions)
    stored = (facts.phase, facts.reason, facts.message, facts.ready, facts.observed_generation, facts.conditions)
    if stored != (phase, reason, message, ready, facts.generation, conditions):
        effects.status = status


def _after(facts: DeploymentFacts, effects: DeploymentEffects) -> list[_After]:
    """The remaining instances, in order of id."""
    changes = {c.instance: c for c in effects.phase_changes}
    told = {p.instance: p for p in effects.progress}
    restarted = {r.instance for r in effects.restarts}
    removed = {r.instance for r in effects.removals}
    found: list[_After] = []
    for i in sorted(facts.instances, key=lambda i: i.id):
        if i.id in removed:
            continue
        change = changes.get(i.id)
        if change is not None:
            found.append(_After(change.to, str(change.reason), change.message, i.revision))
        elif i.id in restarted:
            found.append(_After(P.STARTING, "", "", i.revision))
        elif (progress := told.get(i.id)) is not None:
            found.append(_After(i.phase, progress.reason, progress.message, i.revision))
        else:
            found.append(_After(i.phase, i.reason, i.message, i.revision))
    return found


def _phase(facts: DeploymentFacts, wanted: int, phases: list[InstancePhase], ready: int) -> DeploymentPhase:
    if facts.deleted_at is not None:
        return D.DELETING
    if wanted == 0:
        ended = D.ASLEEP if is_asleep(facts.spec, facts.intents) else D.STOPPED
        return D.PROGRESSING if phases else ended
    staying = [p for p in phases if p is not P.STOPPING]
    settled = _settled(wanted, staying, ready)
    if settled is not None and (settled is not D.RUNNING or len(staying) == len(phases)):
        return settled
    if any(p in _TROUBLED for p in staying):
        return D.DEGRADED
    if any(p in _PROGRESSING for p in staying) or P.STOPPING in phases:
        return D.PROGRESSING
    return D.DEGRADED if ready else D.PENDING


def _settled(wanted: int, staying: Sequence[InstancePhase], ready: int) -> DeploymentPhase | None:
    """The phase once all instances are where they should be; None before."""
    if staying and all(p is P.SUCCEEDED for p in staying) and len(staying) >= wanted:
        return D.SUCCEEDED
    if ready + staying.count(P.SUCCEEDED) >= wanted:
        return D.RUNNING
    if P.FAILED in staying and all(p in (P.FAILED, P.SUCCEEDED) for p in staying):
        return D.FAILED
    return None


def _why(
    facts: DeploymentFacts, phase: DeploymentPhase, instances: Sequence[_After], rollout: RolloutRecord | None
) -> tuple[str, str]:
    if phase is D.ASLEEP:
        intent = next((i for i in facts.intents if i.max_replicas == 0 and i.source != AUTOSCALER), None)
        return (intent.reason if intent else "asleep"), "asleep; a request wakes it"
    if phase is D.STOPPED:
        intent = next((i for i in facts.intents if i.max_replicas == 0), None)
        return (intent.reason, f"stopped by {intent.source}") if intent else ("", "no replicas are wanted")
    if phase in (D.RUNNING, D.SUCCEEDED):
        return "", ""
    if phase is D.DELETING:
        return "deleted", f"{len(instances)} instances are still stopping" if instances else ""
    found = "", ""
    for instance in instances:
        if instance.phase not in (P.RUNNING, P.REPLACED, P.SUCCEEDED) and (instance.reason or instance.message):
            found = instance.reason, instance.message
            break
    return _of_rollout(found, rollout)


def _of_rollout(found: tuple[str, str], rollout: RolloutRecord | None) -> tuple[str, str]:
    """Reason and message of an instance, or those of the rollout where that is stopped or no instance has any."""
    if rollout is None or rollout.state is RolloutState.COMPLETE or rollout.fallback is None:
        return found
    if rollout.state in _STANDS or rollout.reason == "rollout_paused" or not any(found):
        return rollout.reason, rollout.message
    if rollout.reason == BLOCKED:  # the place that is missing, and what holds it
        return found[0], "; ".join(text for text in (found[1], rollout.message) if text)
    return found


def _conditions(
    facts: DeploymentFacts, wanted: int, ready: int, phase: DeploymentPhase, needs: str, *, current: bool
) -> tuple[Mapping[str, Any], ...]:
    states = {
        "Available": (ready > 0, "" if ready else "no_instance_runs", ""),
        "Complete": (phase in (D.RUNNING, D.SUCCEEDED, D.STOPPED, D.ASLEEP), f"{ready} of {wanted} run", ""),
        "UpToDate": (current, "" if current else "older_revision_runs", ""),
    }
    if needs:  # an earlier version took it from an operator; the condition is there only as long as it does not hold
        states["OperatorsMayChange"] = (False, "grant_needed", needs)
    before = {c["type"]: c for c in facts.conditions}
    found: list[Mapping[str, Any]] = []
    for name, (holds, reason, message) in states.items():
        status = "true" if holds else "false"
        old = before.get(name)
        since = old["since"] if old is not None and old["status"] == status else facts.now.isoformat()
        found.append({"type": name, "status": status, "reason": reason, "message": message, "since": since})
    return tuple(found)
