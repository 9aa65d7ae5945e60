"""A site for rollouts: the reconcilers of one term, a real database, and processes that obey at once."""

from typing import Any

from controller.domain.effects import StaleError
from controller.store.core.database import Database
from schemas.manifest.deployment import DeploymentSpec
from support.database.ledger import rows
from support.leading.leader_term import LeaderTerm

ROLLOUT: dict[str, Any] = {"ready_for": "0s"}


def chat(seconds: float = 0.01, **fields: Any) -> DeploymentSpec:
    base = {"engine": "simulated", "replicas": 2, "update": "rolling", "rollout": ROLLOUT, "resources": {"gpus": 1},
            "args": {"load_seconds": seconds}}  # fmt: skip
    return DeploymentSpec.model_validate(base | fields)


class Site:
    """One host whose processes run as soon as they are commanded to, and end as soon as they are stopped."""

    def __init__(self, db: Database, term: LeaderTerm) -> None:
        self.db, self.term = db, term
        self.bad: set[int] = set()

    async def agents(self) -> None:
        async with self.db.transaction() as c:
            await c.execute(
                """insert into processes (instance_id, epoch, rank, worker_id, session, state, seq, reason, exit_code)
                   select o.instance_id, o.epoch, o.rank, o.worker_id, 1,
                          case when i.revision = any($1::bigint[]) then 'exited' else 'running' end, 1,
                          case when i.revision = any($1::bigint[]) then 'exit' end,
                          case when i.revision = any($1::bigint[]) then 1 end
                     from commands o join instances i on i.id = o.instance_id and i.epoch = o.epoch
                    where o.verb = 'start' and o.state = 'open'
                   on conflict do nothing""",
                sorted(self.bad),
            )
            await c.execute(
                """update processes p set state = 'exited', reason = 'stopped', exit_code = 0
                     from commands o where o.verb = 'stop' and o.instance_id = p.instance_id and o.epoch = p.epoch"""
            )
            await c.execute("update commands set state = 'accepted', sent_at = now() where state = 'open'")

    async def play(self, steps: int = 12, term: LeaderTerm | None = None) -> None:
        for _ in range(steps):
            try:
                await (term or self.term).step()
            except StaleError:
                continue
            await self.agents()

    async def running(self) -> list[tuple[int, str]]:
        found = await rows(self.db, "select revision, phase from instances order by revision, phase")
        return [(row["revision"], row["phase"]) for row in found]

    async def rollout(self) -> dict[str, Any]:
        (row,) = await rows(self.db, "select * from rollouts")
        return row

    async def pass_by(self, seconds: float) -> None:
        """All instances have been in their phases for so much longer."""
        async with self.db.transaction() as c:
            await c.execute("update instances set phase_since = phase_since - make_interval(secs => $1)", seconds)
        await self.play(4)
