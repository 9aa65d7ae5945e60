"""The autoscaler: observe → decide → apply for batches of deployments whose replicas follow the requests."""

from collections.abc import Collection, Mapping, Sequence

from controller.leader.scaling_watch import ScalingWatch
from controller.runtime.lease import term_transaction
from controller.runtime.outcome import Done, Outcome
from controller.store.core.database import Database
from controller.store.scaling.effects import carry_out_scaling, forget_scaling
from controller.store.scaling.observe import list_scaled, list_stored, observe_scaling


class ScalingReconciler:
    """Keys are deployments' uids."""

    kind = "scaling"

    def __init__(self, database: Database, term: int, watch: ScalingWatch) -> None:
        self._database = database
        self._term = term
        self.watch = watch

    async def list_keys(self) -> Collection[str]:
        async with self._database.connection() as connection:
            return await list_scaled(connection)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        async with self._database.snapshot() as connection:
            observed = await observe_scaling(connection, keys)
            gone = await list_stored(connection, sorted(set(keys) - observed.keys()))
            self.watch.know(observed, keys)
            if observed:
                await self.watch.read(connection)
        await self.watch.decide(observed)
        steps = self.watch.steps(observed)
        if steps or gone:
            async with term_transaction(self._database, self._term) as connection:
                await carry_out_scaling(connection, steps)
                await forget_scaling(connection, gone)
            self.watch.written(steps)
        return dict.fromkeys(keys, Done())
