"""A deployment's own steps in a dry run: stops and creations, chosen by the reconciler's code."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from controller.api.dry_run.manifests import ManifestEffect
from controller.decide.instances.decide import create_wanted, stop_unwanted
from controller.decide.instances.replicas import classify, wanted_replicas
from controller.decide.instances.rollout import rolling_of
from controller.decide.instances.stop import NEW_REVISION
from controller.decide.rollouts.judge import BLOCKED
from controller.decide.rollouts.texts import planned_text
from controller.domain.effects import Create, DeploymentEffects
from controller.domain.instances import DeploymentSnapshot, InstanceClaim, InstanceState, ReportedProcess, Revision
from controller.domain.phases import LIVE, InstancePhase
from controller.domain.placement import Need, Placed
from controller.domain.rollouts import RolloutSnapshot
from controller.store.deployments.observe import observe

P = InstancePhase
_CLEARED: Final = frozenset({"user", "policy"})  # a changed spec removes these limits
_LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)  # so that running instances count as available


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """One step: the instances that start to stop, those that are gone at once, and those that are created."""

    stopping: frozenset[str]
    removed: frozenset[str]
    creates: tuple[Create, ...]


async def read_deployments(connection: Any, effects: Sequence[ManifestEffect]) -> dict[str, DeploymentSnapshot]:
    """The existing deployments among these effects, after the apply, by uid.

    The connection must be in one REPEATABLE READ transaction.
    """
    existing = {effect.uid: effect for effect in effects if effect.change != "create"}
    observed = await observe(connection, list(existing)) if existing else {}
    return {uid: _applied(snapshot, existing[uid]) for uid, snapshot in observed.items()}


def planned_rollouts(
    deployments: Mapping[str, DeploymentSnapshot], effects: Sequence[ManifestEffect]
) -> dict[str, str]:
    """Descriptions of the rollouts of deployments that get another revision, by name."""
    texts: dict[str, str] = {}
    for effect in effects:
        if effect.change == "replace" and (known := deployments.get(effect.uid)) is not None:
            paused = known.rollout is not None and known.rollout.paused
            wanted = wanted_replicas(known)
            texts[effect.name] = planned_text(effect.spec, wanted, back_to=effect.back_to, paused=paused)
    return texts


def _applied(snapshot: DeploymentSnapshot, effect: ManifestEffect) -> DeploymentSnapshot:
    if effect.change == "unchanged":
        return snapshot
    intents = tuple(intent for intent in snapshot.intents if intent.source not in _CLEARED)
    # Time does not pass in a rehearsal, so a canary counts as over.
    spec = effect.spec.model_copy(update={"rollout": effect.spec.rollout.model_copy(update={"canary": None})})
    changed = replace(snapshot, spec=spec, intents=intents)
    if effect.change == "update":
        return changed
    number = snapshot.generation + 1
    placed = sum(
        instance.phase in LIVE or (instance.phase is P.STOPPING and instance.stop_reason == NEW_REVISION)
        for instance in snapshot.instances
    )
    changed = replace(changed, placed_before=placed)
    if effect.back_to is not None and effect.back_to in snapshot.revisions:
        return replace(changed, generation=number, revision=effect.back_to)
    need = effect.need if isinstance(effect.need, Need) else None
    revisions = {**snapshot.revisions, number: Revision(number, effect.spec, "", snapshot.now, need)}
    return replace(changed, generation=number, revision=number, revisions=revisions)


class Rollout:
    """One deployment in a rehearsal."""

    def __init__(self, snapshot: DeploymentSnapshot) -> None:
        self.snapshot = snapshot

    def step(self) -> RolloutStep:
        """Chooses like a step of the reconciler, in its order. Stopping instances keep their claims until `end`."""
        snapshot, wanted, effects = self.snapshot, wanted_replicas(self.snapshot), DeploymentEffects()
        buckets = classify(snapshot)
        rolling = rolling_of(snapshot, buckets, wanted) if snapshot.spec.update == "rolling" else None
        leaving = stop_unwanted(snapshot, buckets, rolling, wanted, effects)
        create_wanted(snapshot, buckets, rolling, wanted, leaving, effects)
        if rolling is not None:
            snapshot = replace(
                snapshot, rollout=replace(snapshot.rollout or RolloutSnapshot(), record=rolling.judgement.record)
            )
        reasons = {change.instance: change.stop_reason for change in effects.phase_changes}
        removed = frozenset(removal.instance for removal in effects.removals)
        kept = (
            replace(instance, phase=P.STOPPING, stop_reason=reasons[instance.id])
            if instance.id in reasons
            else instance
            for instance in snapshot.instances
            if instance.id not in removed
        )
        self.snapshot = replace(snapshot, instances=tuple(kept))
        return RolloutStep(frozenset(reasons), removed, tuple(effects.creates))

    def awaited(self) -> int:
        """Number of successors that are created once the stopping outdated instances have ended."""
        buckets = classify(self.snapshot)
        stopping = sum(instance.stop_reason == NEW_REVISION for instance in buckets.stopping)
        return min(stopping, max(wanted_replicas(self.snapshot) - len(buckets.replicas), 0))

    def pending(self) -> list[InstanceState]:
        """Its pending instances of the newest revision, oldest first."""
        newest = [instance for instance in self.snapshot.instances if instance.revision == self.snapshot.revision]
        return sorted((i for i in newest if i.phase in (P.PENDING, P.ANALYZING)), key=lambda i: i.created_at)

    def add(self, instance: str, create: Create) -> None:
        now = self.snapshot.now
        created = InstanceState(
            id=instance, revision=create.revision, phase=P.PENDING, phase_since=now, reason="", message="", epoch=1,
            restarts=0, failures=0, not_before=None, stop_reason=None, replaces=create.replaces,
            created_at=create.born or now,
        )  # fmt: skip
        self.snapshot = replace(self.snapshot, instances=(*self.snapshot.instances, created))

    def place(self, placed: Placed, gpus: Collection[str]) -> None:
        claims = tuple(
            InstanceClaim(
                c.device, placed.workers[c.rank], "gpu" if c.device in gpus else "host", 1, c.rank, c.memory_mib,
                c.cpu_milli, c.exclusive, n,
            )
            for n, c in enumerate(placed.claims)
        )  # fmt: skip
        processes = tuple(
            ReportedProcess(1, rank, worker, "running", None, None, "") for rank, worker in enumerate(placed.workers)
        )
        self._change(placed.instance, phase=P.SCHEDULED, epoch=1, claims=claims, processes=processes)

    def preempt(self, instance: str, by: str) -> None:
        """Marks a victim; the next step stops it."""
        self._change(instance, preempted_for=by)

    def end(self, ended: Collection[str], unplaced: Mapping[str, str] = MappingProxyType({})) -> None:
        """Ends a round: removes `ended` instances, starts placed ones of the newest revision.

        `unplaced`: the reasons of instances that were not placed.
        """
        kept = (self._later(i, unplaced.get(i.id)) for i in self.snapshot.instances if i.id not in ended)
        self.snapshot = replace(self.snapshot, instances=tuple(kept))

    def _later(self, instance: InstanceState, unplaced: str | None) -> InstanceState:
        if instance.phase in LIVE and instance.revision == self.snapshot.revision:
            return replace(instance, phase=P.RUNNING, phase_since=_LONG_AGO)
        if instance.phase is P.PENDING and unplaced is not None:
            return replace(instance, reason=str(unplaced))
        return instance

    def blocked(self) -> str:
        """The reason why it is blocked by its own bounds; empty if it is not."""
        if self.snapshot.spec.update != "rolling":
            return ""
        record = rolling_of(self.snapshot, classify(self.snapshot), wanted_replicas(self.snapshot)).judgement.record
        return record.message if record.reason == BLOCKED else ""

    def outdated(self) -> frozenset[str]:
        return frozenset(i.id for i in self.snapshot.instances if i.revision != self.snapshot.revision)

    def _change(self, instance: str, **fields: Any) -> None:
        instances = (replace(i, **fields) if i.id == instance else i for i in self.snapshot.instances)
        self.snapshot = replace(self.snapshot, instances=tuple(instances))
