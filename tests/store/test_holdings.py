"""Who holds what, as it is kept up to date; and what was reserved for somebody who never came to hold it."""

from typing import Any

from controller.domain.holdings import Holdings
from controller.domain.placement import Layout, Placed, PlannedClaim
from controller.leader.inventory_cache import InventoryCache
from controller.store.core.database import Database
from controller.store.placement.holders import read_holders
from support.ledger import GIB, add_deployment, add_host, add_instance, claim


def row(instance: str, device: str, rank: int = 0, mib: int = GIB) -> dict[str, Any]:
    return {
        "instance_id": instance, "deployment_uid": "d", "device": device, "worker_id": device[0], "kind": "gpu",
        "memory_mib": mib, "cpu_milli": 0, "exclusive": False, "position": 0, "rank": rank,
    }  # fmt: skip


def test_of_a_gang_that_lets_go_rank_by_rank_the_rest_is_kept() -> None:
    holdings = Holdings()
    list(holdings.take_over(["a/0", "b/0"], [row("gang", "a/0"), row("gang", "b/0", 1)]))
    ((instance, left),) = holdings.take_over(["b/0"], [])
    assert (instance, left and set(left.by_device), left and left.workers) == ("gang", {"a/0"}, {"a"})
    assert list(holdings.take_over(["b/0"], [])) == [], "and nothing is told twice"
    assert list(holdings.take_over(["a/0"], [])) == [("gang", None)]
    assert holdings.get("gang") is None


def test_who_comes_back_to_the_same_gpu_for_more_holds_more() -> None:
    holdings = Holdings()
    list(holdings.take_over(["a/0"], [row("one", "a/0")]))
    ((_, now),) = holdings.take_over(["a/0"], [row("one", "a/0", mib=2 * GIB)])
    assert now is not None
    assert [c.memory_mib for c in now.claims] == [2 * GIB]


async def test_occupants_are_those_of_the_moment(migrated: Database) -> None:
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
        without = await read_holders(connection, cache.holdings, without=[uid])
    assert [(o.instance, o.priority, o.workers, o.gpus) for o in found.staying] == [("i0", 7, {host.id}, 0)]
    assert [o.instance for o in found.leaving] == ["i1"]
    assert (without.staying, without.leaving) == ((), ())


async def test_who_was_placed_and_is_gone_before_anybody_looked_counts_nowhere(migrated: Database) -> None:
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
