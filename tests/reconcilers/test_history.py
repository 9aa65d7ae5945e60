"""The leader's history: a round rolls everything up and deletes old spans; only the leader writes."""

import pytest

from controller.domain.effects import StaleError
from controller.leader.housekeeping import History
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from support.database.history import partitions, sample, span
from support.database.ledger import add_deployment, add_host, rows


async def begin(db: Database, *, keep_days: int = 14) -> History:
    async with db.transaction() as c:
        term = await c.fetchval("update lease set term = term + 1, holder = 'test' returning term")
    return History(db, term, SystemClock(), every_s=1, keep_days=keep_days)


async def test_a_round_rolls_up_and_deletes(db: Database) -> None:
    await partitions(db)
    host = await add_host(db, "w", gpus=1)
    uid = await add_deployment(db, "d")
    await span(db, host.gpus[0], "old", uid, -3 * 86400, -2 * 86400)
    await span(db, host.gpus[0], "new", uid, -600, 0)
    await sample(db, host, host.gpus[0], [(20, 5.0), (80, 5.0)])
    history = await begin(db, keep_days=1)
    await history.round()
    assert len(await rows(db, "select * from sample_minutes")) == 2
    assert [row["instance_id"] for row in await rows(db, "select * from claim_spans")] == ["new"]


async def test_before_there_are_partitions_there_is_nothing_to_do(db: Database) -> None:
    history = await begin(db)
    await history.round()
    assert await rows(db, "select * from sample_minutes") == []


async def test_a_former_leader_writes_nothing(db: Database) -> None:
    await partitions(db)
    host = await add_host(db, "w", gpus=1)
    await sample(db, host, host.gpus[0], [(10, 5.0)])
    lost_leadership = await begin(db)
    await begin(db)
    with pytest.raises(StaleError):
        await lost_leadership.round()
    assert await rows(db, "select * from sample_minutes") == []
