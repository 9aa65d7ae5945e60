"""Instances of batches of deployments: observe → decide → apply. `placement` places those that are pending."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from controller.decide.instances.decide import decide
from controller.decide.instances.stop import NEW_REVISION as ROLLOUT
from controller.decide.start_command import start_payload
from controller.domain.access.grants import Grant
from controller.domain.admission import new_instance
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentSnapshot
from controller.domain.restart_delays import RestartSettings
from controller.leader.analyses import Analyses, known_need
from controller.leader.placement_passes import NewInstance, PlacementPasses
from controller.runtime.lease import term_transaction
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.core.guards import DeploymentStep
from controller.store.deployments.effects import carry_out, new_instance_id
from controller.store.deployments.observe import list_uids, observe
from controller.store.placement.commit import commit_placements

_HELD_S: Final = 1.0  # at most: the end of the hold wakes all keys


class InstancesReconciler:
    """Keys are deployments' uids. `held`: while it returns True, no step does anything."""

    kind = "instance"

    def __init__(
        self,
        database: Database,
        term: int,
        analyses: Analyses,
        settings: RestartSettings,
        passes: PlacementPasses,
        wake_placement: Callable[[], None],
        metrics: Metrics | None = None,
        *,
        held: Callable[[], bool] = lambda: False,
        operators_may: Collection[Grant] = frozenset(Grant),
    ) -> None:
        self._operators_may = operators_may
        self._held = held
        self._metrics = metrics
        self._database = database
        self._term = term
        self._analyses = analyses
        self._settings = settings
        self._passes = passes
        self._wake_placement = wake_placement

    async def list_keys(self) -> Collection[str]:
        """All deployments, including deleted ones whose instances have not ended."""
        async with self._database.connection() as connection:
            return await list_uids(connection)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        if self._held():
            return dict.fromkeys(keys, Requeue(_HELD_S))
        async with self._database.snapshot() as connection:
            observed = await observe(connection, keys)
        for uid in set(keys) - observed.keys():
            self._analyses.cancel(uid, committed_at=None)
        steps = [self._decide(snapshot) for snapshot in observed.values()]
        for step in steps:
            self._cancel_obsolete(step)
        placed = await self._apply([step for step in steps if step.effects.writes])
        for step in steps:
            self._follow_up(step, placed)
            self._count(step)
        outcomes: dict[str, Outcome] = dict.fromkeys(keys, Done())
        for step in steps:
            if placed.intersection(step.names):
                outcomes[step.snapshot.uid] = Requeue(0.0)
            elif step.effects.requeue_after_s is not None:
                outcomes[step.snapshot.uid] = Requeue(step.effects.requeue_after_s)
        return outcomes

    def _decide(self, snapshot: DeploymentSnapshot) -> DeploymentStep:
        known, finished = known_need(snapshot.revisions[snapshot.revision]), self._analyses.finished(snapshot.uid)
        effects = decide(snapshot, self._settings, finished, known, self._operators_may)
        names = tuple(new_instance_id(snapshot.name) for _ in effects.creates)
        return DeploymentStep(snapshot, effects, _restart_payloads(snapshot, effects), names)

    def _cancel_obsolete(self, step: DeploymentStep) -> None:
        """Cancels an analysis that the deployment no longer needs, before anything is written."""
        if step.effects.analyse is None and self._analyses.running(step.snapshot.uid):
            snapshot = step.snapshot
            since = snapshot.deleted_at or snapshot.revisions[snapshot.revision].created_at
            self._analyses.cancel(snapshot.uid, committed_at=since)

    async def _apply(self, steps: Sequence[DeploymentStep]) -> set[str]:
        """Writes all effects in one transaction; returns ids of instances that it created and placed."""
        if not steps:
            return set()
        async with self._passes.place_new(self._new_instances(steps)) as starts:
            async with term_transaction(self._database, self._term) as connection:
                hints = await carry_out(connection, steps)
                kept = await commit_placements(connection, starts, hints)
            self._passes.settle(starts, kept)
        return {s.waiting.id for s in kept}

    def _new_instances(self, steps: Sequence[DeploymentStep]) -> list[NewInstance]:
        """The created instances that can be placed directly, in order of placement."""
        new_instances: list[NewInstance] = []
        if any(s.effects.releases or s.effects.restarts for s in steps):
            return new_instances  # these lock devices, after which no workers may be locked
        for step in sorted(steps, key=lambda s: -s.snapshot.spec.priority):
            for name, create in zip(step.names, step.effects.creates, strict=True):
                snapshot, stored = step.snapshot, step.effects.store_need
                revision = snapshot.revisions[create.revision]
                newest = create.revision == snapshot.revision
                need = stored.need if stored is not None and newest else revision.need
                # The full pass places a relocation's replacement, which has its destination already.
                if need is not None and create.relocation is None:
                    new = new_instance(name, snapshot.uid, snapshot.name, create.revision)
                    commits = {**(stored.commits if stored is not None and newest else {}), **revision.commits}
                    new_instances.append(NewInstance(new, revision.spec, need, commits))
        return new_instances

    def _count(self, step: DeploymentStep) -> None:
        if self._metrics is None:
            return
        for event in step.effects.events:
            if event.reason == "running" and "durations" in event.evidence:
                self._metrics.started(event.evidence["durations"])
        for change in step.effects.phase_changes:
            if change.restarts is not None:
                self._metrics.restarted(step.snapshot.name)
        if step.effects.finish:
            self._metrics.finished(step.snapshot.name)

    def _follow_up(self, step: DeploymentStep, placed: Collection[str]) -> None:
        effects, snapshot = step.effects, step.snapshot
        if effects.store_need is not None:
            self._analyses.forget(snapshot.uid)
        if effects.analyse is not None:
            self._analyses.start(snapshot.uid, snapshot.revisions[effects.analyse])
        if any(change.stop_reason == ROLLOUT for change in effects.phase_changes):
            self._passes.mark_backlog()  # the successor, which is created later, comes before lower priorities
        if effects.wake_placement:
            if effects.phase_changes or snapshot.instances or not set(step.names) <= set(placed):
                self._passes.mark_backlog()
            self._wake_placement()


def _restart_payloads(snapshot: DeploymentSnapshot, effects: DeploymentEffects) -> dict[str, dict[str, Any]]:
    """The start commands of restarts in place, by instance."""
    payloads: dict[str, dict[str, Any]] = {}
    for restart in effects.restarts:
        instance = snapshot.by_id[restart.instance]
        gpus = [c for c in instance.claims if c.kind == "gpu"]
        revision = snapshot.revisions[instance.revision]
        payloads[instance.id] = start_payload(
            revision.spec,
            deployment=snapshot.name,
            deployment_uid=snapshot.uid,
            gpus=gpus,
            engine=instance.engine,
            layout=instance.layout,
            gpu_mib=max((claim.device_mib for claim in gpus), default=0),
            others_mib=max((claim.device_claimed_mib - claim.memory_mib for claim in gpus), default=0),
            need=revision.need,
            commits=revision.commits,
            builds=next((claim.worker_engines for claim in instance.claims if claim.worker_engines), ()),
        )
    return payloads
