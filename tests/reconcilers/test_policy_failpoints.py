"""Crashes around a policy's action: whichever await fails, it is taken and reported once."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from controller.reconcilers import policies
from controller.runtime import lease
from controller.store.core import events, guards
from controller.store.core.database import Database
from controller.store.policies import effective as effective_policy
from controller.store.policies import effects as policy_writes
from controller.store.policies import observe as policy_watch
from controller.store.telemetry import samples as sample_reads
from support.database.ledger import rows
from support.database.policy_ledger import STOP_IDLE, PolicyLedger, settle
from support.leading.awaits import Awaits
from support.leading.failpoints import FailingDatabase, Failpoints, Kind
from support.leading.handover import PASSING

AWAITS = Awaits((policies, policy_watch, policy_writes, effective_policy, sample_reads, events, guards, lease))
STEP_LIMIT_S = 30.0


@pytest.fixture
async def admin(db: Database) -> AsyncIterator["asyncpg.Pool[asyncpg.Record]"]:
    """Connections without injected faults."""
    async with asyncpg.create_pool(db.dsn, min_size=1, max_size=2) as pool:
        yield pool


async def step(world: PolicyLedger, database: Database, points: Failpoints) -> bool:
    """One step of a new leader, as the loop would run it; returns whether it succeeded."""
    leader = await world.leader(database)

    async def limited() -> None:
        async with asyncio.timeout(STEP_LIMIT_S) as points.deadline:
            await settle(leader)

    task = asyncio.create_task(limited(), name="step")
    await asyncio.wait({task})
    if task.cancelled():
        return False
    error = task.exception()
    if error is not None and not isinstance(error, PASSING):
        raise error
    return error is None


@pytest.mark.parametrize("kind", list(Kind))
async def test_an_action_is_taken_once_whatever_fails(
    db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind
) -> None:
    """Each await fails once; after each a new leader takes over with nothing but the rows."""
    struck: set[str] = set()

    def wants(here: tuple[str, ...]) -> bool:
        fresh = not struck.issuperset(here)
        struck.update(here)
        return fresh

    points = Failpoints(AWAITS, kind, wants)
    database = FailingDatabase(db, points, admin)
    world = await PolicyLedger.make(db)
    await world.deployment(utilization_policy={**STOP_IDLE, "webhook": "http://127.0.0.1:9/hook"})
    await world.deployment("freed")
    await world.idle("d-0", "freed-0")
    failures = 0
    while not await step(world, database, points):
        failures += 1
        assert failures < 200, points.struck
    assert failures > 20
    assert {"policies.effects._act[1]", "reconcilers.policies.PoliciesReconciler._apply[0] exit"} <= struck
    assert len(await world.actions()) == 2
    assert await world.events() == ["policy_stop", "policy_stop"]
    assert len(await rows(db, "select 1 from webhook_deliveries")) == 1
    assert [i[:2] for i in await world.intents()] == [("policy", 0), ("policy", 0)]
