"""Policies on a real database: each action once, and only on the state that it was decided on."""

from datetime import datetime
from typing import Any

import pytest

from controller.api.resources.metrics import figures_text
from controller.domain.effects import StaleError
from controller.runtime.outcome import Requeue
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.views.metrics import INLINE, Figures, read_figures
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, report, rows
from support.database.policy_ledger import DEVICE_GIB, STOP_IDLE, PolicyLedger, settle
from support.leading.leader_term import LeaderTerm
from support.leading.stale import PastDatabase, moments


@pytest.fixture
async def world(db: Database) -> PolicyLedger:
    return await PolicyLedger.make(db)


async def test_an_idle_deployment_is_stopped_once_with_its_evidence(world: PolicyLedger) -> None:
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


async def test_a_policys_stop_is_drained_like_any_other(db: Database, world: PolicyLedger) -> None:
    """U33, U35: `restart` changes nothing; a user's start resumes it; the new epoch begins a new window."""
    await world.deployment(restart="always", drain_time="8s")
    await world.idle("d-0")
    await settle(await world.leader())
    leader_term = await LeaderTerm.begin(db)
    await leader_term.step()
    (instance,) = await rows(db, "select phase, stop_reason from instances")
    assert (instance["phase"], instance["stop_reason"]) == ("stopping", "policy_idle")
    (order,) = await rows(db, "select payload from commands where verb = 'stop'")
    assert order["payload"] == {"drain_time_s": 8.0, "reason": "policy_idle"}
    await leader_term.aclose()


async def test_a_start_resumes_and_ends_the_action(world: PolicyLedger) -> None:
    await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    assert (await world.actions())[0]["ended_at"] is None
    await verbs.start(world.db, "d")
    await settle(leader)
    assert await world.intents() == [], "it is stopped no sooner than a new window or episode allows"
    assert (await world.actions())[0]["ended_at"] is not None
    await world.write("update instances set epoch = 2, running_since = now()")
    await world.write("delete from claims")
    await claim(world.db, world.gpus["d-0"], "d-0", DEVICE_GIB * GIB, exclusive=True, epoch=2)
    await settle(leader)
    assert await world.verdicts() == {"d-0": ("unknown", "window_not_full")}
    assert len(await world.actions()) == 1


async def test_a_changed_apply_clears_the_intent_and_an_unchanged_one_does_not(world: PolicyLedger) -> None:
    uid = await world.deployment()
    await world.idle("d-0")
    leader = await world.leader()
    await settle(leader)
    (row,) = await rows(world.db, "select spec from deployments where uid = $1", uid)
    spec = DeploymentSpec.model_validate(row["spec"])
    await apply_spec(world.db, "d", spec)
    assert await world.intents() == [("policy", 0, [])]
    await apply_spec(world.db, "d", spec.model_copy(update={"priority": 7}))
    assert await world.intents() == []


async def test_u32_a_deployment_stops_only_if_all_replicas_are_idle(world: PolicyLedger) -> None:
    await world.deployment(replicas=4)
    await world.idle("d-0", "d-1", "d-2")
    await world.idle("d-3", value=95)
    leader = await world.leader()
    await settle(leader)
    assert await world.actions() == []
    assert [v for v, _ in (await world.verdicts()).values()] == ["idle", "idle", "idle", "busy"]


async def test_u32_scale_down_stops_the_idle_replica(db: Database, world: PolicyLedger) -> None:
    await world.deployment(replicas=4, utilization_policy={**STOP_IDLE, "action": "scale_down"})
    await world.idle("d-2")
    for busy in ("d-0", "d-1", "d-3"):
        await world.idle(busy, value=95)
    leader = await world.leader()
    await settle(leader)
    assert await world.intents() == [("policy", 3, ["d-2"])]
    leader_term = await LeaderTerm.begin(db)
    await leader_term.step()
    going = await rows(db, "select id, stop_reason from instances where phase = 'stopping'")
    assert [(r["id"], r["stop_reason"]) for r in going] == [("d-2", "policy_idle")]
    await leader_term.aclose()


async def test_scale_down_keeps_one_replica(world: PolicyLedger) -> None:
    await world.deployment(replicas=3, utilization_policy={**STOP_IDLE, "action": "scale_down"})
    await world.idle("d-0", "d-1", "d-2")
    await settle(await world.leader())
    (intent,) = await world.intents()
    assert intent[1] == 1
    assert len(intent[2]) == 2


async def test_u32_notify_reports_each_replica_once(world: PolicyLedger) -> None:
    await world.deployment(replicas=2, utilization_policy={**STOP_IDLE, "action": "notify"})
    await world.idle("d-0", "d-1")
    leader = await world.leader()
    await settle(leader)
    await settle(await world.leader())
    assert await world.events() == ["policy_notify", "policy_notify"]
    assert await world.intents() == []


