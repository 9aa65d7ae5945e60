"""Instances of batches of deployments: observe → decide → apply. `placement` places those that are pending."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from controller.decide.instances.decide import decide
from controller.decide.instances.stop import NEW_REVISION as ROLLOUT
from controller.decide.start_command import start_payload
from controller.domain.access.grants import Grant
from controller.domain.admission import new_instance
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts
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
        steps = [self._decide(facts) for facts in observed.values()]
        for step in steps:
            self._cancel_obsolete(step)
        placed = await self._apply([step for step in steps if step.effects.writes])
        for step in steps:
            self._follow_up(step, placed)
            self._count(step)
        outcomes: dict[str, Outcome] = dict.fromkeys(keys, Done())
        for step in steps:
            if placed.intersection(step.names):
                outcomes[step.facts.uid] = Requeue(0.0)
            elif step.effects.requeue_after_s is not None:
                outcomes[step.facts.uid] = Requeue(step.effects.requeue_after_s)
        return outcomes

    def _decide(self, facts: DeploymentFacts) -> DeploymentStep:
        known, finished = known_need(facts.revisions[facts.revision]), self._analyses.finished(facts.uid)
        effects = decide(facts, self._settings, finished, known, self._operators_may)
        names = tuple(new_instance_id(facts.name) for _ in effects.creates)
        return DeploymentStep(facts, effects, _restart_payloads(facts, effects), names)

    def _cancel_obsolete(self, step: DeploymentStep) -> None:
        """Cancels an analysis that the deployment no longer needs, before anything is written."""
        if step.effects.analyse is None and self._analyses.running(step.facts.uid):
            facts = step.facts
            since = facts.deleted_at or facts.revisions[facts.revision].created_at
            self._analyses.cancel(facts.uid, committed_at=since)

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
        for step in sorted(steps, key=lambda s: -s.facts.spec.priority):
            for name, create in zip(step.names, step.effects.creates, strict=True):
                facts, stored = step.facts, step.effects.store_need
                revision = facts.revisions[create.revision]
                newest = create.revision == facts.revision
                need = stored.need if stored is not None and newest else revision.need
                # The full pass places a relocation's replacement, which has its destination already.
                if need is not None and create.relocation is None:
                    new = new_instance(name, facts.uid, facts.name, create.revision)
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
                self._metrics.restarted(step.facts.name)
        if step.effects.finish:
            self._metrics.finished(step.facts.name)

    def _follow_up(self, step: DeploymentStep, placed: Collection[str]) -> None:
        effects, facts = step.effects, step.facts
        if effects.store_need is not None:
            self._analyses.forget(facts.uid)
        if effects.analyse is not None:
            self._analyses.start(facts.uid, facts.revisions[effects.analyse])
        if any(change.stop_reason == ROLLOUT for change in effects.phase_changes):
            self._passes.mark_backlog()  # the successor, which is created later, comes before lower priorities
        if effects.wake_placement:
            if effects.phase_changes or facts.instances or not set(step.names) <= set(placed):
                self._passes.mark_backlog()
            self._wake_placement()


def _restart_payloads(facts: DeploymentFacts, effects: DeploymentEffects) -> dict[str, dict[str, Any]]:
    """The start commands of restarts in place, by instance."""
    payloads: dict[str, dict[str, Any]] = {}
    for restart in effects.restarts:
        instance = facts.by_id[restart.instance]
        gpus = [c for c in instance.claims if c.kind == "gpu"]
        revision = facts.revisions[instance.revision]
        payloads[instance.id] = start_payload(
            revision.spec,
            deployment=facts.name,
            deployment_uid=facts.uid,
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
