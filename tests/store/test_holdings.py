"""Holders as read beside the inventory, and a reservation whose claim came and went between two reads."""

from controller.domain.placement import Layout, Placed, PlannedClaim
from controller.leader.placement_passes import InventoryCache
from controller.store.core.database import Database
from controller.store.placement.pass_reads import read_holders
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim


async def test_holders_are_those_of_the_same_snapshot(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=2)
    uid = await add_deployment(migrated, "d", priority=7)
    for number, phase in enumerate(("running", "stopping", "unreachable", "pending")):
        await add_instance(migrated, uid, f"i{number}", phase=phase, epoch=1)
        if phase != "pending":
            await claim(migrated, host.gpus[number % 2], f"i{number}", GIB)
    cache = InventoryCache()
    async with migrated.snapshot() as connection:
        await cache.refresh(connection)
        found = await read_holders(connection, cache.holdings)
    assert [(o.instance, o.priority, o.workers, o.gpus) for o in found.staying] == [("i0", 7, {host.id}, 0)]
    assert [o.instance for o in found.leaving] == ["i1"]


async def test_an_instance_that_ended_between_two_reads_is_not_counted(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=1)
    cache = InventoryCache()
    async with migrated.snapshot() as connection:
        await cache.refresh(connection)
    placed = Placed("brief", (host.id,), (PlannedClaim(host.gpus[0], GIB, 0, False, 0),), Layout(1, GIB, False))
    cache.inventory.begin_pass()
    cache.inventory.reserve(placed, "d")
    assert cache.inventory.workers.instances.tolist() == [1]
    async with migrated.connection() as connection:  # its claim came and went
        await connection.execute("update devices set claims = claims where kind = 'gpu'")
    async with migrated.snapshot() as connection:
        await cache.refresh(connection)
    assert cache.inventory.workers.instances.tolist() == [0]
    assert cache.inventory.gpus.claimed[0] == 0
