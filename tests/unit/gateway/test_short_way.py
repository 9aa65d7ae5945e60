"""The way of a request is short: how many calls it takes in each hop, which no other work on the machine changes.

`make bench-gateway` measures the same in microseconds. A bound here is what the way takes now and a tenth more.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.engine_proxy.engine_exchange import Engines
from agent.engine_proxy.in_flight import InFlightRequests
from http1 import response_reader
from http1.connections import Limits
from http1.door import Door
from http1.handler import Handler
from http1.head import RequestHead, ResponseHead
from http1.known_heads import KnownHeads
from http1.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport
from support.standins.exchange_world import EVENT, HEAD, OK, MemoryPool, World, settle

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n" + b'{"a": "b"} '
ROOT = Path(__file__).parents[3]
OURS = tuple(str(ROOT / package) + "/" for package in ("agent", "controller", "gateway", "http1"))


MOST_GATEWAY_REQUEST, MOST_GATEWAY_EVENT = 172, 14  # the admission included
MOST_AGENT_REQUEST, MOST_AGENT_EVENT = 64, 6


class Calls:
    """Counts calls of our functions, and how often the running loop is asked for, which is a system call."""

    def __init__(self) -> None:
        self.ours = 0
        self.running_loop = 0

    def note(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.ours += 1
        elif event == "c_call" and called is asyncio.get_running_loop:
            self.running_loop += 1


def count(*steps: Callable[[], object]) -> Calls:
    calls = Calls()
    sys.setprofile(calls.note)
    try:
        for step in steps:
            step()
    finally:
        sys.setprofile(None)
    return calls


class AgentWorld:
    """The agent's hop in memory, with a kept connection to its engine."""

    def __init__(self) -> None:
        self.engines = Engines(InFlightRequests())
        self.pool = self.engines.pool = MemoryPool()
        door = Door(Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test")
        service = Service(self.handle, lambda _: b"{}", door)
        self.caller = ServerConnection(service, opened=lambda _: None, closed=lambda _: None)
        self.transport = MemoryTransport(self.caller)

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        return self.engines.ask(head, connection, "i", 9, b"/v1/chat/completions")

    def answer(self, data: bytes) -> None:
        self.pool.made[0].receive(data)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


async def test_a_request_through_the_gateway() -> None:
    world = World()
    for _replica in "ab":  # each gets a connection, which is kept
        world.events()["request"]()
        await settle()
        world.answer(ANSWER)
    calls = count(world.events()["request"], lambda: world.answer(ANSWER))
    assert world.transport.written.count(b"200 OK") == 3
    assert calls.ours <= MOST_GATEWAY_REQUEST
    assert calls.running_loop == 0


async def test_an_event_through_the_gateway() -> None:
    world = World()
    world.events()["request"]()
    await settle()
    for data in (OK, EVENT):
        world.answer(data)
    calls = count(lambda: world.answer(EVENT))
    assert world.transport.written.endswith(EVENT)
    assert calls.ours <= MOST_GATEWAY_EVENT
    assert calls.running_loop == 0


async def test_a_stream_holds_neither_heads_nor_a_parser_of_requests() -> None:
    world = World()
    world.events()["request"]()
    await settle()
    for data in (ANSWER, None, OK, EVENT):
        if data is None:
            world.events()["request"]()
            await settle()
        else:
            world.answer(data)
    exchange = world.exchanges[-1]
    assert (exchange._head.fields, exchange._head.named, exchange._answer) == ([], {}, None)
    later = ServerConnection(world.client._service, opened=lambda _: None, closed=lambda _: None)
    MemoryTransport(later).receive(HEAD + b'{"model": "m"}')
    assert later._reader._parser is None, "the head is known"


async def test_a_request_and_an_event_through_the_agent() -> None:
    world = AgentWorld()
    world.transport.receive(HEAD + b'{"model": "m"}')
    await settle()
    world.answer(ANSWER)
    request = count(lambda: world.transport.receive(HEAD + b'{"model": "m"}'), lambda: world.answer(ANSWER))
    assert world.transport.written.count(b"200 OK") == 2
    world.transport.receive(HEAD + b'{"model": "m"}')
    for data in (OK, EVENT):
        world.answer(data)
    event = count(lambda: world.answer(EVENT))
    assert world.transport.written.endswith(EVENT)
    world.engines.close()
    assert (request.running_loop, event.running_loop) == (0, 0)
    assert request.ours <= MOST_AGENT_REQUEST
    assert event.ours <= MOST_AGENT_EVENT


@pytest.mark.parametrize("kept", [True, False])
async def test_the_beginning_of_a_long_body_goes_on_with_its_head(kept: bool) -> None:
    world = AgentWorld()
    world.transport.receive(HEAD + b'{"model": "m"}')
    await settle()
    world.answer(ANSWER)
    if not kept:
        world.pool.close()
        world.pool.made.clear()
    writes: list[int] = []
    first, rest = HEAD + b'{"mod', b'el": "m"}'
    world.transport.receive(first)
    if not kept:
        assert not world.transport.reading, "no more is read until there is a connection"
        await settle()
    engine = world.pool.made[0]
    assert engine.written.endswith(b'\r\n\r\n{"mod')
    engine.write = lambda data: writes.append(len(data))  # type: ignore[method-assign]
    world.transport.receive(rest)
    assert writes == [len(rest)]
    world.answer(ANSWER)
    assert world.transport.written.count(b"200 OK") == 2
    world.engines.close()


async def test_an_answers_id_stands_with_its_length_so_that_its_head_is_known() -> None:
    world = AgentWorld()
    answers = [
        ANSWER.replace(b"content-length", b"x-request-id: %b\r\nX-B: c\r\ncontent-length" % one) for one in (b"a", b"b")
    ]
    returned = []
    for answer in answers:
        world.transport.written = b""
        world.transport.receive(HEAD + b'{"model": "m"}')
        await settle()
        world.answer(answer)
        returned.append(world.transport.written)
    assert returned[0].replace(b"x-request-id: a", b"x-request-id: b") == returned[1]
    heads = KnownHeads[ResponseHead]()
    sink = SimpleNamespace(response_head=lambda _: None, response_body=lambda *_: None, response_end=lambda **_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(response_reader, "_KNOWN", heads)
        reader = response_reader.ResponseReader(sink)  # type: ignore[arg-type]
        for data in returned:
            reader.expect()
            reader.feed(data)
    assert len(heads._known) == 1
    world.engines.close()
