"""Faults: hanging agents, an unavailable database. The hub keeps serving and blames no agent for its own faults."""

import asyncio
import uuid
from typing import Any

import pytest

from controller.hub import heartbeats as liveness
from controller.hub import session
from controller.hub.agent_messages import MalformedMessageError
from controller.hub.proxy_address import proxy_address
from controller.hub.worker_budget import MAX_HANDSHAKES
from controller.store.core.database import Database
from rig.agent_messages import gpu, hello
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually, start_payload


async def test_an_agent_that_reads_nothing_is_cut_and_others_are_served(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SEND_LIMIT_S", 0.5)
    slow, quick = await hub.add_worker("slow"), await hub.add_worker("quick")
    await hub.connect("slow", hello([gpu("GPU-s")]))
    good = await hub.connect("quick", hello([gpu("GPU-q")]))
    uid = await add_deployment(hub.database, "d")
    for name, device in [*((f"s{n}", "GPU-s") for n in range(40)), ("q", "GPU-q")]:
        await add_instance(hub.database, uid, name, phase="starting", epoch=1)
        await claim(hub.database, device, name, 1)
    big = start_payload(env={"BIG": "x" * 1_000_000})
    for n in range(40):
        await hub.order(slow, f"s{n}", payload=big)
    id_ = await hub.order(quick, "q")
    assert (await good.command()).command_id == id_

    async def one_connected() -> bool:
        return hub.hub.connected() == 1

    await eventually(one_connected, "the slow agent is cut")
    query = "select not connected from worker_liveness where worker_id = $1"
    await eventually(lambda: hub.value(query, uuid.UUID(slow)), "and counts as disconnected")


async def test_a_silent_agent_is_cut(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SILENCE_LIMIT_S", 0.3)
    await hub.add_worker()
    agent = await hub.connect()
    said = await agent.end()
    assert said is not None
    assert "no message arrived" in said.message


async def test_a_connection_without_a_hello_is_cut(hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.hub.handshake.HELLO_LIMIT_S", 0.2)
    await hub.add_worker()
    agent = await hub.dial()
    said = await agent.end()
    assert said is not None
    assert "no hello" in said.message
    assert await hub.value("select count(*) from events") == 0


async def test_without_its_database_the_hub_cuts_agents_and_keeps_them_connected_in_the_rows(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hub.add_worker()
    agent = await hub.connect()

    async def healthy() -> bool:
        return hub.hub.healthy_for_s() > 0

    await eventually(healthy, "writes succeed")

    async def fails(*_: Any) -> set[str]:
        raise OSError("no route to the database")

    write = liveness.write_liveness
    monkeypatch.setattr(liveness, "write_liveness", fails)
    monkeypatch.setattr(liveness, "CUT_AFTER_S", 0.5)
    said = await agent.end()
    assert said is not None
    assert "database" in said.message
    assert hub.hub.healthy_for_s() == 0
    monkeypatch.setattr(liveness, "write_liveness", write)
    await eventually(healthy, "writes succeed again")
    assert await hub.value("select connected from worker_liveness"), "the agent did not cause it"
    await hub.connect()


async def test_an_agent_that_connects_without_a_database_may_try_again(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hub.add_worker()
    socket = await hub.dial()

    def unavailable(_: Database) -> Any:
        raise OSError("no route to the database")

    monkeypatch.setattr(Database, "transaction", unavailable)
    await socket.send(hello())
    said = await socket.end()
    assert said is not None
    assert not said.final
    monkeypatch.undo()
    assert await hub.value("select session from workers") == 0


async def test_short_connections_leave_nothing_behind(hub: HubUnderTest) -> None:
    await hub.add_worker()

    async def connect_and_drop(n: int) -> None:
        socket = await hub.dial()
        await socket.send(hello())
        if n % 2:
            await socket.next()
        await socket.drop()

    for first in range(0, 12, MAX_HANDSHAKES):
        await asyncio.gather(*(connect_and_drop(first + n) for n in range(MAX_HANDSHAKES)))

    async def empty() -> bool:
        return hub.hub.connected() == 0 and not hub.hub._open and not hub.hub._admission._queue._inside

    await eventually(empty, "no connection is left")
    last = await hub.connect()
    await last.beat()
    await eventually(
        lambda: hub.value("select l.connected and l.session = w.session from worker_liveness l, workers w"),
        "the last heartbeat is written",
    )


@pytest.mark.parametrize(
    ("advertise", "peer", "address"),
    [
        (None, "10.0.0.7", "10.0.0.7:7070"),
        (None, "fd00::7", "[fd00::7]:7070"),
        ("gpu-1.lan:80", "10.0.0.7", "gpu-1.lan:80"),
        ("[::1]:80", None, "[::1]:80"),
        (":80", "10.0.0.7", None),
        ("gpu-1", "10.0.0.7", None),
        ("gpu-1:0", "10.0.0.7", None),
        ("user@gpu-1:80", "10.0.0.7", None),
        ("gpu-1:80/path", "10.0.0.7", None),
        ("169.254.7.7:80", "169.254.7.7", "169.254.7.7:80"),  # from where it connects
        ("10.0.0.8:80", "10.0.0.7", "10.0.0.8:80"),
        *(
            (f"{host}:80", "10.0.0.7", None)
            for host in (
                "169.254.169.254",
                "0xa9fea9fe",
                "2852039166",
                "169.254.43518",
                "[::ffff:169.254.169.254]",
                "[fe80::1]",
                "0.0.0.0",  # noqa: S104 - refused
                "[::]",
                "224.0.0.1",
            )
        ),
        (None, None, None),
    ],
)
def test_the_address_of_the_agents_proxy(advertise: str | None, peer: str | None, address: str | None) -> None:
    message = hello(advertise=advertise)
    if address is not None:
        assert proxy_address(message, peer) == address
    else:
        with pytest.raises(MalformedMessageError, match="advertise"):
            proxy_address(message, peer)