@pytest.mark.parametrize("action", ["stop", "scale_down", "notify"])
async def test_a_dry_run_only_reports(world: PolicyLedger, action: str) -> None:
    rule = {**STOP_IDLE, "action": action, "dry_run": True, "webhook": "http://127.0.0.1:9/hook"}
    await world.deployment(replicas=2, utilization_policy=rule)
    await world.idle("d-0", "d-1")
    leader = await world.leader()
    await settle(leader)
    await settle(leader)
    reported = await world.events()
    assert set(reported) == {f"policy_would_{action}"}
    assert await world.intents() == []
    actions = await world.actions()
    assert len(actions) == len(reported) == len(await rows(world.db, "select 1 from webhook_deliveries"))
    assert all(a["dry_run"] and a["ended_at"] is not None for a in actions)


async def test_a_former_leader_writes_nothing(world: PolicyLedger) -> None:
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
async def test_a_change_in_between_is_decided_anew(world: PolicyLedger, what: str) -> None:
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


async def test_a_deletion_ends_the_action(world: PolicyLedger) -> None:
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


async def test_freed_gpu_seconds_are_read_from_the_actions(world: PolicyLedger) -> None:
    """From the action until the GPUs are wanted again; a dry run frees nothing."""
    await world.deployment(replicas=2)
    await world.idle("d-0", "d-1")
    await world.deployment("reported", utilization_policy={**STOP_IDLE, "dry_run": True})
    await world.idle("reported-0")
    await settle(await world.leader())
    await world.write("update policy_actions set at = at - interval '100 s', ended_at = at - interval '50 s'")
    async with world.db.snapshot() as connection:
        assert (await read_figures(connection)).freed_gpu_s == {INLINE: pytest.approx(100)}
    text = figures_text(Figures({}, {}, {}, {}, {"rule": 12.5}), leading=True, version="1").decode()
    assert 'gpuward_policy_gpu_seconds_freed_total{policy="rule"} 12.5' in text


async def test_running_since_belongs_to_the_current_epoch(db: Database) -> None:
    """An unhealthy spell keeps it; a new epoch begins without."""
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    leader_term = await LeaderTerm.begin(db)

    async def after(state: str, **fields: Any) -> datetime | None:
        (instance,) = await rows(db, "select id from instances")
        await report(db, instance["id"], state, **fields)
        await leader_term.settle()
        (row,) = await rows(db, "select running_since from instances")
        return row["running_since"]

    await leader_term.settle()
    assert await after("starting") is None
    since = await after("running")
    assert since is not None
    assert [await after("unhealthy"), await after("running")] == [since, since]
    assert await after("exited", reason="exit", code=1) is None
    anew = await after("running")
    assert anew is not None
    assert anew > since
    await leader_term.aclose()


async def keep_awake(world: PolicyLedger, uid: str, for_s: float) -> None:
    await world.write(
        """insert into wakes (deployment_uid, source, expires_at)
           values ($1, 'user', now() + make_interval(secs => $2))
           on conflict (deployment_uid, source) do update set expires_at = excluded.expires_at""",
        uid,
        for_s,
    )


async def test_what_an_operator_keeps_awake_is_stopped_only_afterwards(world: PolicyLedger) -> None:
    uid = await world.deployment(replicas=1)
    await world.idle("d-0")
    await keep_awake(world, uid, 600)
    leader = await world.leader()
    for _ in range(3):
        outcome = (await leader.step([uid]))[uid]
    assert await world.verdicts() == {"d-0": ("idle", "idle")}
    assert (await world.intents(), await world.actions()) == ([], [])
    assert isinstance(outcome, Requeue), "no sample announces the end of the wake"
    assert 590 < outcome.after_s <= 600
    await keep_awake(world, uid, 0)
    await leader.step([uid])
    assert await world.intents() == [("policy", 0, [])]


async def test_a_wake_that_comes_during_a_step_prevents_its_stop(world: PolicyLedger) -> None:
    uid = await world.deployment()
    await world.idle("d-0")
    async with moments(world.db.dsn, 1) as past:
        await past.remember()
        await keep_awake(world, uid, 600)
        with pytest.raises(StaleError):
            await settle(await world.leader(PastDatabase(world.db, past[0])))
    assert (await world.intents(), await world.actions()) == ([], [])


async def test_scale_down_frees_nothing_for_its_own_pending_replicas(db: Database, world: PolicyLedger) -> None:
    uid = await world.deployment(replicas=2, utilization_policy={**STOP_IDLE, "action": "scale_down"})
    await world.write(
        "update deployments set spec = jsonb_set(spec, '{replicas}', '4'), generation = generation + 1 where uid = $1",
        uid,
    )
    for n in (2, 3):
        await add_instance(db, uid, f"d-{n}", phase="pending", epoch=0)
    await world.idle("d-0", "d-1")
    await (await world.leader()).step([uid])
    ((_, cap, victims),) = await world.intents()
    assert (cap, len(victims)) == (1, 1)


async def test_replicas_without_a_place_do_not_keep_a_deployment_from_its_stop(
    db: Database, world: PolicyLedger
) -> None:
    uid = await world.deployment(replicas=1)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '2') where uid = $1", uid)
    await add_instance(db, uid, "d-1", phase="pending", epoch=0)
    await world.idle("d-0")
    await (await world.leader()).step([uid])
    assert await world.intents() == [("policy", 0, [])]
