"""The time of a start leaves out what nothing lived through: no controller ran, or its host was suspended."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from controller.runtime.clock import SystemClock
from controller.runtime.metrics import Metrics
from controller.settings import ControllerSettings
from controller.store.core.database import Database
from controller.term import Leading, Term
from support.database.ledger import add_deployment, add_instance, rows
from support.database.policy_ledger import PolicyLedger

NIGHT_S = 9 * 3600.0
LIMIT_S = 20.0


async def begun(db: Database, phase: str, ago_s: float) -> None:
    """An instance that came to that phase so long ago."""
    await add_instance(db, await add_deployment(db, "d", utilization_policy="none"), "d-1", phase=phase, epoch=1)
    async with db.transaction() as connection:
        await connection.execute(
            """update instances set phase_since = clock_timestamp() - make_interval(secs => $1),
                                    start_phase_since = clock_timestamp() - make_interval(secs => $1)""",
            ago_s,
        )


async def spent_s(db: Database) -> float:
    """How long the start has taken, as its story will count it."""
    (row,) = await rows(
        db,
        """select coalesce((select sum(value::float8) from jsonb_each_text(start_phases)), 0)
                  + coalesce(extract(epoch from clock_timestamp() - start_phase_since), 0)::float8 as s
             from instances""",
    )
    return float(row["s"])


async def led_before(db: Database, ago_s: float | None) -> None:
    """The last leader ended so long ago; None: there was none, or it is unknown."""
    async with db.transaction() as connection:
        await connection.execute("delete from audit_results")
        if ago_s is not None:
            await connection.execute(
                "insert into audit_results values ('claims', 0, clock_timestamp() - make_interval(secs => $1))", ago_s
            )


async def lead_briefly(db: Database) -> None:
    """Begins a term, with all of its loops, and ends it once they run."""
    async with db.transaction() as c:
        term = await c.fetchval("update lease set term = term + 1, holder = 'test' returning term")
    metrics = Metrics(CollectorRegistry())
    leader = Leading(lambda number: Term(db, number, SystemClock(), metrics, ControllerSettings(), lambda: 0.0))
    task = asyncio.create_task(leader.lead(term))
    try:
        async with asyncio.timeout(LIMIT_S):
            while not any(one.get_name() == "housekeeping" for one in asyncio.all_tasks()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world(db: Database) -> PolicyLedger:
    return await PolicyLedger.make(db)


@pytest.mark.parametrize(
    ("led_ago_s", "least_s", "most_s"),
    [
        (NIGHT_S, 1800, 1800 + 130),  # half an hour before the night, and at most two audits
        (NIGHT_S + 7200, 0, 130),  # it came after all that is known
        (30.0, NIGHT_S + 1800, NIGHT_S + 1830),  # a leader ran all the time
        (None, NIGHT_S + 1800, NIGHT_S + 1830),
    ],
)
async def test_a_start_does_not_count_a_night_without_a_controller(
    db: Database, led_ago_s: float | None, least_s: float, most_s: float
) -> None:
    await begun(db, "pending", NIGHT_S + 1800)
    await led_before(db, led_ago_s)
    await lead_briefly(db)
    assert least_s <= await spent_s(db) <= most_s


async def test_a_host_that_was_suspended_was_not_starting(world: PolicyLedger) -> None:
    await begun(world.db, "starting", NIGHT_S + 60)
    leader = await world.leader()
    await leader.watch.poll()
    clocks = leader.watch._clocks
    assert clocks is not None
    leader.watch._clocks = (clocks[0] - NIGHT_S, *clocks[1:])  # of the database, which went on
    await leader.watch.poll()
    assert 50 <= await spent_s(world.db) <= 80
