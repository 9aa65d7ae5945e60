"""The autoscaler on a real database: what gateways report becomes a number, once, with its evidence."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from controller.api.resources.metrics import figures_text
from controller.decide.scaling.decide import decide_scaling
from controller.decide.scaling.history import ScalingHistory
from controller.domain.effects import StaleError
from controller.domain.scaling import ScalingView, Wish
from controller.leader import scaling_watch
from controller.runtime import tasks as time_slice
from controller.runtime.clock import SystemClock
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.deployments.observe import observe
from controller.store.scaling import effects
from controller.store.scaling.gateways import forget_gateway
from controller.store.views.deployments import deployment_by_name
from controller.store.views.metrics import read_figures
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import rows
from support.database.scaled_ledger import ScaledLedger, load


@pytest.fixture
async def world(db: Database) -> AsyncIterator[ScaledLedger]:
    made = await ScaledLedger.make(db, "p", "q")
    yield made
    await made.term.aclose()


async def test_demand_adds_and_the_down_window_removes(world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(20)})
    assert await world.number() == 3
    await world.look(280, {uid: load(1)}, every_s=4)
    assert await world.number() == 3
    await world.look(40, {uid: load(1)}, every_s=4)
    assert await world.number() == 1
    assert [(e["old"], e["new"]) for _, e in await world.events()] in ([(1, 3), (3, 1)], [(1, 3), (3, 2), (2, 1)])


async def test_g34_a_silent_gateway_keeps_everything_and_a_condition_names_it(
    db: Database, world: ScaledLedger
) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(20)})
    await world.look(400, {uid: load(0)}, silent=("q",), every_s=4)
    assert await world.number() == 3
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    (condition,) = [c for c in view.status.conditions if c.type == "DemandKnown"]
    assert (condition.status, condition.reason) == ("false", "demand_unknown")
    assert "gateway q does not report" in condition.message
    async with db.snapshot() as c:
        assert (await read_figures(c)).silent_gateways == 1
    await world.gateways[1].leave()
    world.gateways.pop()
    await world.look(301, every_s=4)
    assert await world.number() == 1, "a gateway that leaves is not missed"


async def test_of_running_replicas_the_least_busy_one_stops(db: Database, world: ScaledLedger) -> None:
    """As the gateways report: the oldest is idle, so the newest one stays."""
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 3)
    busy = [replace(load(3), replicas={"chat-1": 2, "chat-2": 1}), replace(load(2), replicas={"chat-2": 2})]
    await world.look(12, {uid: load(20)})
    for gateway, told in zip(world.gateways, busy, strict=True):
        await gateway.report({uid: told})
    async with db.snapshot() as c:
        facts = (await observe(c, [uid]))[uid]
    assert {i.id: i.requests for i in facts.instances} == {"chat-0": 0, "chat-1": 2, "chat-2": 3}
    async with db.transaction() as c:
        await c.execute("update gateways set seen_at = now() - interval '20 s' where name = 'q'")
        await c.execute(
            "insert into engine_loads (instance_id, epoch, requests, requests_at) values ('chat-2', 1, 3, now())"
        )
    async with db.snapshot() as c:
        facts = (await observe(c, [uid]))[uid]
    assert {i.id: (i.requests, i.seen_requests) for i in facts.instances} == {
        "chat-0": (0, 0),
        "chat-1": (2, 0),
        "chat-2": (1, 3),
    }


async def test_an_operators_word_ends_the_unknown_at_once(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(20)})
    await world.look(400, {uid: load(0)}, silent=("q",), every_s=4)
    assert await world.number() == 3
    async with db.transaction() as c:
        await c.execute("update gateways set seen_at = now() - interval '1 min' where name = 'q'")
    await forget_gateway(db, "q")
    await world.look(0, silent=("q",))
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert [c.status for c in view.status.conditions if c.type == "DemandKnown"] == ["true"]
    await world.look(301, silent=("q",), every_s=4)
    assert await world.number() == 1
    await world.look(0)
    assert [r["name"] for r in await rows(db, "select name from gateways order by 1")] == ["p", "q"], "it is back"


async def test_a_gateway_that_starts_again_takes_the_place_of_its_predecessor(
    db: Database, world: ScaledLedger
) -> None:
    uid = await world.deployment()
    await world.look(0, {uid: load(5)})
    again = type(world.gateways[0])(db, "p")
    world.gateways[0] = again
    await world.look(0)
    assert len(await rows(db, "select 1 from gateways")) == 3, "the earlier one may still serve"
    async with db.transaction() as c:
        await c.execute("update gateways set seen_at = now() - interval '6 s' where beat = 1 and id <> $1", again.id)
    await world.look(0)
    assert [r["name"] for r in await rows(db, "select name from gateways order by name")] == ["p", "q"]
    assert await rows(db, "select * from gateway_demand") == [], "what the earlier process had is gone"


async def test_g41_a_new_leader_keeps_the_number(world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(40)})
    assert await world.number() == 5
    world.next_leader()
    await world.look(280, {uid: load(1)}, every_s=4)
    assert await world.number() == 5
    await world.look(40, {uid: load(1)}, every_s=4)
    assert await world.number() == 1


async def test_g42_a_policys_cap_holds_and_the_wish_stays(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(30)})
    await world.policy_cap(uid, 2)
    await world.look(3, {uid: load(30)})
    assert await world.number() == 4
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert view.status.wanted == 2
    assert view.status.scaling is not None
    assert view.status.scaling.number == 4
    assert view.status.scaling.capped_by == "policy"
    async with db.snapshot() as c:
        figures = await read_figures(c)
    assert (figures.wanted, figures.withheld, figures.silent_gateways) == ({("chat", "false"): 4}, {"chat": 2}, 0)
    text = figures_text(figures, leading=True, version="1").decode()
    assert 'gpuward_autoscaler_wanted_replicas{deployment="chat",dry_run="false"} 4.0' in text
    assert 'gpuward_autoscaler_withheld_replicas{deployment="chat"} 2.0' in text


async def test_dry_run_only_shows_its_number(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6}, scaling={"target": 8, "dry_run": True})
    await world.running(uid, 1)
    await world.look(12, {uid: load(24)})
    assert await world.number() is None
    assert [reason for reason, _ in await world.events()] == ["autoscaler_would_scale"]
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    assert view.status.scaling is not None
    assert (view.status.scaling.number, view.status.scaling.dry_run, view.status.wanted) == (3, True, 1)


async def test_a_number_rests_on_what_was_read(
    db: Database, world: ScaledLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    carry_out = effects.carry_out_scaling

    async def late(connection: object, steps: object) -> None:
        await verbs.scale(db, "chat", 1, 2)
        await carry_out(connection, steps)  # type: ignore[arg-type]  # passed on

    await world.look(11, {uid: load(8)})
    monkeypatch.setattr("controller.reconcilers.scaling.carry_out_scaling", late)
    with pytest.raises(StaleError):
        await world.look(12, {uid: load(40)})
    assert await world.number() is None


async def test_a_deployment_with_a_fixed_number_is_forgotten(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(12, {uid: load(24)})
    await apply_spec(
        db, "chat", DeploymentSpec.model_validate({"engine": "simulated", "replicas": 2, "resources": {"gpus": 1}})
    )
    await world.step_all()
    assert await world.number() is None
    assert await rows(db, "select * from scaling_status") == []


def ranged(low: int, high: int, **fields: object) -> DeploymentSpec:
    replicas = low if low == high else {"min": low, "max": high}
    return DeploymentSpec.model_validate(
        {"engine": "simulated", "replicas": replicas, "resources": {"gpus": 1}, "scaling": {"target": 8}, **fields}
    )


async def wanted(db: Database) -> tuple[int, str]:
    async with db.connection() as c:
        status = (await deployment_by_name(c, "chat")).status
    return status.wanted, status.phase


async def test_a_manifest_that_gets_a_range_stops_no_busy_replica(db: Database, world: ScaledLedger) -> None:
    """3, then 0 to 3: it goes on with three until it knows better. Asleep, then 3 again: all three run at once."""
    uid = await world.deployment(replicas=3)
    await world.running(uid, 3)
    await apply_spec(db, "chat", ranged(0, 3))
    assert await wanted(db) == (3, "pending")
    await world.look(3, {uid: load(1)})
    assert await world.number() == 3
    await world.look(1300, {uid: load(0)}, every_s=4)
    await world.term.settle()
    assert await world.number() == 0
    assert (await wanted(db))[0] == 0
    await apply_spec(db, "chat", ranged(3, 3))
    await world.step_all()
    assert (await wanted(db))[0] == 3
    assert await world.number() is None
    assert await rows(db, "select * from scaling_status") == []
    await apply_spec(db, "chat", ranged(0, 2))
    assert (await wanted(db))[0] == 2, "within the new bounds"


async def test_a_stopped_manifest_that_gets_a_range_begins_at_its_min(db: Database, world: ScaledLedger) -> None:
    await world.deployment(replicas=3)
    await verbs.stop(db, "chat")
    await apply_spec(db, "chat", ranged(0, 3))
    assert (await wanted(db))[0] == 0


async def test_the_end_of_a_dry_run_begins_with_what_runs(db: Database, world: ScaledLedger) -> None:
    """A number from before the dry run is of the past."""
    uid = await world.deployment()
    await world.gateways[0].wake(uid)
    await world.look(1, {uid: load(waiting=40)})
    assert await world.number() == 5
    await apply_spec(db, "chat", ranged(0, 6, scaling={"target": 8, "dry_run": True}))
    assert (await wanted(db))[0] == 1
    await apply_spec(db, "chat", ranged(0, 6))
    assert (await wanted(db))[0] == 1


async def test_evidence_and_graph_are_shown(db: Database, world: ScaledLedger) -> None:
    uid = await world.deployment(replicas={"min": 1, "max": 6})
    await world.running(uid, 1)
    await world.look(40, {uid: replace(load(20), waiting=4)})
    async with db.connection() as c:
        view = await deployment_by_name(c, "chat")
    shown = view.status.scaling
    assert shown is not None
    assert (shown.number, shown.min, shown.max, shown.reason) == (3, 1, 6, "steady")
    assert shown.evidence["demand_mean"] == 20
    assert shown.evidence["graph"][0] == 20


async def test_a_look_decides_once_for_each_and_a_step_for_its_own(
    world: ScaledLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = [await world.deployment(name) for name in ("a", "b", "c")]
    await world.look(2)
    decided, turns = [], []

    def decide(view: ScalingView, history: ScalingHistory, now: float) -> Wish:
        decided.append(view)
        asyncio.get_running_loop().call_soon(turns.append, len(decided))
        return decide_scaling(view, history, now)

    monkeypatch.setattr(scaling_watch, "decide_scaling", decide)
    monkeypatch.setattr(time_slice, "_SLICE_S", 0.0)
    await world.gateways[0].report({uids[0]: load(waiting=3)})
    assert await world.watch.poll() == {uids[0]}
    assert len(decided) == 3
    assert turns[:2] == [1, 2], "others have their turn between two of them"
    await world.autoscaler.step(uids[:1])
    assert len(decided) == 4
    assert await world.number("a") == 1
    for _ in range(2):  # also that the request waits no longer
        decided.clear()
        await world.watch.poll(woken_only=True)
        assert decided == []
        await world.gateways[0].wake(uids[1])
        await world.watch.poll(woken_only=True)
        await world.gateways[0].withdraw(uids[1])
        await world.watch.poll(woken_only=True)
        assert [view.wakes for view in decided] == [1, 0]


async def test_wakes_without_end_do_not_keep_others_from_a_poll(
    world: ScaledLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.deployment()
    await world.look(1)
    monkeypatch.setattr(scaling_watch, "POLL_S", 0.1)
    polls: list[bool] = []
    poll = world.watch.poll

    async def polled(*, woken_only: bool = False) -> set[str]:
        polls.append(woken_only)
        world.watch.poke()
        return await poll(woken_only=woken_only)

    monkeypatch.setattr(world.watch, "poll", polled)
    running = asyncio.create_task(world.watch.run(SystemClock(), lambda _: None))
    async with asyncio.timeout(20):
        while polls.count(False) < 3 or polls.count(True) < 3:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
