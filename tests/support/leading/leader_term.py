"""One term's reconcilers, stepped by hand against a real database: without loops and clocks."""

import asyncio
from typing import Any

from controller.domain.effects import StaleError
from controller.domain.restart_delays import RestartSettings
from controller.leader.analyses import Analyses
from controller.leader.placement_passes import PlacementPasses
from controller.reconcilers.instances import InstancesReconciler
from controller.reconcilers.placement import EVERYTHING, PlacementReconciler
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from support.database.ledger import rows

SETTLE_STEPS = 30


class NoMetrics:
    """Counts nothing."""

    def in_flight(self, n: int) -> None: ...
    def count(self, purpose: str, outcome: str) -> None: ...
    def cancel_seconds(self, seconds: float) -> None: ...
    def placed(self, outcome: str, n: int) -> None: ...
    def placement_seconds(self, seconds: float) -> None: ...


class LeaderTerm:
    """The reconcilers of one term."""

    def __init__(self, db: Database, term: int, settings: RestartSettings | None = None) -> None:
        self.db = db
        settings = settings or RestartSettings(base_s=0.0, cap_s=0.0)
        self.analyses = Analyses(clock=SystemClock(), metrics=NoMetrics(), hint=lambda _uid: None)
        self.passes = PlacementPasses(clock=SystemClock(), metrics=NoMetrics())
        self.instances = InstancesReconciler(db, term, self.analyses, settings, self.passes, lambda: None)
        self.placement = PlacementReconciler(db, term, settings, self.passes, lambda _uid: None)

    @classmethod
    async def begin(cls, db: Database, **fields: Any) -> "LeaderTerm":
        """Acquires the lease for the next term."""
        async with db.transaction() as c:
            term = await c.fetchval("update lease set term = term + 1, holder = 'test' returning term")
        return cls(db, term, **fields)

    async def step(self) -> None:
        """One step of every reconciler."""
        await self.instances.step(sorted(await self.instances.list_keys()))
        await self.placement.step([EVERYTHING])

    async def settle(self) -> None:
        """Steps until nothing changes."""
        before: list[dict[str, Any]] = []
        for _ in range(SETTLE_STEPS):
            try:
                await self.step()
            except StaleError:
                continue
            after = await self.picture()
            if after == before and not any(self.analyses.running(str(k)) for k in await self.instances.list_keys()):
                return
            before = after
            await asyncio.sleep(0)
        raise AssertionError(f"does not settle: {before}")

    async def picture(self) -> list[dict[str, Any]]:
        """Instances with phase, epoch, claims and commands."""
        return await rows(
            self.db,
            """select i.id, i.phase, i.epoch, i.reason,
                      array(select c.device from claims c where c.instance_id = i.id order by c.position) as devices,
                      array(select o.verb || o.epoch from commands o where o.instance_id = i.id order by o.id) as orders
                 from instances i order by i.created_at, i.id""",
        )

    async def phases(self) -> list[str]:
        return [row["phase"] for row in await self.picture()]

    async def aclose(self) -> None:
        await self.analyses.aclose()
