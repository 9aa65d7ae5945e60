"""During relocations the freed capacity and the replacements' places stay reserved."""

from typing import Any

from controller.store.core.database import Database
from controller.store.deployments.relocations import NewRelocation, begin_relocations, request_relocations
from support.database.ledger import Host, add_deployment, add_host, report, rows
from support.leading.leader_term import LeaderTerm


async def run(db: Database, leader_term: LeaderTerm, name: str, host: Host) -> str:
    await add_deployment(db, name, resources={"gpus": 1}, placement={"gpus": [host.gpus[0]]})
    await leader_term.settle()
    (one,) = await phases(db, name)
    await report(db, one["id"], "running")
    await leader_term.settle()
    return str(one["id"])


async def phases(db: Database, name: str) -> list[dict[str, Any]]:
    return await rows(
        db,
        """select i.id, i.phase, i.reason, i.message, i.deployment_uid::text as uid from instances i
             join deployments d on d.uid = i.deployment_uid where d.name = $1 order by i.created_at""",
        name,
    )


async def begin(db: Database) -> None:
    async with db.transaction() as connection:
        await begin_relocations(connection, at_once=1)


async def test_new_instances_take_neither_reservations_nor_places(db: Database, leader_term: LeaderTerm) -> None:
    first, second, third = [await add_host(db, name, gpus=2) for name in ("w1", "w2", "w3")]
    olds = [await run(db, leader_term, name, host) for name, host in (("a", first), ("b", second), ("c", third))]
    await add_deployment(db, "big", resources={"gpus": 4, "max_workers": 2}, parallel={"tp": 2, "pp": 2})
    await add_host(db, "w4", gpus=1)
    await add_deployment(db, "filler", resources={"gpus": 1}, placement={"workers": ["w4"]})
    await leader_term.settle()
    (big,) = await phases(db, "big")
    assert big["phase"] == "pending"
    # `b` goes to w3; `a` goes to w4 as soon as that is over, which is when `filler` has gone.
    rooms = {big["id"]: (("w1", "w2"), (*first.gpus, *second.gpus))}
    uids = {name: (await phases(db, name))[0]["uid"] for name in ("a", "b", "filler")}
    async with db.connection() as connection:
        await connection.execute("update deployments set deleted_at = now() where name = 'filler'")
    await leader_term.settle()
    await request_relocations(
        db,
        [
            NewRelocation(olds[1], uids["b"], 1, ("w3",), (third.gpus[1],), "big", rooms),
            NewRelocation(olds[0], uids["a"], 1, ("w4",), ("GPU-w4-0",), "big", rooms),
        ],
    )
    await begin(db)
    for number in range(3):
        await add_deployment(db, f"small{number}", resources={"gpus": 1})
        await leader_term.settle()
        (small,) = await phases(db, f"small{number}")
        assert (small["phase"], small["reason"]) == ("pending", "reserved"), small["message"]
    (big,) = await phases(db, "big")
    assert "relocations free capacity for it on w1, w2" in big["message"]
    for name, old in (("b", olds[1]), ("a", olds[0])):
        await leader_term.settle()
        _, copy = await phases(db, name)
        assert copy["phase"] == "scheduled", copy["message"]
        await report(db, copy["id"], "running")
        await leader_term.settle()
        await report(db, old, "exited", reason="stopped", code=0)
        await leader_term.settle()
        await begin(db)
    (big,) = await phases(db, "big")
    assert big["phase"] == "scheduled"
    held = await rows(db, "select device from claims where instance_id = $1 and memory_mib > 0 order by 1", big["id"])
    assert [row["device"] for row in held] == [*first.gpus, *second.gpus]
