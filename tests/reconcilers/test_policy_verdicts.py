"""How telemetry becomes verdicts on a real database, and what wakes a step."""

import pytest

from controller.domain.telemetry.utilization import ClockLeaps
from controller.leader.policy_watch import PolicyWatch
from controller.runtime.outcome import Requeue
from controller.store.core.database import Database
from support.database.ledger import claim, rows
from support.database.policy_ledger import STOP_IDLE, WINDOW_S, Counted, PolicyLedger, settle, steady


@pytest.fixture
async def world(db: Database) -> PolicyLedger:
    return await PolicyLedger.make(db)


async def test_a_busy_verdict_ends_an_episode_and_an_unknown_one_does_not(world: PolicyLedger) -> None:
    await world.deployment(utilization_policy={**STOP_IDLE, "action": "notify"})
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    await world.write("update instances set phase = 'unhealthy'")
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("unknown", "not_running")}
    await world.write("update instances set phase = 'running'")
    await settle(leader)
    assert len(await world.actions()) == 1
    await world.samples("d-0", {0.5: 99})
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("busy", "busy")}
    await world.write("delete from samples where max = 99")
    await settle(await world.leader())
    assert len(await world.actions()) == 2


async def test_u44_an_instance_on_a_shared_gpu_is_judged_by_its_own_processes(world: PolicyLedger) -> None:
    first = await world.deployment("first", replicas=0)
    second = await world.deployment("second", replicas=0)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '1')")
    gpu = world.host.gpus[0]
    await world.instance(first, "works", gpu=gpu, mib=1024)
    await world.instance(second, "sleeps", gpu=gpu, mib=2048)
    reported = [["works", 1, 0, 95.0, 95.0, 0], ["sleeps", 1, 0, 0.0, 0.0, 0]]
    await world.samples("works", steady(95))
    await world.write("update samples set processes = $1", reported)
    await settle(await world.leader())
    assert await world.verdicts() == {"sleeps": ("idle", "idle"), "works": ("busy", "busy")}
    (action,) = await world.actions()
    assert (action["instances"], action["gpus"]) == (["sleeps"], 0.05)


async def test_u44_without_process_utilization_nothing_is_stopped(world: PolicyLedger) -> None:
    uid = await world.deployment(replicas=0)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '1')")
    await world.instance(uid, "shares", mib=1024)
    await world.samples("shares", steady(0), own=None)
    await settle(await world.leader())
    assert await world.verdicts() == {"shares": ("unknown", "no_process_utilization")}


async def test_u43_the_default_applies_changes_and_ends(world: PolicyLedger) -> None:
    await world.deployment(utilization_policy=None)
    await world.idle("d-0", value=30)
    policy = await world.policy("rule", default=True, min_gpu_utilization=20, action="notify")
    leader = await world.leader()
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("busy", "busy")}
    await world.write("update policies set generation = 2, spec = jsonb_set(spec, '{min_gpu_utilization}', '50')")
    await settle(leader)
    (event,) = await rows(world.db, "select objects, evidence from events")
    assert f"policy:{policy}" in event["objects"]
    assert event["evidence"]["policy_generation"] == 2
    await world.write("delete from policies")
    await settle(leader)
    assert await world.verdicts() == {}


async def test_a_new_leader_judges_as_the_old_one_did(world: PolicyLedger) -> None:
    """Windows continue: an idle instance is idle at once, and an old high sample still counts."""
    await world.deployment("idle")
    await world.deployment("busy", utilization_policy={**STOP_IDLE, "action": "notify"})
    await world.idle("idle-0")
    await world.samples("busy-0", steady(0) | {51.0: 90})
    old = await world.leader()
    await settle(old)
    before = await rows(world.db, "select * from policy_verdicts order by instance_id")
    new = await world.leader()
    await settle(new)
    assert await rows(world.db, "select * from policy_verdicts order by instance_id") == before
    assert [r["verdict"] for r in before] == ["busy", "idle"]
    assert len(await world.actions()) == 1


