"""A GPU is cut into other slices while one of them is claimed (MIG): claims stay with what is gone, nothing moves."""

from rig.agent_messages import gpu, hello, inventory
from schemas.wire import InventoryChanged, ReportedGpu
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually

WHOLE = gpu("GPU-a", 80, mig_mode=True)


def slices(gib: int, *names: str) -> list[ReportedGpu]:
    return [WHOLE, *(gpu(f"MIG-{name}", gib, parent="GPU-a") for name in names)]


async def test_new_slices_can_be_claimed_and_a_claimed_one_that_is_gone_is_unhealthy(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await hub.connect(first=hello(slices(20, "1", "2")))
    uid = await add_deployment(hub.database, "d")
    for name in ("d-1", "d-2"):
        await add_instance(hub.database, uid, name, phase="running", epoch=1)
    await claim(hub.database, "MIG-1", "d-1", 1024)
    await connection.send(InventoryChanged(inventory=inventory(slices(40, "3"))))
    await eventually(lambda: hub.value("select count(*) from devices where uuid = 'MIG-3'"), "the new slice is known")
    found = await hub.database.pool.fetch(
        """select uuid, present, health, health_reason, memory_mib, claims from devices
           where uuid like 'MIG%' and (present or claims > 0) order by uuid"""
    )
    assert [tuple(row) for row in found] == [
        ("MIG-1", False, "unhealthy", "missing", 20 * 1024, 1),
        ("MIG-3", True, "ok", "", 40 * 1024, 0),
    ]
    await claim(hub.database, "MIG-3", "d-2", 1024)
    assert await hub.value("select string_agg(device, ' ' order by device) from claims") == "MIG-1 MIG-3"
    assert await hub.value("select count(*) from events where reason = 'gpu_missing'") >= 1
