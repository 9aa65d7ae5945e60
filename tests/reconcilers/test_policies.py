"""Policies on a real database: each action once, whatever happens around it, and only where all still is as it was."""

import pytest

from gpuward.controller.runtime.outcome import StaleError
from gpuward.controller.store import deployments
from gpuward.controller.store.database import Database
from gpuward.schemas.manifest import DeploymentSpec
from support.ledger import GIB, claim, rows
from support.policed import DEVICE_GIB, STOP_IDLE, Policed, settle, steady
from support.reign import Reign
from support.stale import PastDatabase, moments


@pytest.fixture
async def world(db: Database) -> Policed:
    return await Policed.make(db)


async def test_an_idle_deployment_is_stopped_once_with_its_evidence(world: Policed) -> None:
    uid = await world.deployment()
    await world.idle("d-0", value=3)
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    assert await world.intents() == [("policy", 0, [])]
    (action,) = await world.actions()
    assert (action["action"], action["dry_run"], action["gpus"], action["instances"]) == ("stop", False, 1.0, ["d-0"])
    (event,) = await rows(world.db, "select * from events")
    assert event["reason"] == "policy_stop"
    assert event["objects"] == [f"deployment:{uid}", "instance:d-0", "gpu:GPU-gpu-1-0", f"worker:{world.host.id}"]
    assert "GPU-gpu-1-0 on gpu-1: below 50 % since" in event["message"]
    evidence = event["evidence"]
    assert evidence == action["evidence"]
    gpu = evidence["gpus"][0]
    assert (gpu["worker"], gpu["highest"], gpu["samples"], gpu["coverage"]) == ("gpu-1", 3.0, 6, 1.0)
    assert gpu["series"] == [3.0] * 6
    assert (evidence["window_s"], evidence["min_gpu_utilization"], evidence["requests_seen"]) == (60, 50, 0)
    (row,) = await rows(world.db, "select acted, verdict, evidence from policy_verdicts")
    assert (row["acted"], row["verdict"]) == ("stop", "idle")


async def test_the_stop_is_the_ordinary_one_with_its_drain_time(db: Database, world: Policed) -> None:
    """U33, U35: a restart policy changes nothing; a user's start resumes it; its new epoch begins a window anew."""
    await world.deployment(restart="always", drain_time="8s")
    await world.idle("d-0")
    await settle(await world.leader())
    reign = await Reign.begin(db)
    await reign.step()
    (instance,) = await rows(db, "select phase, stop_reason from instances")
    assert (instance["phase"], instance["stop_reason"]) == ("stopping", "policy_idle")
    (order,) = await rows(db, "select payload from commands where verb = 'stop'")
    assert order["payload"] == {"drain_time_s": 8.0, "reason": "policy_idle"}
    await reign.aclose()


async def test_start_resumes_and_ends_what_was_freed(world: Policed) -> None:
    await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    assert (await world.actions())[0]["ended_at"] is None
    await deployments.start(world.db, "d")
    await settle(leader)
    assert await world.intents() == [], "it is stopped no sooner than a new window or episode allows"
    assert (await world.actions())[0]["ended_at"] is not None
    await world.write("update instances set epoch = 2, running_since = now()")
    await world.write("delete from claims")
    await claim(world.db, world.gpus["d-0"], "d-0", DEVICE_GIB * GIB, exclusive=True, epoch=2)
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("unknown", "window_not_full")}
    assert len(await world.actions()) == 1


async def test_an_unchanged_apply_clears_nothing_a_changed_one_does(world: Policed) -> None:
    uid = await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    (row,) = await rows(world.db, "select spec from deployments where uid = $1", uid)
    spec = DeploymentSpec.model_validate(row["spec"])
    await deployments.apply(world.db, "d", spec)
    assert await world.intents() == [("policy", 0, [])]
    await deployments.apply(world.db, "d", spec.model_copy(update={"priority": 7}))
    assert await world.intents() == []


