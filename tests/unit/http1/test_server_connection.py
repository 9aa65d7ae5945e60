"""The server's side of a connection: what it takes, refuses and answers, and every order of what may happen to it."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from http1.protocol import connection_rules as connections
from http1.protocol.states import Progress, State
from support.http1.server_world import GET, POST, Request, World


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_request_and_its_answer_then_another(world: World) -> None:
    for number in (b"1", b"2"):
        for piece in (POST[:10], POST[10:] + b"ab", b"cd"):
            world.transport.receive(piece)
        request = world.request
        assert (request.head.method, request.received, request.ended) == (b"POST", b"abcd", 1)
        request.connection.start(200, [(b"a", b"b")], length=None)
        request.connection.send(number)
        request.connection.send(b"x" * 9000)
        request.connection.finish()
        assert world.connection.state is State.IDLE
    assert world.answers() == ([(200, b"1" + b"x" * 9000), (200, b"2" + b"x" * 9000)], False)
    assert not world.transport.closing
    assert not world.request.lost


async def test_a_strangers_connection_ends_with_its_answer() -> None:
    world = World(known=False)
    world.transport.receive(GET)
    world.request.connection.answer(401, [], b"")
    assert world.answers() == ([(401, b"")], True)
    assert world.transport.closing
    proxied = World(known=False)
    proxied.connection.record.counted = False
    proxied.transport.receive(GET)
    proxied.request.connection.answer(401, [], b"")
    assert not proxied.transport.closing, "one of a trusted proxy carries the requests of many"


async def test_one_request_at_a_time(world: World) -> None:
    world.transport.receive(GET + GET)
    world.transport.receive(GET)
    assert len(world.requests) == 1
    world.request.connection.answer(200, [], b"ok")
    assert world.answers() == ([(200, b"ok")], True)
    assert world.transport.closing
    assert not world.transport.aborted, "the answer goes out"


@pytest.mark.parametrize("first", [GET, POST + b"abcd", POST.replace(b"4", b"3") + b"abc"])
async def test_requests_sent_ahead_are_dropped_also_where_the_first_is_answered_at_once(first: bytes) -> None:
    """Else one read of 256 KB would be thousands of answers, which a client that reads nothing leaves in memory."""
    world = World(at_once=True)
    world.transport.receive(first)
    assert not world.transport.closing
    world.transport.receive(first + GET * 1000)
    assert len(world.requests) == 2
    assert world.answers() == ([(200, b"ok")] * 2, True)
    assert world.transport.closing
    in_parts = World()
    in_parts.transport.receive(POST + b"ab")
    in_parts.transport.receive(b"cd" + GET)
    in_parts.request.connection.answer(200, [], b"ok")
    assert in_parts.answers() == ([(200, b"ok")], True)


async def test_a_client_that_does_not_take_its_answer_gets_no_other() -> None:
    world = World(at_once=True)
    world.transport.receive(GET)
    world.transport.block()
    world.transport.receive(GET)
    assert len(world.requests) == 1
    assert (world.transport.closing, world.transport.aborted) == (True, False), "what was written may go out"
    assert world.connection.overdue(asyncio.get_running_loop().time() + Progress().write_s + 1)


async def test_bytes_that_never_end_before_the_answer_end_the_connection(world: World) -> None:
    world.transport.receive(GET)
    for _ in range(9):
        world.transport.receive(b"x" * 10_000)
    assert world.transport.aborted
    assert world.request.lost == 1


@pytest.mark.parametrize("at_once", [False, True])
async def test_an_answer_before_the_end_of_the_request_is_not_lost(at_once: bool) -> None:
    world = World(at_once=at_once)
    world.transport.receive(POST + b"a")
    if not at_once:
        world.request.connection.answer(413, [], b"too much")
    assert world.connection.state is State.LINGERING
    assert (world.transport.eof, world.transport.closing) == (True, False), "a reset would take the answer back"
    world.transport.receive(b"bcd" + GET)
    assert len(world.requests) == 1
    assert not world.connection.overdue(asyncio.get_running_loop().time() + 1)
    assert world.connection.overdue(asyncio.get_running_loop().time() + 3)
    world.transport.receive_eof()
    assert world.transport.closing
    assert world.request.lost == 0


async def test_the_body_that_waits_for_a_go_ahead(world: World) -> None:
    world.transport.receive(POST.replace(b"Host", b"Expect: 100-continue\r\nHost"))
    assert world.request.head.expects_continue
    assert world.transport.written == b""
    world.request.connection.send_continue()
    assert world.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    world.transport.receive(b"abcd")
    assert world.request.ended == 1


async def test_chunks_and_trailers(world: World) -> None:
    head = POST.replace(b"Content-Length: 4", b"Transfer-Encoding: chunked")
    world.transport.receive(head + b"2\r\nab\r\n2\r\ncd\r\n0\r\nT: v\r\n\r\n")
    assert (world.request.received, world.request.ended, world.request.head.length) == (b"abcd", 1, None)


async def test_an_old_client_gets_no_chunks(world: World) -> None:
    world.transport.receive(b"GET / HTTP/1.0\r\n\r\n")
    world.connection.start(200, [], length=None)
    world.connection.send(b"abc")
    world.connection.finish()
    assert world.transport.written.endswith(b"connection: close\r\n\r\nabc")
    assert world.transport.closing


async def test_one_half_closed_by_its_client_is_gone(world: World) -> None:
    world.transport.receive(GET)
    world.transport.receive_eof()
    assert world.request.lost == 1
    assert world.transport.closing


async def test_a_paused_body_goes_on_and_its_end_is_seen(world: World) -> None:
    world.transport.receive(POST + b"a")
    world.connection.pause_reading()
    assert not world.transport.reading
    world.connection.resume_reading()
    world.transport.receive(b"bcd")
    world.connection.pause_reading()
    assert world.transport.reading, "a complete request is not paused: the client's end must be seen"


async def test_a_client_that_takes_nothing_is_overdue(world: World) -> None:
    now = asyncio.get_running_loop().time()
    world.transport.receive(GET)
    world.connection.start(200, [], length=None)
    assert not world.connection.overdue(now + 1e6), "a slow engine is not the client's fault"
    world.transport.block()
    assert world.request.ready is False
    assert world.connection.overdue(now + Progress().write_s + 1)
    world.transport.unblock()
    assert world.request.ready is True
    assert not world.connection.overdue(now + 1e6)


async def test_draining_closes_at_rest(world: World) -> None:
    world.transport.receive(GET)
    world.connection.drain()
    assert not world.transport.closing
    world.connection.answer(200, [], b"ok")
    assert world.answers() == ([(200, b"ok")], True)
    assert world.transport.closing
    idle = World()
    idle.connection.drain()
    assert idle.transport.closing


async def test_a_switch_of_protocols(world: World) -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
    world.transport.receive(head)
    assert world.request.head.upgrade == b"websocket"
    world.connection.switch([(b"connection", b"upgrade"), (b"upgrade", b"websocket")])
    world.transport.receive(b"\x01frame")
    world.connection.send(b"\x02frame")
    assert world.request.received == b"\x01frame"
    assert world.transport.written.startswith(b"HTTP/1.1 101 ")
    assert world.transport.written.endswith(b"\r\n\r\n\x02frame")
    world.transport.lose()
    assert world.request.lost == 1


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n"


@pytest.mark.parametrize("cut", [0, 60, 150, 170])
@pytest.mark.parametrize("framed", [b"Content-Length: 4\r\n\r\nabcd", CHUNKED, b"Expect: 100-continue\r\n" + CHUNKED])
async def test_an_offer_of_another_protocol_takes_no_body_away(world: World, framed: bytes, cut: int) -> None:
    sent = b"POST / HTTP/1.1\r\nHost: a\r\n" + OFFER + framed
    for _ in range(2):
        for piece in filter(None, (sent[:cut], sent[cut:])):
            world.transport.receive(piece)
        assert (world.request.received, world.request.ended) == (b"abcd", 1)
        assert not world.request.head.upgrade
        world.connection.answer(200, [], b"ok")
    assert world.answers() == ([(200, b"ok"), (200, b"ok")], False)


async def test_an_offer_without_a_body_is_answered_and_the_connection_kept(world: World) -> None:
    for _ in range(2):
        world.transport.receive(b"GET / HTTP/1.1\r\nHost: a\r\n" + OFFER + b"\r\n")
        world.connection.answer(200, [], b"ok")
    assert world.answers() == ([(200, b"ok"), (200, b"ok")], False)


async def test_a_websocket_is_found_among_several_offers(world: World) -> None:
    world.transport.receive(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c, WebSocket\r\n\r\n")
    assert world.request.head.upgrade == b"websocket"


async def test_a_defect_ends_one_request_with_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Request, "end", fail)
    world.transport.receive(POST + b"abcd")
    assert world.transport.written.startswith(b"HTTP/1.1 500 ")
    assert world.request.lost == 1


async def test_every_order_of_what_may_happen() -> None:
    """Each request is told at most one end, its connection is idle between two, and nothing is left open."""
    dice = random.Random(3)  # noqa: S311 - repeatable
    names = tuple(events(World()))
    orders = itertools.chain(
        (("get", *more) for more in itertools.product(names, repeat=3)),
        ((*("head", "body"), *more) for more in itertools.product(names, repeat=2)),
        (tuple(dice.choices((*names, "get", "answer"), k=30)) for _ in range(1500)),
    )
    answered = 0
    for order in orders:
        world = World()
        for name in order:
            events(world)[name]()
            check(world)
        world.transport.lose()
        assert world.connection.state is State.CLOSED
        assert world.open == 0
        assert len(world.admission) == 0
        answered += sum(not request.lost for request in world.requests)
    assert answered > 500


def events(world: World) -> dict[str, Callable[[], None]]:
    connection, transport = world.connection, world.transport

    def block(*, on: bool) -> None:
        if world.blocked is not on and not transport.closing:
            world.blocked = on
            (transport.block if on else transport.unblock)()

    return {
        "get": lambda: transport.receive(GET),
        "head": lambda: transport.receive(POST),
        "body": lambda: transport.receive(b"abcd"),
        "garbage": lambda: transport.receive(b"\x00\r\n\r\n"),
        "start": lambda: connection.start(200, [], length=None),
        "send": lambda: connection.send(b"x"),
        "finish": lambda: connection.finish() if connection.started else None,
        "answer": lambda: connection.answer(200, [], b"ok") if world.requests and not connection.started else None,
        "close": connection.close,
        "pause": connection.pause_reading,
        "resume": connection.resume_reading,
        "block": lambda: block(on=True),
        "unblock": lambda: block(on=False),
        "eof": transport.receive_eof,
        "lost": transport.lose,
        "drain": connection.drain,
        "shut": lambda: connection.shut(late_head=True),
    }


def check(world: World) -> None:
    for request in world.requests:
        assert request.ended <= 1
        assert request.lost <= 1
    rules = world.connection.record.state
    match world.connection.state:
        case State.IDLE | State.HEAD:
            assert world.connection._handler is None
            assert rules in (connections.State.IDLE, connections.State.HEAD)
        case State.RECEIVING | State.ANSWERING:
            assert rules in (connections.State.BUSY, connections.State.BODY)
        case State.CLOSED:
            assert world.connection._handler is None
            assert world.transport.closing
