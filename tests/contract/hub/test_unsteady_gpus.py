"""A GPU that is lost again and again, from its agent's reports to the moment at which time alone makes it well."""

import asyncio
from typing import Any

from msgspec.structs import replace

from controller.hub.device_recovery import recover
from controller.store.workers.devices import set_gpu_cordon
from rig.agent_messages import gpu, hello
from schemas.wire import ReportedGpu
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest

LOST = {"health": "unhealthy", "health_reason": "gpu_lost: GPU is lost"}
XID = {"health": "unhealthy", "health_reason": "xid_48: a double-bit ECC error (Xid 48)"}
HEALTH = "select health || ' ' || split_part(health_reason, ':', 1) from devices where uuid = 'GPU-a'"
CONDITIONS = "select jsonb_path_query_array(conditions, '$.reason') from workers"
ITS_TIME_HAS_COME = "update devices set unsteady_until = clock_timestamp() where uuid = 'GPU-a'"


def shown(uuid: str = "GPU-a", **fields: Any) -> ReportedGpu:
    return replace(gpu(uuid), **fields)


async def set_up(hub: HubUnderTest, *others: ReportedGpu, exclusive: bool = False) -> None:
    """Two losses; an instance that stays there holds it."""
    await hub.add_worker()
    await hub.connect(first=hello([shown(), *others]))
    uid = await add_deployment(hub.database, "d")
    await add_instance(hub.database, uid, "i", phase="running", epoch=1)
    size = await hub.value("select memory_mib from devices where uuid = 'GPU-a'") if exclusive else 1024
    await claim(hub.database, "GPU-a", "i", size, exclusive=exclusive)
    for fields in (LOST, {}, LOST, {}):
        await hub.connect(first=hello([shown(**fields), *others]))
    assert await hub.value(HEALTH) == "unhealthy unsteady"
    assert await hub.value(CONDITIONS) == ["unsteady"]
    await hub.execute("delete from events")


async def test_it_is_well_when_its_time_has_come_and_all_that_held_it_is_told(hub: HubUnderTest) -> None:
    await set_up(hub)
    await recover(hub.database)
    assert await hub.value(HEALTH) == "unhealthy unsteady"
    await hub.execute(ITS_TIME_HAS_COME)
    for _ in range(2):
        await recover(hub.database)
        assert await hub.value(HEALTH) == "ok "
        assert await hub.value(CONDITIONS) == []
    event = await hub.one("select reason, message, objects, evidence from events")
    assert (event["reason"], event["evidence"]) == ("gpu_recovered", {"was": "unsteady"})
    assert event["message"].startswith("GPU-a on gpu-1 is well again")
    assert {"gpu:GPU-a", "instance:i"} <= set(event["objects"])
    assert await hub.value("select count(*) from events") == 1
    await hub.connect(first=hello([shown()]))
    assert await hub.value(HEALTH) == "ok "


async def test_an_operator_forgives_its_losses(hub: HubUnderTest) -> None:
    await set_up(hub)
    await set_gpu_cordon(hub.database, "GPU-a", "uncordon")
    told = await hub.one("select reason, evidence ->> 'dismissed' is not null as named from events")
    assert dict(told) == {"reason": "gpu_uncordoned", "named": True}
    await recover(hub.database)
    assert await hub.value(HEALTH) == "ok "
    await hub.connect(first=hello([shown(**LOST)]))
    assert await hub.value("select losses from devices where uuid = 'GPU-a'") == 1


async def test_the_condition_names_what_is_still_sick(hub: HubUnderTest) -> None:
    await set_up(hub, shown("GPU-b", **XID))
    await hub.execute(ITS_TIME_HAS_COME)
    await recover(hub.database)
    assert await hub.value(CONDITIONS) == ["xid_48"]
    assert "GPU-a" not in await hub.value("select conditions #>> '{0,message}' from workers")


async def test_memory_that_shrank_is_settled_and_told_once_its_claims_are_gone(hub: HubUnderTest) -> None:
    await set_up(hub)
    await hub.execute(ITS_TIME_HAS_COME)
    await hub.connect(first=hello([shown(memory_mib=2048)]))
    await recover(hub.database)
    assert await hub.value(CONDITIONS) == ["memory_shrunk"], "it is claimed"
    await hub.execute("delete from claims")
    await recover(hub.database)
    device = await hub.one("select memory_mib, health, health_reason from devices where uuid = 'GPU-a'")
    assert tuple(device) == (2048, "ok", "")
    assert await hub.value(CONDITIONS) == []


async def test_a_change_of_its_memory_makes_it_no_sooner_well(hub: HubUnderTest) -> None:
    await set_up(hub, exclusive=True)
    for size, health in ((2**17, "unhealthy unsteady"), (2048, "unhealthy memory_shrunk")):
        await hub.connect(first=hello([shown(memory_mib=size)]))
        await hub.execute("delete from claims")
        await recover(hub.database)
        assert await hub.value("select memory_mib from devices where uuid = 'GPU-a'") == size
        assert await hub.value(HEALTH) == health
    await set_gpu_cordon(hub.database, "GPU-a", "uncordon")
    await recover(hub.database)
    assert await hub.value(HEALTH) == "ok "
    await set_gpu_cordon(hub.database, "GPU-a", "uncordon")
    reasons = "select count(*) from events where reason = 'gpu_uncordoned'"
    assert await hub.value(reasons) == 1, "nothing was left to forgive"


async def test_settling_and_hellos_wait_for_one_another_and_no_finding_is_lost(hub: HubUnderTest) -> None:
    await set_up(hub, shown("GPU-b"))
    for n in range(20):
        await hub.execute(
            "update devices set health = 'unhealthy', health_reason = 'unsteady: x', unsteady_until = now()"
            " where uuid = 'GPU-a'"
        )
        sick = n % 2 == 0
        later = hello([shown(), shown("GPU-b", **(XID if sick else {}))])
        await asyncio.gather(hub.connect(first=later), *(recover(hub.database) for _ in range(3)))
        assert await hub.value(HEALTH) == "ok "
        assert await hub.value(CONDITIONS) == (["xid_48"] if sick else [])
        await hub.execute("update workers set recent_hellos = '[]'")  # so often none connects