async def test_u32_a_deployment_stops_only_if_all_replicas_are_idle(world: Policed) -> None:
    await world.deployment(replicas=4)
    await world.idle("d-0", "d-1", "d-2")
    await world.idle("d-3", value=95)
    leader = await world.leader()
    await settle(leader)
    assert await world.actions() == []
    assert [v for v, _ in (await world.verdicts()).values()] == ["idle", "idle", "idle", "busy"]


async def test_u32_scale_down_takes_the_idle_replica(db: Database, world: Policed) -> None:
    await world.deployment(replicas=4, utilization_policy={**STOP_IDLE, "action": "scale_down"})
    await world.idle("d-2")
    for busy in ("d-0", "d-1", "d-3"):
        await world.idle(busy, value=95)
    leader = await world.leader()
    await settle(leader)
    assert await world.intents() == [("policy", 3, ["d-2"])]
    reign = await Reign.begin(db)
    await reign.step()
    going = await rows(db, "select id, stop_reason from instances where phase = 'stopping'")
    assert [(r["id"], r["stop_reason"]) for r in going] == [("d-2", "policy_idle")]
    await reign.aclose()


async def test_scale_down_leaves_one(world: Policed) -> None:
    await world.deployment(replicas=3, utilization_policy={**STOP_IDLE, "action": "scale_down"})
    await world.idle("d-0", "d-1", "d-2")
    await settle(await world.leader())
    (intent,) = await world.intents()
    assert intent[1] == 1
    assert len(intent[2]) == 2


async def test_u32_notify_tells_of_each_replica_once(world: Policed) -> None:
    await world.deployment(replicas=2, utilization_policy={**STOP_IDLE, "action": "notify"})
    await world.idle("d-0", "d-1")
    leader = await world.leader()
    await settle(leader)
    await settle(await world.leader())
    assert await world.events() == ["policy_notify", "policy_notify"]
    assert await world.intents() == []


@pytest.mark.parametrize("action", ["stop", "scale_down", "notify"])
async def test_a_dry_run_only_tells(world: Policed, action: str) -> None:
    rule = {**STOP_IDLE, "action": action, "dry_run": True, "webhook": "http://127.0.0.1:9/hook"}
    await world.deployment(replicas=2, utilization_policy=rule)
    await world.idle("d-0", "d-1")
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    told = await world.events()
    assert set(told) == {f"policy_would_{action}"}
    assert await world.intents() == []
    actions = await world.actions()
    assert len(actions) == len(told) == len(await rows(world.db, "select 1 from webhook_deliveries"))
    assert all(a["dry_run"] and a["ended_at"] is not None for a in actions)


async def test_not_knowing_ends_no_episode_being_busy_does(world: Policed) -> None:
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


async def test_u44_who_shares_a_gpu_is_judged_by_its_own_processes(world: Policed) -> None:
    first = await world.deployment("first", replicas=0)
    second = await world.deployment("second", replicas=0)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '1')")
    gpu = world.host.gpus[0]
    await world.instance(first, "works", gpu=gpu, mib=1024)
    await world.instance(second, "sleeps", gpu=gpu, mib=2048)
    told = [["works", 1, 0, 95.0, 95.0, 0], ["sleeps", 1, 0, 0.0, 0.0, 0]]
    await world.samples("works", steady(95))
    await world.write("update samples set processes = $1", told)
    await settle(await world.leader())
    assert await world.verdicts() == {"sleeps": ("idle", "idle"), "works": ("busy", "busy")}
    (action,) = await world.actions()
    assert (action["instances"], action["gpus"]) == (["sleeps"], 0.05)


async def test_u44_where_the_driver_tells_nothing_nobody_is_stopped(world: Policed) -> None:
    uid = await world.deployment(replicas=0)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '1')")
    await world.instance(uid, "shares", mib=1024)
    await world.samples("shares", steady(0), own=None)
    await settle(await world.leader())
    assert await world.verdicts() == {"shares": ("unknown", "no_process_utilization")}


async def test_u43_the_default_applies_changes_and_ends(world: Policed) -> None:
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


async def test_a_new_leader_judges_as_the_old_one_did(world: Policed) -> None:
    """No window begins anew: what is idle is so at once; and none is shortened: an old high sample still counts."""
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


