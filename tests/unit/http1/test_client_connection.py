"""Every order of pause, answer, close, death and time: what is kept can take a request, and each answer ends once."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from http1.protocol.client import IDLE_S, ClientConnection, Pool, State
from http1.protocol.heads import ResponseHead
from support.http1.transport import MemoryTransport

ADDRESS = ("127.0.0.1", 9)
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
KEPT = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Asker:
    """The receiver of one answer, which pauses and resumes as it is told to."""

    def __init__(self) -> None:
        self.heads: list[ResponseHead] = []
        self.body = b""
        self.ended = 0
        self.failed = 0
        self.ready = True

    def response_head(self, head: ResponseHead) -> None:
        assert not self.over
        self.heads.append(head)

    def response_body(self, data: bytes, _chunks: bytes = b"") -> None:
        assert self.heads
        assert not self.over
        self.body += data

    def response_end(self) -> None:
        self.ended += 1

    def response_failed(self, why: str) -> None:
        assert why
        self.failed += 1

    def request_writable(self, *, ready: bool) -> None:
        assert not self.over
        self.ready = ready

    @property
    def over(self) -> bool:
        return bool(self.ended or self.failed)


class World:
    """One address, at most one request at a time, and whatever the network does to its connection."""

    def __init__(self, now: Callable[[float], None]) -> None:
        self._advance = now
        self.pool = Pool()
        self.askers: list[Asker] = []
        self.connection = self._open()

    def _open(self) -> ClientConnection:
        connection = ClientConnection(at_rest=self.pool._rest, closed=self.pool._open.discard, address=ADDRESS)
        self.transport = MemoryTransport(connection)
        self.pool._open.add(connection)
        self.blocked = False
        return connection

    @property
    def under_way(self) -> bool:
        return bool(self.askers) and not self.askers[-1].over and self.connection._receiver is self.askers[-1]

    def ask(self) -> None:
        if self.under_way:
            return
        taken = self.pool.take(ADDRESS)
        assert taken is None or taken is self.connection
        if taken is None:
            self.connection.abort()
            self.transport.lose()
            self.connection = self._open()
        self.askers.append(Asker())
        self.connection.begin(REQUEST, self.askers[-1], chunked=True)

    def give_up(self) -> None:
        self.connection.abort()

    def block(self) -> None:
        if not self.blocked and not self.transport.closing:
            self.blocked = True
            self.transport.block()

    def unblock(self) -> None:
        if self.blocked:
            self.blocked = False
            self.transport.unblock()

    def events(self) -> dict[str, Callable[[], None]]:
        return {
            "ask": self.ask,
            "send": lambda: self.connection.send(b"x"),
            "end": self.connection.end,
            "give up": self.give_up,
            "pause": self.connection.pause_reading,
            "resume": self.connection.resume_reading,
            "block": self.block,
            "unblock": self.unblock,
            "head": lambda: self.transport.receive(KEPT),
            "half": lambda: self.transport.receive(b"ab"),
            "whole": lambda: self.transport.receive(KEPT + b"abcd"),
            "close": lambda: self.transport.receive(
                KEPT.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"abcd"
            ),
            "more": lambda: self.transport.receive(KEPT + b"abcd" + b"HTTP/1.1 200 OK\r\n"),
            "endless": lambda: self.transport.receive(b"HTTP/1.1 200 OK\r\n\r\nabc"),
            "garbage": lambda: self.transport.receive(b"\x00garbage\r\n\r\n"),
            "eof": self.transport.receive_eof,
            "lost": self.transport.lose,
            "time": lambda: self._advance(IDLE_S * 0.7),
            "sweep": self.pool.sweep,
        }

    def check(self) -> None:
        kept = self.pool.resting
        assert len(kept) <= 1
        for connection in kept:
            assert connection.state in (State.REST, State.CLOSED), "nothing is under way on what is kept"
            assert connection._receiver is None
            transport = connection._transport
            assert isinstance(transport, MemoryTransport) or connection.state is State.CLOSED
            if transport is not None and connection.state is State.REST:
                assert transport.reading, "what is kept is not paused"
                assert not transport.closing
        for asker in self.askers:
            assert asker.ended + asker.failed <= 1
            assert not asker.ended or len(asker.body) == 4 or asker.heads[0].length is None
        if self.connection.state is State.CLOSED:
            assert self.transport.closing
        assert not self.under_way or self.connection.state in (State.SENDING, State.AWAITING, State.RECEIVING)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[float], None]]:
    loop = asyncio.new_event_loop()
    now = [1000.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def advance(seconds: float) -> None:
        now[0] += seconds

    loop.close()
    return lambda: advance


def play(world: World, names: tuple[str, ...]) -> None:
    for name in names:
        world.events()[name]()
        world.check()
    kept = world.pool.take(ADDRESS)
    if kept is not None:
        asker = Asker()
        kept.begin(REQUEST, asker, chunked=False)
        kept.end()
        world.transport.receive(KEPT + b"abcd")
        assert (asker.ended, asker.body) == (1, b"abcd"), "what is kept answers"


def test_every_order_of_three_events_after_a_request(clock) -> None:
    names = tuple(World(clock()).events())
    for begin in (("ask",), ("ask", "end"), ("ask", "end", "head"), ("ask", "end", "whole")):
        for more in itertools.product(names, repeat=3):
            play(World(clock()), begin + more)


def test_long_random_orders(clock) -> None:
    dice = random.Random(7)  # noqa: S311 - repeatable
    names = tuple(World(clock()).events())
    rested = 0
    for _ in range(1500):
        world = World(clock())
        play(world, tuple(dice.choices((*names, "ask", "end", "whole"), k=40)))
        rested += sum(asker.ended for asker in world.askers)
    assert rested > 500


@pytest.mark.parametrize(
    ("asked", "answer", "kept"),
    [
        (True, KEPT + b"abcd", True),
        (False, KEPT + b"abcd", False),  # the request is not complete
        (True, b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + KEPT + b"abcd", True),
        (True, KEPT.replace(b"1.1", b"1.0") + b"abcd", False),
        (True, KEPT + b"abcd\r\nmore", False),
        (True, b"HTTP/1.1 204 No Content\r\n\r\n", True),
    ],
)
def test_what_is_kept(asked, answer, kept, clock) -> None:
    world = World(clock())
    world.ask()
    if asked:
        world.connection.end()
    world.transport.receive(answer)
    assert world.askers[-1].ended == 1
    assert (world.pool.take(ADDRESS) is not None) is kept


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 x\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 x\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 104 x\r\ncontent-length: 4\r\n\r\nabcd" + KEPT + b"abcd",
        b"HTTP/1.1 199 x\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n" + KEPT + b"abcd",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 40,
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
    ],
)
def test_answers_that_are_refused(answer: bytes, clock) -> None:
    world = World(clock())
    world.ask()
    world.connection.end()
    world.transport.receive(answer)
    assert (world.askers[-1].failed, world.connection.state) == (1, State.CLOSED)


def test_a_switch_of_protocols_that_was_asked_for_passes_bytes(clock) -> None:
    world = World(clock())
    asker = Asker()
    world.connection.begin(REQUEST, asker, chunked=False, upgrade=True)
    world.connection.end()
    head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    world.transport.receive(head + b"first")
    world.transport.receive(b" second")
    world.connection.send(b"back")
    assert (asker.heads[0].status, asker.body, asker.ended) == (101, b"first second", 0)
    assert world.transport.written.endswith(b"\r\n\r\nback")
    world.transport.receive_eof()
    assert asker.failed == 1
    assert not world.pool.resting
