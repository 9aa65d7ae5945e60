"""Deployments under a policy, written by hand into a real database: running instances, and their samples by age."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.leader.policy_watch import PolicyWatch
from controller.reconcilers.policies import PoliciesReconciler
from controller.store.core.database import Database
from controller.store.telemetry.partitions import SampleRetention, make_partitions
from support.database.ledger import GIB, Host, add_deployment, add_host, add_instance, claim, report, rows

DEVICE_GIB = 40
PERIOD_S = 10.0
WINDOW_S = 60
STOP_IDLE = {"min_gpu_utilization": 50, "time_window": WINDOW_S}


@dataclass
class Counted:
    """The verdicts counted."""

    verdicts: list[str] = field(default_factory=list)

    def judged(self, verdict: str) -> None:
        self.verdicts.append(verdict)


@dataclass
class PolicyLedger:
    """A host, and what runs on it. Ages count from one reading of the database's clock."""

    db: Database
    host: Host
    now: float
    gpus: dict[str, str] = field(default_factory=dict)  # by instance

    @classmethod
    async def make(cls, db: Database) -> "PolicyLedger":
        async with db.transaction() as c:
            await make_partitions(c, SampleRetention(samples_h=25, history_days=14))
            now = await c.fetchval("select extract(epoch from clock_timestamp())::float8")
        return cls(db, await add_host(db, "gpu-1", gpus=8, gib=DEVICE_GIB), now)

    async def deployment(self, name: str = "d", *, replicas: int = 1, **fields: Any) -> str:
        """Its instances have run for an hour, each on a whole GPU. The policy is inline by default."""
        fields = {"utilization_policy": STOP_IDLE, "resources": {"gpus": 1}} | fields
        uid = await add_deployment(self.db, name, replicas=replicas, **fields)
        for n in range(replicas):
            await self.instance(uid, f"{name}-{n}")
        return uid

    async def instance(self, uid: str, name: str, *, gpu: str | None = None, mib: int | None = None) -> None:
        """An instance that has run for an hour; with `mib` it shares its GPU."""
        self.gpus[name] = gpu or self.host.gpus[len(self.gpus)]
        await add_instance(self.db, uid, name, phase="running", epoch=1)
        await claim(self.db, self.gpus[name], name, mib or DEVICE_GIB * GIB, exclusive=mib is None)
        await report(self.db, name, "running")
        await self.write("update instances set running_since = now() - interval '1 hour' where id = $1", name)

    async def policy(self, name: str, *, default: bool = False, **fields: Any) -> str:
        uid = uuid.uuid4()
        spec = {**STOP_IDLE, **fields}
        await self.write(
            "insert into policies (uid, name, generation, spec, is_default) values ($1, $2, 1, $3, $4)",
            uid,
            name,
            spec,
            default,
        )
        return str(uid)

    async def samples(
        self,
        instance: str,
        values: Mapping[float, float],
        *,
        own: float | None = None,
        requests: int | None = 0,
        epoch: int = 1,
    ) -> None:
        """Writes samples of the instance's GPU by age, in one transaction. `own`: of its processes only."""
        reported = [[instance, epoch, 0, own, own, requests]]
        async with self.db.transaction() as c:
            await c.executemany(
                """insert into samples (at, device, worker_id, seq, period_s, mean, max, processes)
                   values (to_timestamp($1), $2, $3, 1, $4, $5, $5, $6)""",
                [
                    (self.now - age, self.gpus[instance], uuid.UUID(self.host.id), PERIOD_S, value, reported)
                    for age, value in values.items()
                ],
            )

    async def idle(self, *instances: str, value: float = 0.0) -> None:
        for name in instances:
            await self.samples(name, steady(value))

    async def write(self, query: str, *args: Any) -> None:
        async with self.db.transaction() as c:
            await c.execute(query, *args)

    async def leader(self, db: Database | None = None) -> PoliciesReconciler:
        """The policies reconciler of the next term."""
        async with self.db.transaction() as c:
            term = await c.fetchval("update lease set term = term + 1, holder = 'test' returning term")
        database, counted = db or self.db, Counted()
        return PoliciesReconciler(database, term, counted, PolicyWatch(database, counted))

    async def verdicts(self) -> dict[str, tuple[str, str]]:
        found = await rows(self.db, "select instance_id, verdict, reason from policy_verdicts order by instance_id")
        return {row["instance_id"]: (row["verdict"], row["reason"]) for row in found}

    async def actions(self) -> list[dict[str, Any]]:
        return await rows(self.db, "select * from policy_actions order by id")

    async def intents(self) -> list[tuple[str, int, list[str]]]:
        found = await rows(self.db, "select source, max_replicas, instances from intents order by source")
        return [(row["source"], row["max_replicas"], row["instances"]) for row in found]

    async def events(self, prefix: str = "policy_") -> list[str]:
        found = await rows(self.db, "select reason from events where starts_with(reason, $1) order by id", prefix)
        return [row["reason"] for row in found]


def steady(value: float, *, newest: float = 1.0, to: float = WINDOW_S + 15) -> dict[float, float]:
    """A sample every period, from age `newest` back to `to`."""
    return {newest + n * PERIOD_S: value for n in range(int((to - newest) // PERIOD_S) + 2)}


async def settle(reconciler: PoliciesReconciler) -> None:
    """Steps over everything until all of the past is read."""
    await reconciler.step(sorted(await reconciler.list_keys()))