async def test_samples_that_come_wake_only_where_there_is_something_to_do(world: Policed) -> None:
    uid = await world.deployment()
    await world.samples("d-0", steady(95, newest=11))
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    assert await leader.look() == set()
    await world.samples("d-0", {1.0: 95})
    assert await leader.look() == set(), "it goes on as it was"
    await world.samples("d-0", {0.5: 0})
    assert await leader.look() == {uid}
    await settle(leader)
    assert await leader.look() == set()


async def test_samples_that_a_step_took_in_are_judged_by_the_next_look(world: Policed) -> None:
    first, second = await world.deployment("first"), await world.deployment("second")
    for name in ("first-0", "second-0"):
        await world.samples(name, steady(95, newest=11))
    leader = await world.leader()
    await settle(leader)
    await world.samples("second-0", {1.0: 0})
    await leader.step([first])
    assert await leader.look() == {second}


async def test_silence_is_noticed_without_a_sample(world: Policed) -> None:
    uid = await world.deployment()
    await world.samples("d-0", steady(0) | {11.0: 90})
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    assert leader._look_at({(uid, "d-0")}, world.now + 5) == set()
    assert leader._look_at({(uid, "d-0")}, world.now + 300) == {uid}


async def test_a_longer_window_reads_the_past_that_it_needs(world: Policed) -> None:
    """U42: a changed window counts from samples that were there before."""
    policy = await world.policy("rule", action="notify")
    await world.deployment(utilization_policy="rule")
    await world.samples("d-0", steady(0, to=2000))
    leader = await world.leader()
    await settle(leader)
    held = leader._telemetry.samples
    await world.write("update policies set generation = 2, spec = jsonb_set(spec, '{time_window}', '1800')")
    await settle(leader)
    assert leader._telemetry.samples > held + 100
    (row,) = await rows(world.db, "select verdict, policy_generation, policy_uid from policy_verdicts")
    assert (row["verdict"], row["policy_generation"], str(row["policy_uid"])) == ("idle", 2, policy)


async def test_a_deposed_leader_writes_nothing(world: Policed) -> None:
    await world.deployment()
    await world.idle("d-0")
    old = await world.leader()
    await world.leader()
    with pytest.raises(StaleError):
        await settle(old)
    assert await world.verdicts() == {}
    assert await world.actions() == []


MEANWHILE = {
    "the policy was changed": "update policies set generation = 2",
    "the policy was deleted": "delete from policies",
    "the instance was started anew": "update instances set epoch = 2 where id = 'd-0'",
    "the instance runs no more": "update instances set phase = 'backoff' where id = 'd-0'",
    "the deployment was deleted": "update deployments set deleted_at = now()",
    "the spec was changed": "update deployments set generation = 2",
    "replicas came or went": "update deployments set version = version + 1",
    "the user limits it": """insert into intents (deployment_uid, source, max_replicas)
                             select uid, 'user', 1 from deployments""",
}


@pytest.mark.parametrize("what", MEANWHILE)
async def test_what_changed_meanwhile_is_decided_anew(world: Policed, what: str) -> None:
    await world.policy("rule", action="scale_down")
    await world.deployment(replicas=2, utilization_policy="rule")
    await world.idle("d-0")
    await world.idle("d-1", value=95)
    async with moments(world.db.dsn, 1) as past:
        await past.remember()
        await world.write(MEANWHILE[what])
        with pytest.raises(StaleError):
            await settle(await world.leader(PastDatabase(world.db, past[0])))
    assert await world.actions() == []
    assert not [i for i in await world.intents() if i[0] == "policy"]


async def test_what_a_deleted_deployment_freed_ends(world: Policed) -> None:
    uid = await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    await world.write("update deployments set deleted_at = now()")
    await settle(leader)
    assert (await world.actions())[0]["ended_at"] is not None
    await world.write("update policy_actions set ended_at = null")
    await world.write("delete from claims")
    await world.write("delete from instances")
    await world.write("delete from revisions")
    await world.write("delete from deployments")
    assert uid in await leader.list_keys()
    await settle(leader)
    assert (await world.actions())[0]["ended_at"] is not None
