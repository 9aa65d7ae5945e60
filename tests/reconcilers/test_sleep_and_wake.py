"""Sleeps and wakes on a real database: each happens once, and names the request, policy or user behind it."""

from collections.abc import AsyncIterator

import pytest

from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.views.deployments import deployment_by_name
from support.database.ledger import add_instance, rows
from support.database.scaled_ledger import ScaledLedger, load


@pytest.fixture
async def world(db: Database) -> AsyncIterator[ScaledLedger]:
    made = await ScaledLedger.make(db, "p", "q")
    yield made
    await made.term.aclose()


async def test_a_new_deployment_with_min_0_is_asleep(db: Database, world: ScaledLedger) -> None:
    await world.deployment()
    await world.look(2)
    await world.term.settle()
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert (view.status.phase, view.status.wanted, await world.number()) == ("asleep", 0, None)
    assert await rows(db, "select * from instances") == []


async def test_g27_a_wake_on_both_gateways_starts_once_and_names_the_first_request(world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 0, "max": 1})
    await world.look(2)
    await world.gateways[1].wake(uid, "first")
    await world.gateways[0].wake(uid, "second")
    await world.look(3, {uid: load(waiting=50)})
    assert await world.number() == 1
    ((reason, evidence),) = await world.events()
    assert (reason, evidence["request_id"], evidence["old"], evidence["new"]) == ("woken", "first", 0, 1)
    await world.term.settle()
    assert len(await world.term.phases()) == 1


async def test_a_wake_hint_is_sent_once(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment()
    heard: list[str] = []
    listener = await db.listen_connection()
    await listener.add_listener("gpuward", lambda *args: heard.append(args[3]))
    await world.gateways[0].report()
    for n in range(3):
        await world.gateways[0].wake(uid, f"request-{n}")
    await world.gateways[0].withdraw(uid)
    await world.gateways[0].withdraw(uid)
    await listener.execute("select 1")
    await listener.close()
    assert heard == [f"wake {uid}"] * 2, "one for the wake and one for its end"
    assert await rows(db, "select * from wakes") == []


async def test_g29_a_withdrawn_wake_starts_nothing(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment()
    await world.look(1)
    await world.gateways[0].wake(uid)
    await world.look(1)
    assert await world.number() == 1
    await world.gateways[0].withdraw(uid)
    await world.look(1)
    assert await world.number() == 0
    assert [reason for reason, _ in await world.events()] == ["woken", "wake_withdrawn"]
    await world.term.settle()
    assert await rows(db, "select * from instances") == []


async def test_g31_the_wish_to_run_outlives_the_refused_request(db: Database, world: ScaledLedger) -> None:
    """The gateway refuses and withdraws nothing; the wake ends by itself."""
    uid = await world.deployment()
    await world.look(1)
    await world.gateways[0].wake(uid)
    await world.look(30)
    assert await world.number() == 1
    async with db.transaction() as c:
        await c.execute("update wakes set expires_at = now()")
    await world.look(1)
    assert await world.number() == 0


async def test_g31_a_model_that_does_not_start_tries_no_more_once_its_clients_are_gone(
    db: Database, world: ScaledLedger
) -> None:
    uid = await world.deployment()
    await world.look(1)
    await world.gateways[0].wake(uid)
    await world.look(1)
    await add_instance(db, uid, "chat-0", phase="backoff", epoch=1)
    await world.step_all()
    await world.look(30)
    assert await world.number() == 1, "as long as the wish lasts"
    async with db.transaction() as c:
        await c.execute("update wakes set expires_at = now()")
    await world.look(1)
    assert await world.number() == 0
    assert [reason for reason, _ in await world.events()] == ["woken", "wake_withdrawn"]


async def test_g35_a_policys_stop_of_a_deployment_with_min_0_is_a_sleep_that_a_request_ends(
    db: Database, world: ScaledLedger
) -> None:
    uid = await world.deployment()
    await world.gateways[0].wake(uid)
    await world.look(2)
    assert await world.number() == 1
    await world.gateways[0].withdraw(uid)
    await world.policy_cap(uid, 0)
    await world.look(2)
    await world.term.settle()
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert (view.status.phase, view.status.reason) == ("asleep", "policy_idle")
    assert await world.number() == 0
    await world.gateways[0].wake(uid, "again")
    await world.look(1, {uid: load(waiting=1)})
    await world.term.settle()
    assert await world.number() == 1
    assert [r["source"] for r in await rows(db, "select source from intents")] == ["autoscaler"]
    assert len(await world.term.phases()) == 1


async def test_g35_a_users_stop_does_not_end_by_a_request(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment()
    await verbs.stop(db, "chat")
    await world.gateways[0].wake(uid)
    await world.look(2)
    await world.term.settle()
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert (view.status.phase, view.status.wanted) == ("stopped", 0)


async def test_g35_an_operators_wake_holds_it_for_its_time(db: Database, world: ScaledLedger) -> None:
    await world.deployment(scaling={"target": 8, "idle_after": 5, "down_window": 5})
    await world.look(10)
    view = await verbs.wake(db, "chat", 7200)
    assert view.status.wanted == 0
    await world.look(60)
    assert await world.number() == 1
    assert (await world.status())["reason"] == "kept_awake"
    async with db.transaction() as c:
        await c.execute("update wakes set expires_at = now()")
    await world.term.step()
    await rows(db, "select 1")
    async with db.transaction() as c:
        await c.execute("update instances set phase = 'running'")
    await world.step_all()
    await world.look(8)
    assert await world.number() == 0
