"""Crashes around the autoscaler's numbers: whichever await fails, each wake and each sleep happens once.

A request that comes at that moment wakes the model, or finds it awake.
"""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from controller.leader.scaling_watch import ScalingWatch
from controller.reconcilers import scaling
from controller.reconcilers.scaling import ScalingReconciler
from controller.runtime import lease
from controller.store.core import events, guards
from controller.store.core.database import Database
from controller.store.scaling import effects as scaling_writes
from controller.store.scaling import observe as scaling_reads
from support.database.ledger import rows
from support.database.scaled_ledger import ScaledLedger, load
from support.leading.awaits import Awaits
from support.leading.failpoints import FailingDatabase, Failpoints, Kind
from support.leading.handover import PASSING

AWAITS = Awaits((scaling, scaling_reads, scaling_writes, events, guards, lease))
STEP_LIMIT_S = 30.0
IDLE_S = 5


@pytest.fixture
async def admin(db: Database) -> AsyncIterator["asyncpg.Pool[asyncpg.Record]"]:
    """Connections without injected faults."""
    async with asyncpg.create_pool(db.dsn, min_size=1, max_size=2) as pool:
        yield pool


@pytest.fixture
async def world(db: Database) -> AsyncIterator[ScaledLedger]:
    made = await ScaledLedger.make(db, "p")
    yield made
    await made.term.aclose()


async def step(world: ScaledLedger, database: Database, points: Failpoints) -> bool:
    """One step of the leader, as the loop would run it; after a failure another leader follows."""
    watch = world.watch
    leader = ScalingReconciler(database, world.autoscaler._term, watch)

    async def limited() -> None:
        async with asyncio.timeout(STEP_LIMIT_S) as points.deadline:
            await leader.step(sorted(await leader.list_keys()))

    task = asyncio.create_task(limited(), name="step")
    await asyncio.wait({task})
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PASSING):
        raise error
    if points.kind.deadly and (task.cancelled() or error is not None):
        world.watch = ScalingWatch(world.db, monotonic=world.clock)
        world.autoscaler = ScalingReconciler(world.db, world.autoscaler._term, world.watch)
    return not task.cancelled() and error is None


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_wake_and_a_sleep_happen_once_whatever_fails(
    db: Database, world: ScaledLedger, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind
) -> None:
    struck: set[str] = set()

    def wants(here: tuple[str, ...]) -> bool:
        fresh = not struck.issuperset(here)
        struck.update(here)
        return fresh

    points = Failpoints(AWAITS, kind, wants)
    database = FailingDatabase(db, points, admin)
    uid = await world.deployment(scaling={"target": 8, "idle_after": IDLE_S, "down_window": IDLE_S})
    await world.look(1)
    failures = 0

    async def until(number: int) -> None:
        nonlocal failures
        for _ in range(300):
            world.clock.now += 1
            await world.gateways[0].report()
            failures += not await step(world, database, points)
            if await world.number() == number:
                return
        raise AssertionError(f"never {number}: {points.struck}")

    await world.gateways[0].wake(uid, "first")
    await world.gateways[0].report({uid: load(waiting=3)})
    await until(1)
    await world.gateways[0].withdraw(uid)
    await world.gateways[0].report({uid: load()})
    await world.running(uid, 1)
    await until(0)
    assert failures > 10, struck
    assert [reason for reason, _ in await world.events()] == ["woken", "asleep"]
    (intent,) = await rows(db, "select source, min_replicas, max_replicas from intents")
    assert tuple(intent.values()) == ("autoscaler", 0, 0)


async def test_a_request_that_comes_while_the_sleep_is_written_wakes_it_again(
    world: ScaledLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision rests on what was read before. The next look, which the wake itself asks for, ends the sleep."""
    uid = await world.deployment(scaling={"target": 8, "idle_after": IDLE_S, "down_window": IDLE_S})
    await world.gateways[0].wake(uid)
    await world.look(1, {uid: load(waiting=1)})
    await world.gateways[0].withdraw(uid)
    await world.running(uid, 1)
    carry_out = scaling_writes.carry_out_scaling
    slept: list[int] = []

    async def late(connection: object, steps: object) -> None:
        if any(one.wish.number == 0 for one in steps):  # type: ignore[attr-defined]  # steps
            slept.append(1)
            await world.gateways[0].wake(uid, "late")
            await world.gateways[0].report({uid: load(waiting=1)})
        await carry_out(connection, steps)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr("controller.reconcilers.scaling.carry_out_scaling", late)
    for _ in range(3 * IDLE_S):
        await world.look(1, {uid: load()} if not slept else None)
        if slept:
            break
    assert slept
    await world.step_all()
    assert await world.number() == 1
    found = await world.events()
    assert [reason for reason, _ in found] == ["woken", "asleep", "woken"]
    assert found[-1][1]["request_id"] == "late"
