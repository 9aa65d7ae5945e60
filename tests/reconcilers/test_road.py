"""The road of a deployment through reconcilers, placement and the ledger, with agents' reports written by hand."""

import asyncio

import pytest

from controller.domain.effects import StaleError
from controller.domain.restart_delays import RestartSettings
from controller.store.core.database import Database
from controller.store.placement.commit import PlacedStart
from support.database.ledger import GIB, add_deployment, add_host, report, rows
from support.leading.leader_term import LeaderTerm


async def sql(db: Database, statement: str, *args: object) -> None:
    async with db.transaction() as c:
        await c.execute(statement, *args)


async def one(leader_term: LeaderTerm) -> dict:
    (only,) = await leader_term.picture()
    return only


async def test_from_wanted_to_running_to_gone(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    uid = await add_deployment(db, "d", resources={"gpus": 2})
    await leader_term.settle()
    placed = await one(leader_term)
    assert placed["phase"] == "scheduled"
    assert placed["epoch"] == 1
    assert placed["orders"] == ["start1"]
    assert placed["devices"][:2] == ["GPU-w-0", "GPU-w-1"]
    await report(db, placed["id"], "running")
    await leader_term.settle()
    assert await leader_term.phases() == ["running"]
    (status,) = await rows(db, "select phase, ready from deployments")
    assert status == {"phase": "running", "ready": 1}
    (told,) = await rows(db, "select objects, subjects, evidence, actor from events where reason = 'running'")
    assert {"pending", "scheduled", "starting", "total"} <= set(told["evidence"]["durations"])
    assert [one["kind"] for one in told["subjects"]] == ["deployment", "instance", "worker"]
    await sql(db, "update deployments set deleted_at = now() where uid = $1", uid)
    await leader_term.settle()
    stopping = await one(leader_term)
    assert stopping["phase"] == "stopping"
    assert stopping["devices"] == placed["devices"]  # asked to stop is not dead
    assert stopping["orders"] == ["start1", "stop1"]
    await report(db, placed["id"], "exited", reason="stopped", code=0)
    await leader_term.settle()
    assert await leader_term.picture() == []
    assert await rows(db, "select 1 from deployments") == []
    assert await rows(db, "select 1 from devices where claims > 0 or claimed_mib > 0") == []


async def test_a_restart_in_place_takes_a_new_epoch_and_the_same_gpus(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.settle()
    before = await one(leader_term)
    await report(db, before["id"], "exited", reason="exit", code=1)
    await leader_term.settle()
    after = await one(leader_term)
    assert (after["phase"], after["epoch"]) == ("starting", 2)
    assert after["devices"] == before["devices"]
    assert after["orders"] == ["start1", "start2"]
    (claims,) = await rows(db, "select count(*) as n from claims where epoch = 2")
    assert claims["n"] == 2


async def test_the_third_failure_places_it_on_another_worker(db: Database, leader_term: LeaderTerm) -> None:
    first, second = await add_host(db, "w1"), await add_host(db, "w2")
    await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.settle()
    home = (await one(leader_term))["devices"][0]
    for _ in range(3):
        await report(db, (await one(leader_term))["id"], "exited", reason="exit", code=1)
        await leader_term.settle()
    moved = await one(leader_term)
    assert moved["epoch"] == 4
    elsewhere = second if home in first.gpus else first
    assert moved["devices"][0] in elsewhere.gpus


async def test_whole_and_shared_asks_get_distinct_gpus(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=8, gib=40)
    await add_deployment(db, "a", replicas=2, resources={"gpus": 1})
    await add_deployment(db, "b", replicas=2, resources={"gpus": 1, "gpu_memory": "36GiB"})
    await leader_term.settle()
    await leader_term.aclose()
    successor = await LeaderTerm.begin(db)
    await add_deployment(db, "c", replicas=4, resources={"gpus": 1})
    await successor.settle()
    used = [d for i in await successor.picture() for d in i["devices"] if d.startswith("GPU-")]
    assert len(used) == len(set(used)) == 8
    late = await add_deployment(db, "late", resources={"gpus": 1})
    await successor.settle()
    (waits,) = await rows(db, "select phase, reason, message from instances where deployment_uid = $1", late)
    assert waits["phase"] == "pending"
    assert waits["reason"] in ("exclusive_conflict", "need_gt_free")
    assert waits["message"].startswith("0/1 fit")
    freed = (await successor.picture())[0]["id"]
    await report(db, freed, "running")
    await sql(db, "update deployments set spec = jsonb_set(spec, '{replicas}', '1') where name = 'a'")
    await successor.settle()
    (stopping,) = await rows(db, "select id from instances where phase = 'stopping'")
    await report(db, stopping["id"], "exited", reason="stopped", code=0)
    await successor.settle()
    (waits,) = await rows(db, "select phase from instances where deployment_uid = $1", late)
    assert waits["phase"] == "scheduled"
    await successor.aclose()


async def test_a_former_leader_writes_nothing(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    await LeaderTerm.begin(db)
    with pytest.raises(StaleError):
        await leader_term.step()
    assert await leader_term.picture() == []


async def test_a_worker_cordoned_after_the_read_is_not_used(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.instances.step(list(await leader_term.instances.list_keys()))
    waiting = (await leader_term.placement._observe()).pending.instances
    placed = [d for d in leader_term.passes.decide(waiting) if isinstance(d, PlacedStart)]
    await sql(db, "update workers set cordoned = true")
    assert await leader_term.placement._commit(placed) == placed
    await leader_term.settle()
    waits = await one(leader_term)
    assert (waits["phase"], waits["reason"], waits["devices"]) == ("pending", "cordoned", [])


async def test_a_deployment_deleted_after_the_read_gets_nothing(db: Database, leader_term: LeaderTerm) -> None:
    """N1: the result is dropped and no claim remains."""
    await add_host(db, "w")
    uid = await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.instances.step([uid])
    waiting = (await leader_term.placement._observe()).pending.instances
    placed = [d for d in leader_term.passes.decide(waiting) if isinstance(d, PlacedStart)]
    await sql(db, "update deployments set deleted_at = now()")
    assert await leader_term.placement._commit(placed) == placed
    assert await rows(db, "select 1 from claims") == []
    await leader_term.settle()
    assert await rows(db, "select 1 from deployments") == []


async def test_two_deciders_one_gpu(db: Database) -> None:
    """N2: both saw the same free GPU; exactly one commit succeeds, and the other is refused."""
    await add_host(db, "w", gpus=1)
    await add_deployment(db, "d", replicas=2, resources={"gpus": 1})
    leader_term = await LeaderTerm.begin(db)
    await leader_term.instances.step(list(await leader_term.instances.list_keys()))
    other = LeaderTerm(db, leader_term.placement._term)
    plans = []
    for decider, pick in ((leader_term, 0), (other, 1)):
        waiting = (await decider.placement._observe()).pending.instances
        placed = [d for d in decider.passes.decide([waiting[pick]]) if isinstance(d, PlacedStart)]
        plans.append((decider.placement, placed))
    lost = await asyncio.gather(*(p._commit(placed) for p, placed in plans))
    assert sorted(len(starts) for starts in lost) == [0, 1]
    (device,) = await rows(db, "select claims, exclusive_claims from devices where uuid = 'GPU-w-0'")
    assert device == {"claims": 1, "exclusive_claims": 1}
    await leader_term.aclose()
    await other.aclose()


async def test_an_analysis_runs_in_a_child_and_leads_to_placement(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "d", args={"analysis_seconds": 0.2, "memory": "10GiB"})
    await leader_term.instances.step(list(await leader_term.instances.list_keys()))
    await leader_term.instances.step(list(await leader_term.instances.list_keys()))
    assert await leader_term.phases() == ["analyzing"]
    async with asyncio.timeout(20):
        while not (await one(leader_term))["devices"]:
            await leader_term.step()
            await asyncio.sleep(0.02)
    (claim,) = await rows(db, "select memory_mib, exclusive from claims where device like 'GPU-%'")
    assert claim == {"memory_mib": 10 * GIB, "exclusive": False}


async def test_deletion_cancels_the_analysis(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    uid = await add_deployment(db, "d", args={"analysis_seconds": 30, "memory": "10GiB"})
    await leader_term.instances.step([uid])
    assert leader_term.analyses.running(uid)
    await sql(db, "update deployments set deleted_at = now()")
    await leader_term.settle()
    assert not leader_term.analyses.running(uid)
    assert await rows(db, "select 1 from deployments") == []


async def test_a_silent_workers_instance_is_replaced_and_fenced(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w1")
    await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.settle()
    old = await one(leader_term)
    await report(db, old["id"], "running")
    await leader_term.settle()
    await add_host(db, "w2")
    await sql(db, "update workers set phase = 'lost' where name = 'w1'")
    await leader_term.settle()
    first, second = await leader_term.picture()
    assert (first["phase"], second["phase"]) == ("replaced", "scheduled")
    assert first["devices"] == old["devices"]
    assert second["devices"][0] == "GPU-w2-0"
    await report(db, second["id"], "running")
    await sql(db, "update workers set phase = 'ready' where name = 'w1'")
    await leader_term.settle()
    back = (await leader_term.picture())[0]
    assert (back["phase"], back["orders"]) == ("stopping", ["start1", "stop1"])
    await report(db, back["id"], "exited", reason="stopped", code=0)
    await leader_term.settle()
    assert [i["id"] for i in await leader_term.picture()] == [second["id"]]


async def test_a_backoff_is_kept(db: Database) -> None:
    leader_term = await LeaderTerm.begin(db, settings=RestartSettings(base_s=100))
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    await leader_term.settle()
    await report(db, (await one(leader_term))["id"], "exited", reason="exit", code=1)
    await leader_term.settle()
    waits = await one(leader_term)
    assert (waits["phase"], waits["epoch"]) == ("backoff", 1)
    assert waits["devices"]
    await leader_term.aclose()


async def test_ends_that_nothing_is_to_blame_for_wait_once_they_repeat(db: Database) -> None:
    """The first ones restart it at once; what the ledger keeps of its starts tells any leader how many there were."""
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    for ends in range(1, 5):
        leader_term = await LeaderTerm.begin(db, settings=RestartSettings(base_s=100))  # each end meets another leader
        await leader_term.settle()
        begun = await one(leader_term)
        assert (begun["phase"], begun["epoch"]) == ("starting" if ends > 1 else "scheduled", ends)
        await report(db, begun["id"], "exited", reason="gone")
        await leader_term.settle()
        await leader_term.aclose()
    waits = await one(leader_term)
    assert (waits["phase"], waits["epoch"], waits["reason"]) == ("backoff", 4, "ended_repeatedly")
    (stored,) = await rows(db, "select failures, restarts, not_before - phase_since as delay from instances")
    assert (stored["failures"], stored["restarts"], round(stored["delay"].total_seconds())) == (0, 4, 100)


async def test_a_stable_run_ends_the_delays(db: Database) -> None:
    leader_term = await LeaderTerm.begin(db, settings=RestartSettings(base_s=100))
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    for ends in range(1, 9):
        await leader_term.settle()
        begun = await one(leader_term)
        if ends in (3, 6):
            await sql(db, "update commands set created_at = now() - interval '301 s' where epoch = $1", ends)
        await report(db, begun["id"], "exited", reason="agent_stopped")
    await leader_term.settle()
    begun = await one(leader_term)
    assert (begun["phase"], begun["epoch"]) == ("starting", 9)
    await leader_term.aclose()


async def test_a_spec_that_this_version_cannot_run_blocks_no_other(db: Database, leader_term: LeaderTerm) -> None:
    """A spec that this version cannot run does not keep others from being placed."""
    await add_host(db, "w")
    strange = await add_deployment(db, "strange", resources={"gpus": 1})
    await add_deployment(db, "plain", resources={"gpus": 1})
    await leader_term.instances.step(sorted(await leader_term.instances.list_keys()))
    await sql(db, 'update revisions set spec = spec || \'{"engine": "warp"}\' where deployment_uid = $1', strange)
    other = LeaderTerm(db, leader_term.placement._term)  # which has not seen the spec as it was
    await other.placement.step(["all"])
    await other.aclose()
    found = await rows(
        db,
        "select d.name, i.phase, i.reason from instances i join deployments d on d.uid = i.deployment_uid order by 1",
    )
    assert found == [
        {"name": "plain", "phase": "scheduled", "reason": ""},
        {"name": "strange", "phase": "pending", "reason": "engine_unsupported"},
    ]


async def test_spread_counts_released_and_new_places(db: Database, leader_term: LeaderTerm) -> None:
    """The inventory cache follows releases and new places."""
    for name in ("w1", "w2"):
        await add_host(db, name, gpus=2)
    await add_deployment(db, "a", replicas=2, resources={"gpus": 1}, placement={"strategy": "spread"})
    await leader_term.settle()
    homes = [i["devices"][0].split("-")[1] for i in await leader_term.picture()]
    assert sorted(homes) == ["w1", "w2"]
    for instance in await leader_term.picture():
        await report(db, instance["id"], "running")
    await sql(db, "update deployments set spec = jsonb_set(spec, '{replicas}', '1') where name = 'a'")
    await leader_term.settle()
    (stopping,) = await rows(db, "select id from instances where phase = 'stopping'")
    await report(db, stopping["id"], "exited", reason="stopped", code=0)
    await leader_term.settle()
    await sql(db, "update deployments set spec = jsonb_set(spec, '{replicas}', '2') where name = 'a'")
    await leader_term.settle()
    homes = [i["devices"][0].split("-")[1] for i in await leader_term.picture()]
    assert sorted(homes) == ["w1", "w2"]
