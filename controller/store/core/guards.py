"""Guarded writes: the order of row locks, the row count that detects a lost guard, a step with the state it rests on.

Every writer of the ledger takes its row locks in one order, so that writers never deadlock: deployments, instances,
policies, workers, devices; each by key. Writers of policies lock them themselves (`policies/effects.py`,
`deployments/apply.py`). NO KEY UPDATE is compatible with the foreign keys' KEY SHARE. Workers are share-locked only,
since many transactions may place on a worker at the same time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from controller.domain.effects import DeploymentEffects, Restart, StaleError
from controller.domain.instances import DeploymentSnapshot, Intent

# Agents have yet to report what runs: a loss was noticed and is not settled, or is about to be by the next leader.
UNSETTLED: Final = (
    "(cut_at is not null and coalesce(settled_at < cut_at, true) or coalesce(timeline <> database_timeline(), false))"
)
_INTENTS: Final = """
    select deployment_uid, source, min_replicas, max_replicas from intents where deployment_uid = any($1::uuid[])"""


@dataclass(frozen=True, slots=True)
class DeploymentStep:
    """The effects of a step, and the state that it was decided on."""

    snapshot: DeploymentSnapshot
    effects: DeploymentEffects
    payloads: Mapping[str, dict[str, Any]]  # the start commands' of restarts, by instance
    names: tuple[str, ...] = ()  # the names of the instances that it creates, in order

    def worker_of(self, restart: Restart) -> str | None:
        """The worker of a restart in place."""
        instance = self.snapshot.by_id.get(restart.instance)
        return None if instance is None else instance.host_of(0)


async def expect_rows(connection: Any, query: str, count: int, *args: Any) -> Sequence[Any]:
    """Runs a write that returns rows; raises StaleError unless there are `count` rows."""
    rows = await connection.fetch(query, *args)
    if len(rows) != count:
        raise StaleError(query.split("\n", 1)[0].strip())
    return cast("Sequence[Any]", rows)


async def expect_intents(connection: Any, expected: Mapping[str, Collection[Intent]]) -> None:
    """Raises StaleError unless these deployments, by uid, have exactly these limits."""
    rows = await connection.fetch(_INTENTS, list(expected))
    stored = {(str(r["deployment_uid"]), r["source"], r["min_replicas"], r["max_replicas"]) for r in rows}
    if stored != {(uid, i.source, i.min_replicas, i.max_replicas) for uid, of in expected.items() for i in of}:
        raise StaleError("intents of a deployment")


async def lock_rows(
    connection: Any,
    *,
    deployments: Collection[str] = (),
    instances: Collection[str] = (),
    workers: Collection[str] = (),
    devices: Collection[str] = (),
) -> None:
    """Locks these rows for the rest of the transaction; missing rows are skipped."""
    if deployments:
        await connection.execute(
            "select 1 from deployments where uid = any($1::uuid[]) order by uid for no key update", list(deployments)
        )
    if instances:
        await connection.execute(
            "select 1 from instances where id = any($1) order by id for no key update", list(instances)
        )
    if workers:
        await connection.execute(
            "select 1 from workers where id = any($1::uuid[]) order by id for share", list(workers)
        )
    if devices:
        await connection.execute(
            "select 1 from devices where uuid = any($1) order by uuid for no key update", list(devices)
        )
