"""Deployments whose replicas follow the requests, with gateways that report by hand, on a real database."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from controller.domain.scaling import GatewayLoad
from controller.leader.scaling_watch import ScalingWatch
from controller.reconcilers.scaling import ScalingReconciler
from controller.store.core.database import Database
from controller.store.scaling.gateways import ask_wake, leave, report_demand, withdraw_wake
from support.database.ledger import add_deployment, add_host, add_instance, rows
from support.leading.leader_term import LeaderTerm


@dataclass
class HandGateway:
    """A gateway that says what it is told to."""

    db: Database
    name: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    beat: int = 0

    async def report(self, loads: dict[str, GatewayLoad] | None = None) -> None:
        self.beat += 1
        async with self.db.connection() as c:
            await report_demand(
                c, self.id, self.name, self.beat, {uuid.UUID(u): one for u, one in (loads or {}).items()}
            )

    async def wake(self, uid: str, request_id: str = "request-1") -> None:
        async with self.db.connection() as c:
            await ask_wake(c, self.id, uuid.UUID(uid), request_id)

    async def withdraw(self, uid: str) -> None:
        async with self.db.connection() as c:
            await withdraw_wake(c, self.id, uuid.UUID(uid))

    async def leave(self) -> None:
        async with self.db.connection() as c:
            await leave(c, self.id)


class Seconds:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


class ScaledLedger:
    """One leader's autoscaler and instances, looked at second by second."""

    def __init__(self, db: Database, term: LeaderTerm, number: int) -> None:
        self.db = db
        self.term = term
        self.clock = Seconds()
        self.watch = ScalingWatch(db, monotonic=self.clock)
        self.autoscaler = ScalingReconciler(db, number, self.watch)
        self.gateways: list[HandGateway] = []

    @classmethod
    async def make(cls, db: Database, *gateways: str) -> "ScaledLedger":
        term = await LeaderTerm.begin(db)
        async with db.connection() as c:
            made = cls(db, term, await c.fetchval("select term from lease"))
        made.gateways = [HandGateway(db, name) for name in gateways or ("p",)]
        await add_host(db, "w1")
        return made

    def next_leader(self) -> None:
        """Another leader takes over, with a memory of its own."""
        self.watch = ScalingWatch(self.db, monotonic=self.clock)
        self.autoscaler = ScalingReconciler(self.db, self.autoscaler._term, self.watch)

    async def deployment(self, name: str = "chat", **fields: Any) -> str:
        return await add_deployment(
            self.db,
            name,
            **{"replicas": {"min": 0, "max": 6}, "scaling": {"target": 8}, "resources": {"gpus": 1}} | fields,
        )

    async def running(self, uid: str, number: int, name: str = "chat") -> None:
        for n in range(number):
            await add_instance(self.db, uid, f"{name}-{n}", phase="running", epoch=1)

    async def policy_cap(self, uid: str, number: int) -> None:
        """A policy's limit, as its own reconciler writes it."""
        async with self.db.transaction() as c:
            await c.execute(
                """insert into intents (deployment_uid, source, max_replicas, reason)
                   values ($1, 'policy', $2, 'policy_idle')""",
                uid,
                number,
            )

    async def look(
        self,
        seconds: int = 0,
        loads: dict[str, GatewayLoad] | None = None,
        *,
        silent: tuple[str, ...] = (),
        every_s: int = 1,
    ) -> None:
        """Every so often every gateway but the silent ones reports, the leader looks and steps what needs it."""
        for second in range(0, seconds + 1, every_s):
            if second:
                self.clock.now += every_s
            for n, gateway in enumerate(self.gateways):
                if gateway.name not in silent:
                    await gateway.report(loads if n == 0 else None)
            await self.step_all() if second == 0 else await self.step_needed()

    async def step_all(self) -> None:
        await self.autoscaler.step(sorted(await self.autoscaler.list_keys()))
        await self.step_needed()

    async def step_needed(self) -> None:
        needed = await self.watch.poll()
        if needed:
            await self.autoscaler.step(sorted(needed))

    async def number(self, name: str = "chat") -> int | None:
        found = await rows(
            self.db,
            """select i.min_replicas as n, i.max_replicas as most
                 from intents i join deployments d on d.uid = i.deployment_uid
                where d.name = $1 and source = 'autoscaler'""",
            name,
        )
        assert all(row["n"] == row["most"] for row in found)
        return found[0]["n"] if found else None

    async def status(self) -> dict[str, Any]:
        (row,) = await rows(self.db, "select * from scaling_status")
        return row

    async def events(self) -> list[tuple[str, Any]]:
        found = await rows(self.db, "select reason, evidence from events where actor = 'autoscaler' order by id")
        return [(row["reason"], row["evidence"]) for row in found]


def load(in_flight: int = 0, waiting: int = 0, arrived: int = 0) -> GatewayLoad:
    return GatewayLoad(float(in_flight + waiting), in_flight, waiting, arrived or in_flight + waiting)