async def test_new_samples_wake_only_deployments_that_need_a_step(world: PolicyLedger) -> None:
    uid = await world.deployment()
    await world.samples("d-0", steady(95, newest=11))
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    assert await leader.watch.poll() == set()
    await world.samples("d-0", {1.0: 95})
    assert await leader.watch.poll() == set(), "it goes on as it was"
    await world.samples("d-0", {0.5: 0})
    assert await leader.watch.poll() == {uid}
    await settle(leader)
    assert await leader.watch.poll() == set()


async def test_samples_read_by_a_step_are_judged_by_the_next_look(world: PolicyLedger) -> None:
    first, second = await world.deployment("first"), await world.deployment("second")
    for name in ("first-0", "second-0"):
        await world.samples(name, steady(95, newest=11))
    leader = await world.leader()
    await settle(leader)
    await world.samples("second-0", {1.0: 0})
    await leader.step([first])
    assert await leader.watch.poll() == {second}


async def test_silence_is_noticed_without_a_sample(world: PolicyLedger) -> None:
    uid = await world.deployment()
    await world.samples("d-0", steady(0) | {11.0: 90})
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    assert await leader.watch.judge({(uid, "d-0")}, world.now + 5) == set()
    assert await leader.watch.judge({(uid, "d-0")}, world.now + 300) == {uid}


async def test_a_longer_window_reads_the_past_that_it_needs(world: PolicyLedger) -> None:
    """U42: a changed window uses existing samples."""
    policy = await world.policy("rule", action="notify")
    await world.deployment(utilization_policy="rule")
    await world.samples("d-0", steady(0, to=2000))
    leader = await world.leader()
    await settle(leader)
    held = leader.watch._telemetry.samples
    await world.write("update policies set generation = 2, spec = jsonb_set(spec, '{time_window}', '1800')")
    await settle(leader)
    assert leader.watch._telemetry.samples > held + 100
    await world.write("update policies set spec = jsonb_set(spec, '{time_window}', '30')")
    await settle(leader)
    await world.samples("d-0", {0.5: 0})
    await settle(leader)
    for _ in range(2):  # the first keeps what may not be judged yet
        leader.watch._telemetry.trim()
    assert leader.watch._telemetry.samples < held + 100, "what no window needs is forgotten"
    await world.write("update policies set spec = jsonb_set(spec, '{time_window}', '1800')")
    await settle(leader)
    assert leader.watch._telemetry.samples > held + 100
    (row,) = await rows(world.db, "select verdict, policy_generation, policy_uid from policy_verdicts")
    assert (row["verdict"], row["policy_generation"], str(row["policy_uid"])) == ("idle", 2, policy)


async def test_the_past_is_read_in_portions_between_looks(world: PolicyLedger) -> None:
    """An instance whose past is not read yet is not judged."""
    uids = [await world.deployment(name) for name in ("first", "second")]
    leader = await world.leader()
    await settle(leader)
    for name in ("first-0", "second-0"):
        await world.write("update instances set epoch = 2 where id = $1", name)
        await world.write("delete from claims where instance_id = $1", name)
        await claim(world.db, world.gpus[name], name, 1024, epoch=2)
        await world.samples(name, steady(0), own=0.0, epoch=2)
    leader.watch._max_past_s = 0.0
    outcomes = await leader.step(uids)
    assert sorted(type(o).__name__ for o in outcomes.values()) == ["Done", "Requeue"]
    assert len(await world.actions()) == 1
    await world.samples("first-0", {0.5: 0}, own=0.0, epoch=2)
    await world.samples("second-0", {0.5: 0}, own=0.0, epoch=2)
    assert len(await leader.watch.poll()) <= 1
    await leader.step([uid for uid, o in outcomes.items() if isinstance(o, Requeue)])
    assert len(await world.actions()) == 2


