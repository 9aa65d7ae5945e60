"""The order of placement; claims are never given twice, whatever the order and the leader."""

from itertools import permutations

import pytest

from controller.reconcilers.placement import EVERYTHING
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, add_revision, report, rows
from support.leading.leader_term import LeaderTerm

_GPUS = "select device, exclusive from claims where device like 'GPU-%' order by device"
ASKS = {
    "count": {"replicas": 1, "resources": {"gpus": 2}},
    "memory": {"replicas": 2, "resources": {"gpus": 1, "gpu_memory": "36GiB"}},
    "whole": {"replicas": 1, "resources": {"gpus": 4, "gpu_memory": "all"}},
}


@pytest.mark.parametrize("order", list(permutations(ASKS)), ids=" ".join)
async def test_two_two_and_four_take_eight_gpus(db: Database, order: tuple[str, ...]) -> None:
    """N9: in every order of arrival, another leader with empty caches before each."""
    await add_host(db, "w", gpus=8)
    for name in order:
        leader_term = await LeaderTerm.begin(db)
        await add_deployment(db, name, **ASKS[name])
        await leader_term.settle()
        await leader_term.aclose()
    held = await rows(db, _GPUS)
    assert [row["device"] for row in held] == [f"GPU-w-{n}" for n in range(8)]
    assert sorted(row["exclusive"] for row in held) == [False] * 2 + [True] * 6
    assert await rows(db, "select 1 from instances where phase <> 'scheduled'") == []


async def test_an_unreadable_gpu_is_not_claimed(db: Database, leader_term: LeaderTerm) -> None:
    """N7: unknown is not empty: running instances stay, and no new one is placed there."""
    await add_host(db, "w", gpus=2)
    await add_deployment(db, "first", resources={"gpus": 1})
    await leader_term.settle()
    (one,) = await leader_term.picture()
    await report(db, one["id"], "running")
    async with db.connection() as connection:
        await connection.execute("update workers set gpus_known = false")
        await connection.execute("update devices set health = 'unknown' where kind = 'gpu'")
    await add_deployment(db, "second", resources={"gpus": 1})
    await leader_term.settle()
    assert [(i["phase"], i["reason"]) for i in await leader_term.picture()] == [
        ("running", ""),
        ("pending", "not_ready"),
    ]


async def test_priority_comes_before_age(db: Database, leader_term: LeaderTerm) -> None:
    """N4: of the pending instances the oldest of the highest priority that fits."""
    await add_host(db, "w", gpus=2)
    await add_deployment(db, "holder", resources={"gpus": 2})
    await leader_term.settle()
    for name, priority, gpus in (
        ("low", 10, 1),
        ("huge", 90, 3),
        ("older", 50, 1),
        ("younger", 50, 1),
        ("last", 50, 1),
    ):
        await add_deployment(db, name, priority=priority, resources={"gpus": gpus})
        await leader_term.settle()
    async with db.connection() as connection:
        await connection.execute("update deployments set deleted_at = now() where name = 'holder'")
    await leader_term.settle()
    held = await rows(
        db, "select d.name from instances i join deployments d on d.uid = i.deployment_uid where i.phase = 'scheduled'"
    )
    assert sorted(row["name"] for row in held) == ["older", "younger"]


async def test_a_lower_priority_takes_nothing_that_a_higher_one_could_have_with_what_stops_already(
    db: Database, leader_term: LeaderTerm
) -> None:
    """Without preemption and without a long wait."""
    await add_host(db, "w", gpus=2)
    await add_deployment(db, "holder", resources={"gpus": 1})
    await leader_term.settle()
    (holder,) = await leader_term.picture()
    await report(db, holder["id"], "running")
    await add_deployment(db, "high", priority=500, resources={"gpus": 2})
    await leader_term.settle()
    async with db.connection() as connection:
        await connection.execute("update deployments set deleted_at = now() where name = 'holder'")
    await leader_term.settle()
    await add_deployment(db, "low", priority=10, resources={"gpus": 1})
    await leader_term.settle()
    assert [(one["phase"], one["reason"]) for one in await leader_term.picture()] == [
        ("stopping", "deleted"), ("pending", "exclusive_conflict"), ("pending", "reserved"),
    ]  # fmt: skip
    await report(db, holder["id"], "exited", reason="stopped", code=0)
    await leader_term.settle()
    assert await leader_term.phases() == ["scheduled", "pending"]


@pytest.mark.parametrize(("priority", "replicas", "reserved"), [(10, 1, True), (900, 1, False), (10, 0, False)])
async def test_a_rollout_keeps_its_turn_while_the_outdated_instance_stops(
    db: Database, leader_term: LeaderTerm, priority: int, replicas: int, reserved: bool
) -> None:
    """Its successor, which is not created yet, needs both GPUs. Not so if nothing succeeds the outdated instance."""
    await add_host(db, "w", gpus=2)
    uid = await add_deployment(db, "high", priority=500, resources={"gpus": 1})
    await leader_term.settle()
    (old,) = await leader_term.picture()
    await report(db, old["id"], "running")
    await leader_term.settle()
    await add_revision(db, uid, 2, priority=500, resources={"gpus": 2}, replicas=replicas)
    for _ in range(3):  # no placement pass comes before the step that creates the other one
        await leader_term.instances.step([uid])
    await add_deployment(db, "low", priority=priority, resources={"gpus": 1})
    await leader_term.settle()
    low = (await leader_term.picture())[-1]
    assert (low["phase"], low["reason"]) == (("pending", "reserved") if reserved else ("scheduled", ""))
    await report(db, old["id"], "exited", reason="stopped", code=0)
    await leader_term.settle()
    held = await rows(
        db, "select d.name from instances i join deployments d on d.uid = i.deployment_uid where i.phase = 'scheduled'"
    )
    assert [row["name"] for row in held] == ["high" if reserved else "low"]


async def test_a_successor_whose_spec_this_version_cannot_run_disturbs_no_pass(
    db: Database, leader_term: LeaderTerm
) -> None:
    await add_host(db, "w", gpus=2)
    uid = await add_deployment(db, "high", priority=500, resources={"gpus": 1})
    await leader_term.settle()
    (old,) = await leader_term.picture()
    await report(db, old["id"], "running")
    await leader_term.settle()
    await add_revision(db, uid, 2, priority=500, resources={"gpus": 2})
    for _ in range(3):
        await leader_term.instances.step([uid])
    assert await leader_term.phases() == ["stopping"]
    async with db.connection() as connection:
        await connection.execute(
            """update revisions set spec = spec || '{"strange": 1}' where deployment_uid = $1 and generation = 2""", uid
        )
    low = await add_deployment(db, "low", priority=10, resources={"gpus": 1})
    for _ in range(3):
        await leader_term.instances.step([low])
        await leader_term.placement.step([EVERYTHING])
    assert await leader_term.phases() == ["stopping", "scheduled"]
