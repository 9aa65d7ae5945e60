"""Liveness is written whatever else the database does, and however late it answers."""

import asyncio
from typing import Any

import pytest

from controller.hub import handshake
from controller.hub import heartbeats as liveness
from rig.agent_messages import hello
from support.leading.served_hub import HubUnderTest, eventually

QUICK_S = 4.0  # far less than a statement waits for a lock
SEEN = "select last_seen from worker_liveness l join workers w on w.id = l.worker_id where w.name = $1"


async def test_a_hello_under_way_holds_up_no_liveness(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker's older connection is among what is written, together with all other workers."""
    await hub.add_worker("again")
    await hub.add_worker("other")
    before, other = await hub.connect("again"), await hub.connect("other")
    write, arrived, go_on = handshake.write_inventory, asyncio.Event(), asyncio.Event()

    async def held(*args: Any) -> Any:
        arrived.set()
        await go_on.wait()
        return await write(*args)

    monkeypatch.setattr(handshake, "write_inventory", held)
    second = await hub.dial("again")
    await second.send(hello())
    await arrived.wait()
    try:
        seen = await hub.value(SEEN, "other")
        async with asyncio.timeout(QUICK_S):
            while await hub.value(SEEN, "other") == seen:
                await before.beat()
                await other.beat()
                await asyncio.sleep(0.2)
    finally:
        go_on.set()
    await second.next()
    current = "select l.connected and l.session = w.session from worker_liveness l, workers w where w.id = l.worker_id"
    await eventually(lambda: hub.value(f"{current} and w.name = 'again'"), "the new session is the connected one")


@pytest.mark.parametrize(("hanging", "late_s"), [(0, 2.5), (2, 0.5)])
async def test_an_answer_that_comes_late_cuts_no_agent_off(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch, hanging: int, late_s: float
) -> None:
    """Each write is answered late, or only the last one of those that are tried at once."""
    monkeypatch.setattr(liveness, "CUT_AFTER_S", 4.0)
    monkeypatch.setattr(liveness, "_AGAIN_AFTER_S", 0.4)
    await hub.add_worker()
    agent = await hub.connect()
    write, answered, calls = liveness.write_liveness, 0, 0

    async def late(*args: Any) -> set[str]:
        nonlocal answered, calls
        calls += 1
        if calls % (hanging + 1):
            await asyncio.Event().wait()
        written = await write(*args)
        await asyncio.sleep(late_s)
        answered += 1
        return written

    monkeypatch.setattr(liveness, "write_liveness", late)
    seen = await hub.value(SEEN, "gpu-1")
    async with asyncio.timeout(30):
        while answered < 4:
            await agent.beat()
            await asyncio.sleep(0.1)
    assert hub.hub.connected() == 1
    assert await hub.value(SEEN, "gpu-1") > seen
    assert await hub.value("select session from workers") == 1


async def test_agents_are_let_go_by_the_time_of_what_was_written(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence counts from there: what is answered late after the write must not let agents stay for longer."""
    await hub.add_worker()
    agent = await hub.connect()
    write, loop, written_at = liveness.write_liveness, asyncio.get_running_loop(), list[float]()

    async def once(*args: Any) -> set[str]:
        if written_at:
            raise OSError("no route to the database")
        found = await write(*args)
        written_at.append(loop.time())
        return found

    async def hangs(*_: Any) -> None:
        await asyncio.sleep(2.5)

    monkeypatch.setattr(liveness, "CUT_AFTER_S", 4.0)
    monkeypatch.setattr(liveness, "notify", hangs)
    monkeypatch.setattr(liveness, "write_liveness", once)
    said = await agent.end()
    assert said is not None
    assert "database" in said.message
    assert loop.time() - written_at[0] < 5.8
