"""A new instance is placed in the transaction that creates it while no other instance is pending."""

from controller.reconcilers.placement import EVERYTHING
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, rows
from support.leading.leader_term import LeaderTerm

_WRITTEN = """
    select xmin::text from instances union select xmin::text from claims union select xmin::text from commands"""


async def step_instances(leader_term: LeaderTerm) -> None:
    await leader_term.instances.step(sorted(await leader_term.instances.list_keys()))


async def phases(db: Database) -> dict[str, str]:
    query = "select d.name, i.phase from instances i join deployments d on d.uid = i.deployment_uid"
    return {row["name"]: row["phase"] for row in await rows(db, query)}


async def test_instance_claims_and_start_command_share_one_commit(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await leader_term.placement.step([EVERYTHING])
    await add_deployment(db, "d", replicas=2, resources={"gpus": 2})
    await step_instances(leader_term)
    placed = await leader_term.picture()
    assert [(p["phase"], p["epoch"], p["orders"]) for p in placed] == [("scheduled", 1, ["start1"])] * 2
    assert sorted(d for p in placed for d in p["devices"] if "GPU" in d) == [f"GPU-w-{n}" for n in range(4)]
    commits = await rows(db, _WRITTEN)
    assert len(commits) == 1


async def test_before_the_first_full_pass_nothing_is_placed_directly(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "d", resources={"gpus": 1})
    await step_instances(leader_term)
    assert await leader_term.phases() == ["pending"]


async def test_a_pending_instance_comes_before_a_new_one(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w")
    await add_deployment(db, "huge", resources={"gpus": 9})
    await leader_term.settle()
    await add_deployment(db, "d", resources={"gpus": 1})
    await step_instances(leader_term)
    assert await phases(db) == {"huge": "pending", "d": "pending"}
    await leader_term.placement.step([EVERYTHING])
    assert await phases(db) == {"huge": "pending", "d": "scheduled"}


async def test_new_instances_of_one_step_are_placed_by_priority(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=1)
    await leader_term.placement.step([EVERYTHING])
    await add_deployment(db, "low", priority=10, resources={"gpus": 1})
    await add_deployment(db, "high", priority=20, resources={"gpus": 1})
    await step_instances(leader_term)
    assert await phases(db) == {"high": "scheduled", "low": "pending"}
    await leader_term.settle()
    (waits,) = await rows(db, "select reason from instances where phase = 'pending'")
    assert waits == {"reason": "exclusive_conflict"}


async def test_a_new_instance_that_loses_its_place_stays_pending(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w1", gpus=1)
    await leader_term.placement.step([EVERYTHING])
    async with db.connection() as connection:
        await connection.execute("update workers set cordoned = true")
    await add_host(db, "w2", gpus=1)
    await add_deployment(db, "d", resources={"gpus": 1})
    await step_instances(leader_term)
    assert await leader_term.phases() == ["pending"]
    await leader_term.placement.step([EVERYTHING])
    (only,) = await leader_term.picture()
    assert only["devices"][0] == "GPU-w2-0"


PRESSED = """update workers set conditions = '[{"type": "DiskPressure", "status": "true"}]' where name = $1"""


async def test_a_disk_that_fills_meanwhile_takes_nothing(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w1", gpus=1)
    await leader_term.placement.step([EVERYTHING])
    async with db.connection() as connection:
        await connection.execute(PRESSED, "w1")
    await add_deployment(db, "d", resources={"gpus": 1})
    await step_instances(leader_term)
    assert await leader_term.phases() == ["pending"]
    await leader_term.placement.step([EVERYTHING])
    (explain,) = [row["explain"] for row in await rows(db, "select explain from instances")]
    assert explain["rejected"] == {"disk_pressure": 1}
    await add_host(db, "w2", gpus=1)
    await leader_term.placement.step([EVERYTHING])
    (only,) = await leader_term.picture()
    assert only["devices"][0] == "GPU-w2-0"


async def test_the_next_pass_knows_directly_placed_instances(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=3)
    await leader_term.placement.step([EVERYTHING])
    for n in range(4):
        await add_deployment(db, f"d{n}", resources={"gpus": 1})
        await step_instances(leader_term)
    assert sorted((await phases(db)).values()) == ["pending", "scheduled", "scheduled", "scheduled"]
    await leader_term.settle()
    assert (await rows(db, "select count(*) as n from claims where memory_mib > 0")) == [{"n": 3}]
