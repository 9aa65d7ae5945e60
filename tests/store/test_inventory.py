"""The cached inventory: reservations of a pass count until the next read of their devices."""

from controller.domain.placement import Ask, Layout, Placed
from controller.leader.placement_passes import InventoryCache
from controller.scheduling.search.place import place
from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim


async def refresh(db: Database, cache: InventoryCache) -> None:
    async with db.snapshot() as connection:
        await cache.refresh(connection)


async def commit(db: Database, uid: str, placed: Placed) -> None:
    await add_instance(db, uid, placed.instance, phase="scheduled", epoch=1)
    for one in placed.claims:
        await claim(db, one.device, placed.instance, one.memory_mib)


async def test_an_instance_that_came_and_went_between_two_reads_is_not_counted(migrated: Database) -> None:
    await add_host(migrated, "w", gpus=2)
    uid, cache = await add_deployment(migrated, "d"), InventoryCache()
    await refresh(migrated, cache)
    asks = [Ask(name, uid, (Layout(1, GIB, exclusive=False),), host_memory_mib=GIB) for name in ("goes", "stays")]
    for placed in place(cache.inventory, asks):
        assert isinstance(placed, Placed)
        await commit(migrated, uid, placed)
    assert cache.inventory.workers.instances.tolist() == [2]
    async with migrated.transaction() as connection:
        await connection.execute("delete from claims where instance_id = 'goes'")
    for _ in range(2):
        await refresh(migrated, cache)
        assert cache.inventory.workers.instances.tolist() == [1]
        on_workers, on_gpus = cache.inventory.deployment_on(uid)
        assert (list(on_workers.values()), list(on_gpus.values())) == ([1], [1])
        assert cache.inventory.workers.memory_claimed.tolist() == [GIB]
