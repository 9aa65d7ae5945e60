"""The agent's hop: an engine that takes no more of a long request holds its sender back, from the first bytes on."""

import asyncio
from typing import Any

import pytest

from agent.engine_proxy.engine_exchange import Engines
from agent.engine_proxy.in_flight import InFlightRequests
from http1.protocol.client import ClientConnection
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport
from support.standins.exchange_world import MemoryPool, settle

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n"


@pytest.mark.parametrize("full", [False, True])
async def test_a_full_engine_pauses_the_sender(monkeypatch: pytest.MonkeyPatch, *, full: bool) -> None:
    begin = ClientConnection.begin

    def begin_and_fill(connection: ClientConnection, *args: Any, **named: Any) -> None:
        begin(connection, *args, **named)
        if full:
            connection.pause_writing()

    def handle(head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        return engines.forward(head, connection, "i", 9, b"/v1/chat/completions")

    monkeypatch.setattr(ClientConnection, "begin", begin_and_fill)
    engines = Engines(InFlightRequests())
    pool = engines.pool = MemoryPool()
    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    service = Service(handle, lambda _: b"{}", admission)
    caller = ServerConnection(service, opened=lambda _: None, closed=lambda _: None)
    transport = MemoryTransport(caller)
    transport.receive(HEAD + b"x" * 70_000)
    await settle()
    assert caller._read_paused is full
    if full:
        pool.made[0].protocol.resume_writing()  # type: ignore[attr-defined]
        assert not caller._read_paused
    engines.close()
    transport.lose()
    await asyncio.sleep(0)


async def test_what_waits_for_the_engine_is_told_apart() -> None:
    def handle(head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        return engines.forward(head, connection, "i", 9, b"/v1/chat/completions")

    engines = Engines(InFlightRequests())
    pool = engines.pool = MemoryPool()
    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    whole = HEAD.replace(b"300000", b"2") + b"{}"
    callers = [
        ServerConnection(Service(handle, lambda _: b"{}", admission), opened=lambda _: None, closed=lambda _: None)
        for _ in range(3)
    ]
    transports = [MemoryTransport(caller) for caller in callers]
    assert engines.waits("i") == ([], None)
    for transport, sent in zip(transports, (whole, whole, HEAD + b"x"), strict=True):
        transport.receive(sent)
    await settle()
    waits, sign = engines.waits("i")
    assert ([wait.ended for wait in waits], sign) == ([0.0, 0.0], None), "one request still comes"
    assert engines.waits("other") == ([], None)
    transports[0].lose()
    await asyncio.sleep(0.02)
    left, still = sorted(engines.waits("i")[0], key=lambda wait: -wait.ended)
    assert left.ended > 0 == still.ended, "its caller has left, and another one waits"
    pool.made[1].receive(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    assert engines.waits("i")[1] is not None, "an answer is a sign"
    engines.forget("i")
    assert engines.waits("i") == ([], None)
    engines.close()
    for transport in transports[1:]:
        transport.lose()
    await asyncio.sleep(0)


async def test_a_websocket_passes_both_ways_and_does_not_wait_for_the_engine() -> None:
    def handle(head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        return engines.forward(head, connection, "i", 9, b"/socket")

    engines = Engines(InFlightRequests())
    pool = engines.pool = MemoryPool()
    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    service = Service(handle, lambda _: b"{}", admission)
    transport = MemoryTransport(ServerConnection(service, opened=lambda _: None, closed=lambda _: None))
    fields = (
        b"Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: a\r\nCookie: a=b\r\nx-request-id: r\r\n\r\n"
    )
    transport.receive(b"GET /engines/i/socket HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s\r\n" + fields)
    await settle()
    (engine,) = pool.made
    sent = bytes(engine.written)
    assert sent.startswith(b"GET /socket HTTP/1.1\r\n")
    assert sent.count(b"\r\n\r\n") == 1
    for line in (
        b"connection: upgrade\r\n",
        b"upgrade: websocket\r\n",
        b"sec-websocket-key: a\r\n",
        b"x-request-id: r",
    ):
        assert line in sent
    assert b"content-length" not in sent
    assert b"cookie" not in sent
    assert b"authorization" not in sent
    switched = b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: b\r\n\r\n"
    engine.receive(switched + b"hello")
    await settle()
    assert transport.written.startswith(b"HTTP/1.1 101")
    assert b"upgrade: websocket" in transport.written
    assert b"sec-websocket-accept: b" in transport.written
    assert transport.written.endswith(b"\r\n\r\nhello")
    transport.receive(b"there")
    assert engine.written.endswith(b"there")
    assert engines.in_flight.count("i") == 1
    waits, _ = engines.waits("i")
    assert waits == [], "a quiet socket does not show that the engine hangs"
    engine.receive_eof()
    await settle()
    assert transport.closing
    assert engines.in_flight.count("i") == 0
    engines.close()
    await asyncio.sleep(0)
