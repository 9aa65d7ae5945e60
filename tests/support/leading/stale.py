"""Earlier states: open snapshots of PostgreSQL, and a database whose reads see one of them."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from controller.domain.effects import StaleError
from controller.store.core.database import Database, prepare_connection
from controller.store.deployments.observe import list_uids
from support.leading.leader_term import NoMetrics
from support.leading.lifecycle import Crew


class Moments:
    """The last moments, newest first. Each is a connection with its own REPEATABLE READ transaction."""

    def __init__(self, pool: "asyncpg.Pool[Any]", kept: int) -> None:
        self._pool = pool
        self._kept = kept
        self._moments: deque[tuple[Any, Any]] = deque()

    def __len__(self) -> int:
        return len(self._moments)

    def __getitem__(self, lag: int) -> Any:
        return self._moments[lag][0]

    async def remember(self) -> None:
        """Keeps this moment; the oldest goes where there are too many."""
        if len(self._moments) >= self._kept:
            await self._forget(*self._moments.pop())
        connection = await self._pool.acquire(timeout=10)
        transaction = connection.transaction(isolation="repeatable_read", readonly=True)
        await transaction.start()
        await connection.execute("select 1 from lease")  # the snapshot is taken with the first statement
        self._moments.appendleft((connection, transaction))

    async def forget_all(self) -> None:
        """Ends every transaction."""
        while self._moments:
            await self._forget(*self._moments.pop())

    async def _forget(self, connection: Any, transaction: Any) -> None:
        await transaction.rollback()
        await self._pool.release(connection)


@asynccontextmanager
async def moments(dsn: str, kept: int) -> AsyncIterator[Moments]:
    """Connections for so many moments."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=kept, init=prepare_connection) as pool:
        found = Moments(pool, kept)
        try:
            yield found
        finally:
            await found.forget_all()


class PastDatabase(Database):
    """Reads see an earlier moment, writes happen now: as with a reconciler that was delayed in between."""

    def __init__(self, database: Database, moment: Any) -> None:
        super().__init__(database.dsn, database.pool)
        self._orm = database._orm
        self._moment = moment

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Any]:
        yield self._moment


class _Losses(NoMetrics):
    """Placements that were abandoned because something had changed."""

    lost = 0

    def placed(self, outcome: str, n: int) -> None:
        if outcome == "lost":
            self.lost += n


async def act_on(database: Database, moment: Any, term: int) -> list[str]:
    """Runs reconcilers of this term on an earlier moment; returns those that lost a guard."""
    crew = Crew(PastDatabase(database, moment), term)
    crew.passes._metrics = losses = _Losses()
    lost: list[str] = []
    try:
        await crew.step_workers()
    except StaleError:
        lost.append("workers")
    lost += ["instances"] * await _step_instances(crew, moment)
    await crew.step_placement()
    lost += ["placement"] * losses.lost
    await crew.aclose()
    return lost


async def _step_instances(crew: Crew, moment: Any) -> int:
    """Deployment by deployment, as the loop does after a failed batch: so one lost guard hides no other."""
    lost = 0
    for uid in await list_uids(moment):
        try:
            await crew.instances.step([uid])
        except StaleError:
            lost += 1
    return lost
