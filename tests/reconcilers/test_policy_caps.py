"""A cap of a policy's `scale_down` on a database: demand that lasts lifts it, and nothing else does."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from support.database.ledger import rows
from support.database.scaled_ledger import ScaledLedger, load

WINDOW_S = 60
SCALE_DOWN = {"min_gpu_utilization": 10, "time_window": WINDOW_S, "action": "scale_down"}
MUCH, LITTLE = load(30), load(1)


@pytest.fixture
async def world(db: Database) -> AsyncIterator[ScaledLedger]:
    made = await ScaledLedger.make(db, "p", "q")
    yield made
    await made.term.aclose()


async def capped(world: ScaledLedger, cap: int = 2, **fields: object) -> str:
    """A deployment that demand had raised to four replicas, of which a policy leaves some."""
    fields = {"replicas": {"min": 1, "max": 6}, "utilization_policy": SCALE_DOWN} | fields
    uid = await world.deployment(**fields)
    await world.running(uid, 2)
    await world.look(12, {uid: MUCH})
    await world.look(20, {uid: LITTLE})
    await world.policy_cap(uid, cap)
    return uid


async def caps(db: Database) -> list[int]:
    return [row["max_replicas"] for row in await rows(db, "select max_replicas from intents where source = 'policy'")]


async def test_demand_for_the_whole_window_lifts_the_cap(db: Database, world: ScaledLedger) -> None:
    uid = await capped(world)
    await world.look(15, {uid: MUCH})
    await world.look(WINDOW_S - 15, {uid: MUCH})
    assert await caps(db) == [2]
    await world.look(12, {uid: MUCH})
    assert await caps(db) == []
    reasons = [reason for reason, _ in await world.events()]
    assert reasons.count("policy_cap_lifted") == 1
    assert await world.number() == 4


async def test_a_wish_from_before_the_cap_does_not_lift_it(db: Database, world: ScaledLedger) -> None:
    """The autoscaler's number outlives the demand by its down window. It would undo each action of the policy."""
    uid = await capped(world)
    await world.look(3 * WINDOW_S, {uid: LITTLE}, every_s=4)
    assert (await world.number(), await caps(db)) == (4, [2])


async def test_a_pause_in_the_demand_does_not_begin_the_window_again(db: Database, world: ScaledLedger) -> None:
    """One peak counts for the down window, as it does for the number of replicas."""
    uid = await capped(world)
    await world.look(25, {uid: MUCH})
    await world.look(20, {uid: LITTLE})
    await world.look(25, {uid: MUCH})
    assert await caps(db) == []


async def test_demand_that_ended_counts_no_more(db: Database, world: ScaledLedger) -> None:
    uid = await capped(world, scaling={"target": 8, "down_window": 5})
    await world.look(25, {uid: MUCH})
    await world.look(40, {uid: LITTLE})
    assert await world.number() == 1
    await world.look(30, {uid: MUCH})
    assert await caps(db) == [2], "less than a window since"


async def test_unknown_demand_lifts_nothing(db: Database, world: ScaledLedger) -> None:
    uid = await capped(world)
    await world.look(20, {uid: MUCH})
    await world.look(3 * WINDOW_S, {uid: MUCH}, silent=("q",), every_s=4)
    assert await caps(db) == [2]
    await world.look(2, {uid: MUCH})
    assert await caps(db) == []


async def test_a_new_leader_goes_on_counting(db: Database, world: ScaledLedger) -> None:
    uid = await capped(world)
    await world.look(20, {uid: MUCH})
    async with db.transaction() as c:  # what the ledger's clock shows of it
        await c.execute("update outgrown_caps set since = now() - interval '50 s'")
    world.next_leader()
    await world.look(15, {uid: MUCH})
    assert await caps(db) == []


@pytest.mark.parametrize(
    ("cap", "fields"),
    [
        pytest.param(0, {}, id="a-stop"),
        pytest.param(2, {"scaling": {"target": 8, "dry_run": True}}, id="dry-run"),
    ],
)
async def test_what_demand_does_not_lift(
    db: Database, world: ScaledLedger, cap: int, fields: dict[str, object]
) -> None:
    fields = {"replicas": {"min": 1, "max": 6}, "utilization_policy": SCALE_DOWN} | fields
    uid = await world.deployment(**fields)
    await world.running(uid, 2)
    await world.policy_cap(uid, cap)
    await world.look(2 * WINDOW_S, {uid: MUCH}, every_s=2)
    assert await caps(db) == [cap]


async def test_a_cap_that_is_set_again_counts_from_then_on(db: Database, world: ScaledLedger) -> None:
    uid = await capped(world)
    await world.look(45, {uid: MUCH})
    async with db.transaction() as c:
        await c.execute("delete from outgrown_caps")
        await c.execute("update intents set created_at = now() + interval '1 s' where source = 'policy'")
    await world.look(30, {uid: MUCH})
    assert await caps(db) == [2]
    await world.look(40, {uid: MUCH})
    assert await caps(db) == []
