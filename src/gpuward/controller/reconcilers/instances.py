"""Deployments' instances: observe → decide → apply, for batches of deployments. Placement is a room of its own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpuward.controller.decide.backoff import RestartSettings
from gpuward.controller.decide.instances import decide
from gpuward.controller.decide.orders import start_payload
from gpuward.controller.domain.instances import DeploymentFacts
from gpuward.controller.domain.plans import DeploymentPlan
from gpuward.controller.reconcilers.analysis import Analyses, known_need
from gpuward.controller.runtime.lease import check_term
from gpuward.controller.runtime.outcome import Again, Done, Outcome, StaleError
from gpuward.controller.store.database import Database
from gpuward.controller.store.errors import LostGuardError
from gpuward.controller.store.guarded import PlannedStep
from gpuward.controller.store.instance_writes import carry_out
from gpuward.controller.store.instances import list_uids, observe


class InstancesReconciler:
    """Keys are deployments' uids. Lives as long as one term."""

    kind = "instance"

    def __init__(
        self,
        database: Database,
        term: int,
        analyses: Analyses,
        settings: RestartSettings,
        wake_placement: Callable[[], None],
    ) -> None:
        self._database = database
        self._term = term
        self._analyses = analyses
        self._settings = settings
        self._wake_placement = wake_placement

    async def list_keys(self) -> Collection[str]:
        """All deployments, deleted ones that are not finished included."""
        async with self._database.connection() as connection:
            return await list_uids(connection)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Brings these deployments one step closer to what is wanted."""
        async with self._database.snapshot() as connection:
            observed = await observe(connection, keys)
        for uid in set(keys) - observed.keys():
            self._analyses.cancel(uid, committed_at=None)
        steps = [self._decide(facts) for facts in observed.values()]
        for step in steps:
            self._cancel_needless(step)
        await self._apply([step for step in steps if step.plan.writes])
        for step in steps:
            self._follow_up(step)
        outcomes: dict[str, Outcome] = dict.fromkeys(keys, Done())
        for step in steps:
            if step.plan.again_after_s is not None:
                outcomes[step.facts.uid] = Again(step.plan.again_after_s)
        return outcomes

    def _decide(self, facts: DeploymentFacts) -> PlannedStep:
        known, impossible = known_need(facts.revisions[facts.revision])
        finished = impossible or self._analyses.finished(facts.uid)
        plan = decide(facts, self._settings, finished, known)
        return PlannedStep(facts, plan, _payloads(facts, plan))

    def _cancel_needless(self, step: PlannedStep) -> None:
        """Before anything is written: what nobody waits for any more must not compute on."""
        if step.plan.analyse is None and self._analyses.running(step.facts.uid):
            facts = step.facts
            since = facts.deleted_at or facts.revisions[facts.revision].created_at
            self._analyses.cancel(facts.uid, committed_at=since)

    async def _apply(self, steps: Sequence[PlannedStep]) -> None:
        if not steps:
            return
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            try:
                await carry_out(connection, steps)
            except LostGuardError as lost:
                raise StaleError(str(lost)) from lost

    def _follow_up(self, step: PlannedStep) -> None:
        plan, facts = step.plan, step.facts
        if plan.store_need is not None:
            self._analyses.forget(facts.uid)
        if plan.analyse is not None:
            self._analyses.start(facts.uid, facts.revisions[plan.analyse])
        if plan.wake_placement:
            self._wake_placement()


def _payloads(facts: DeploymentFacts, plan: DeploymentPlan) -> dict[str, dict[str, Any]]:
    by_id = {i.id: i for i in facts.instances}
    payloads: dict[str, dict[str, Any]] = {}
    for restart in plan.restarts:
        instance = by_id[restart.instance]
        gpus = [c for c in instance.claims if c.kind == "gpu"]
        payloads[instance.id] = start_payload(
            facts.revisions[instance.revision].spec, deployment=facts.name, deployment_uid=facts.uid, gpus=gpus
        )
    return payloads