async def test_u50_what_the_databases_clock_leapt_over_was_not_lived_through(world: PolicyLedger) -> None:
    """Even where a policy requires as little coverage as it may."""
    rule = {"min_gpu_utilization": 50, "time_window": WINDOW_S, "min_coverage": 0.5}
    uid = await world.deployment(utilization_policy=rule)
    await world.samples("d-0", steady(0))
    leader = await world.leader()
    await settle(leader)
    await leader.watch.poll()
    clocks = leader.watch._clocks
    assert clocks is not None
    # An hour passed on the database's clock, half a minute on ours.
    leader.watch._clocks = (clocks[0] - 3570, *clocks[1:])
    await leader.watch.poll()
    ((_, leapt_s),) = leader.watch._telemetry.leaps.forward
    assert 3565 < leapt_s <= 3570
    await leader.step([uid])
    assert (await world.verdicts())["d-0"] == ("unknown", "window_not_full")


@pytest.mark.parametrize("leaders", [1, 2])
async def test_u50_a_new_leader_knows_of_a_leap_within_the_window(world: PolicyLedger, leaders: int) -> None:
    rule = {"min_gpu_utilization": 50, "time_window": WINDOW_S, "min_coverage": 0.1}
    uid = await world.deployment(utilization_policy=rule)
    await world.samples("d-0", steady(0))
    seconds = [5000.0]
    watch = PolicyWatch(world.db, Counted(), monotonic=lambda: seconds[0])
    await watch.poll()
    seconds[0] -= 3570  # so much more passed on the database's clock
    await watch.poll()
    for _ in range(leaders):
        leader = await world.leader()
        await leader.step([uid])
        await leader.watch.poll()
    assert (await world.verdicts())["d-0"] == ("unknown", "window_not_full")
    assert await world.actions() == []


async def test_a_new_leader_knows_that_time_came_twice(world: PolicyLedger) -> None:
    uid = await world.deployment(utilization_policy={**STOP_IDLE, "action": "notify"})
    seconds = [5000.0]
    watch = PolicyWatch(world.db, Counted(), monotonic=lambda: seconds[0])
    await watch.poll()
    seconds[0] += 3600
    await watch.poll()
    await world.write("update clock_leaps set seen_at = seen_at - interval '1 min'")  # as if a minute had passed
    await world.samples("d-0", steady(0))
    await (await world.leader()).step([uid])
    assert (await world.verdicts())["d-0"] == ("unknown", "coverage")


async def test_leaps_are_kept_within_a_bound(world: PolicyLedger) -> None:
    seconds = [1e9]
    watch = PolicyWatch(world.db, Counted(), monotonic=lambda: seconds[0])
    for _ in range(250):
        seconds[0] -= 3600
        await watch.poll()
    (row,) = await rows(world.db, "select count(*) as n from clock_leaps")
    assert row["n"] <= 200


async def test_u47_the_requests_of_the_whole_window_count(world: PolicyLedger) -> None:
    await world.deployment()
    await world.samples("d-0", {age: value for age, value in steady(0).items() if age != 41.0})
    await world.samples("d-0", {41.0: 0.0}, requests=3)
    leader = await world.leader()
    await settle(leader)
    assert (await world.verdicts())["d-0"] == ("busy", "requests")
    assert await world.actions() == []


async def test_samples_from_before_the_clock_was_set_back_fill_no_gap(world: PolicyLedger) -> None:
    uid = await world.deployment(utilization_policy={**STOP_IDLE, "action": "notify"})
    await world.samples("d-0", steady(0, newest=51))
    leader = await world.leader()
    await settle(leader)
    await leader.watch.poll()
    clocks = leader.watch._clocks
    assert clocks is not None
    leader.watch._clocks = (clocks[0] + 3600, *clocks[1:])
    await leader.watch.poll()
    ((since, until),) = leader.watch._telemetry.leaps.back
    assert 3595 < until - since <= 3605
    await world.samples("d-0", steady(0, newest=1, to=31))
    leader.watch._telemetry.leaps = ClockLeaps(back=((since - 40, until),))  # as if 40 s had passed since
    await leader.step([uid])
    assert (await world.verdicts())["d-0"] == ("unknown", "coverage")
    leader.watch._telemetry.leaps = ClockLeaps()
    await leader.step([uid])
    assert (await world.verdicts())["d-0"] == ("idle", "idle")
