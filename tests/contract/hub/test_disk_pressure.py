"""A full disk of a worker: a condition of it, from the figures of heartbeats."""

from typing import Any

import pytest

from controller.decide.disk_pressure import disk_is_full
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, inventory
from schemas.process_figures import ProcessFigures
from schemas.wire import Heartbeat
from support.leading.served_hub import HubUnderTest, eventually

GIB = 2**30
GPUS = [gpu("GPU-a")]
TYPES = "select coalesce(jsonb_path_query_array(conditions, '$[*].type'), '[]') from workers"
STATUS = "select conditions -> 0 ->> 'status' from workers"


async def beat(agent: AgentDouble, seq: int, free: int | None, size: int | None = 100 * GIB) -> None:
    process = ProcessFigures(cpu_s=1.0, disk_free_bytes=free, disk_bytes=size)
    await agent.send(Heartbeat(seq=seq, sent_s=0.0, gpus=tuple(GPUS), process=process))


async def until_types(hub: HubUnderTest, *types: str) -> None:
    async def as_expected() -> bool:
        found: Any = await hub.value(TYPES)
        return list(found) == list(types)

    await eventually(as_expected, f"conditions {types}")


async def test_it_comes_with_a_full_disk_and_goes_with_space(hub: HubUnderTest) -> None:
    await hub.add_worker()
    agent = await hub.connect(first=hello(shape=inventory(GPUS)))
    await beat(agent, 1, 50 * GIB)
    await beat(agent, 2, GIB // 2)
    await until_types(hub, "DiskPressure")
    assert await hub.value(STATUS) == "true"
    await beat(agent, 3, None, None)  # unknown
    await beat(agent, 4, GIB + 1)  # a little
    await beat(agent, 5, GIB // 2)
    await until_types(hub, "DiskPressure")
    count = "select count(*) from events where reason = 'disk_pressure'"
    assert await hub.value(count) == 1
    again = await hub.connect(first=hello(shape=inventory(GPUS)))
    await beat(again, 1, GIB + 1)
    await until_types(hub, "DiskPressure")
    await beat(again, 2, 3 * GIB)
    await until_types(hub)
    assert await hub.value("select count(*) from events where reason = 'disk_freed'") == 1


@pytest.mark.parametrize(
    ("free", "size", "known", "full"),
    [
        (0, 8 * 2**20, None, True),
        (0, 0, None, False),  # a file system without a size
        (8 * 2**20, 8 * 2**20, None, False),
        (GIB - 1, 4096 * GIB, False, True),
        (GIB, 4096 * GIB, False, False),
        (GIB, 4096 * GIB, True, True),
        (GIB, 4096 * GIB, None, None),
        (2 * GIB, 4096 * GIB, True, False),
        (300 * 2**20, 10 * GIB, None, None),
        (500 * 2**20, 10 * GIB, None, False),
    ],
)
def test_small_disks_are_full_later(free: int, size: int, known: bool | None, full: bool | None) -> None:
    assert disk_is_full(free, size, known=known) is full
