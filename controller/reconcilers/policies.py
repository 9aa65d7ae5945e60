"""Utilization policies: observe → decide → apply for batches of deployments."""

from collections.abc import Collection, Mapping, Sequence

from controller.decide.policies.actions import decide_policy
from controller.domain.policies import PolicyEffects, PolicySnapshot
from controller.leader.policy_watch import PolicyWatch
from controller.runtime.lease import term_transaction
from controller.runtime.metrics import Metrics
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.policies.effects import PolicyStep, carry_out_policies, end_actions
from controller.store.policies.observe import list_unended, list_watched, observe_policies


class PoliciesReconciler:
    """Keys are deployments' uids."""

    kind = "policy"

    def __init__(self, database: Database, term: int, metrics: Metrics, watch: PolicyWatch) -> None:
        self._database = database
        self._term = term
        self._metrics = metrics
        self.watch = watch

    async def list_keys(self) -> Collection[str]:
        async with self._database.connection() as connection:
            return await list_watched(connection)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        async with self.watch.reading() as connection:
            observed = await observe_policies(connection, keys)
            gone = sorted(set(keys) - observed.keys())
            unended = await list_unended(connection, gone)
            await self.watch.read_past(connection, observed)
        outcomes: dict[str, Outcome] = dict.fromkeys(keys, Done())
        steps: list[PolicyStep] = []
        for uid, snapshot in observed.items():
            if self.watch.is_complete(uid):
                steps.append((snapshot, self._decide(snapshot)))
                if snapshot.policy is not None and snapshot.awake_for_s > 0:  # no sample announces its end
                    outcomes[uid] = Requeue(snapshot.awake_for_s)
            else:
                outcomes[uid] = Requeue(0.0)
        for uid in gone:
            self.watch.forget(uid)
        await self._apply([step for step in steps if step[1].writes], unended)
        return outcomes

    def _decide(self, snapshot: PolicySnapshot) -> PolicyEffects:
        effects = decide_policy(snapshot, self.watch.uses_of(snapshot))
        for verdict in effects.judged:
            self._metrics.judged(verdict)
        return effects

    async def _apply(self, steps: Sequence[PolicyStep], unended: Sequence[str]) -> None:
        if not steps and not unended:
            return
        async with term_transaction(self._database, self._term) as connection:
            await carry_out_policies(connection, steps)
            await end_actions(connection, unended)
