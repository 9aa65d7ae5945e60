"""A worker whose agent takes too much: its connections, its messages and what it changes are bounded, others go on."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from controller.hub.worker_budget import BURST_S, CHANGE_S, MAX_HANDSHAKES, SHARE
from rig.agent_messages import gpu, hello, inventory
from schemas.wire import CONNECT_PATH, Heartbeat, InventoryChanged, Rejected
from support.leading.served_hub import HubUnderTest, eventually

CHANGES_AT_ONCE = int(BURST_S / CHANGE_S)


async def refused(hub: HubUnderTest, name: str = "gpu-1") -> str:
    """What a new connection of the worker is told; empty where it is admitted."""
    headers = {"Authorization": f"Bearer secret-{name}"}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    async with hub.session.get(hub.url + CONNECT_PATH, headers={**headers, **upgrade, **key}) as response:
        if response.status == 101:
            return ""
        assert response.status == 503
        assert int(response.headers["Retry-After"]) <= 15
        told = await response.json()
        return str(told["error"]["message"])


async def test_sockets_without_a_hello_leave_places_to_others(hub: HubUnderTest) -> None:
    await hub.add_worker()
    await hub.add_worker("gpu-2")
    async with AsyncExitStack() as stack:
        for _ in range(MAX_HANDSHAKES):
            stack.push_async_callback((await hub.dial()).drop)
        assert "too much of the controller's time" in await refused(hub)
        await hub.connect("gpu-2", hello(boot_id="boot-2"))
    await eventually(lambda: admitted(hub), "its own agent gets in once they are gone")


async def admitted(hub: HubUnderTest) -> bool:
    return not await refused(hub)


async def test_connections_without_end_wait(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs rows, however few bytes it has and however soon it ends."""
    monkeypatch.setattr("controller.hub.worker_budget.CONNECTION_S", BURST_S / 10)
    await hub.add_worker()
    await hub.add_worker("gpu-2")
    await connect_in_vain(hub, times=10)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect_in_vain(hub, times=10), 1.0)
    await hub.connect("gpu-2", hello(boot_id="boot-2"))
    await eventually(lambda: admitted(hub), "it waits for seconds, and not for ever")


async def connect_in_vain(hub: HubUnderTest, times: int) -> None:
    for _ in range(times):
        connection = await hub.dial()
        await connection.send('{"type": "hello"}')
        assert isinstance(await connection.next(), Rejected)
        await connection.drop()


async def test_facts_that_alternate_are_written_at_a_bounded_rate(hub: HubUnderTest) -> None:
    """Each change wakes the leader. Others' changes are written meanwhile, and the last of its own comes in the end."""
    await hub.add_worker()
    await hub.add_worker("gpu-2")
    greedy = await hub.connect(first=hello([gpu("GPU-a")]))
    other = await hub.connect("gpu-2", hello([gpu("GPU-b")], boot_id="boot-2"))
    began_s, last, meanwhile = asyncio.get_running_loop().time(), f"{CHANGES_AT_ONCE + 9}", False
    for number in range(CHANGES_AT_ONCE + 10):
        health = "unhealthy" if number % 2 else "ok"
        await greedy.send(Heartbeat(seq=number + 1, gpus=(gpu("GPU-a", health=health, health_reason=f"{number}"),)))
    await other.send(InventoryChanged(inventory=inventory([gpu("GPU-b", health="unhealthy", health_reason="x")])))
    async with asyncio.timeout(60):
        while await hub.value("select health_reason from devices where uuid = 'GPU-a'") != last:
            meanwhile |= await hub.value("select health from devices where uuid = 'GPU-b'") == "unhealthy"
            await asyncio.sleep(0.02)
    assert meanwhile
    assert asyncio.get_running_loop().time() - began_s >= 9 * CHANGE_S / SHARE
