"""What is passed on to the controller ends once in every order of events; a silent controller is told."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.control_plane.reverse_proxy import ANSWER_LIMIT_S, OF_AGENTS, Controller, Passed
from gateway.settings import addresses_of
from http1.protocol import states as server_states
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import ConnectError
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from http1.relay import State
from support.http1.transport import MemoryTransport

GET = b"GET /api/v1/deployments HTTP/1.1\r\nHost: a\r\n\r\n"
PUT = b"PUT /api/v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"
DIAL = b"GET /agents HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SWITCH = b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
OVER = (State.DONE, State.CUT)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


class MemoryPool(Pool):
    """Connects in memory, or refuses to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.made: list[MemoryTransport] = []

    async def connect(self, address: Any) -> ClientConnection:  # noqa: ARG002 - as its base
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectError("refused", 111)
        connection = ClientConnection(at_rest=lambda one: one.abort(), closed=self._open.discard)
        self.made.append(MemoryTransport(connection))
        self._open.add(connection)
        return connection


class World:
    """A client, and the controller that its requests are passed on to."""

    def __init__(self) -> None:
        self.pool = MemoryPool()
        self.controller = Controller("controller.sock", "", self.pool, most_strangers=2)
        self.passed: list[Passed] = []
        self.blocked = self.known = False
        self.dial()

    def dial(self) -> None:
        admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        service = Service(self.handle, lambda _: b"{}", admission)
        self.client = ServerConnection(service, opened=lambda _: None, closed=lambda _: None)
        self.transport = MemoryTransport(self.client)

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        passed = Passed(self.controller, head, connection, [(b"x-request-id", b"r-1")], known=self.known)
        self.passed.append(passed)
        passed.begin()
        return passed

    async def ask(self, data: bytes) -> Passed:
        self.transport.receive(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.passed[-1]

    def answer(self, data: bytes) -> None:
        for made in self.pool.made[-1:]:
            made.receive(data)

    def late(self) -> None:
        for one in list(self.controller.under_way):
            one.overdue(asyncio.get_running_loop().time() + ANSWER_LIMIT_S + 1)

    def block(self, *, on: bool) -> None:
        if self.blocked is not on and not self.transport.closing:
            self.blocked = on
            (self.transport.block if on else self.transport.unblock)()

    def events(self) -> dict[str, Callable[[], Any]]:
        return {
            "get": lambda: self.transport.receive(GET),
            "put": lambda: self.transport.receive(PUT),
            "dial": lambda: self.transport.receive(DIAL),
            "bytes": lambda: self.transport.receive(b"ab"),
            "switch": lambda: self.answer(SWITCH),
            "ok": lambda: self.answer(OK),
            "body": lambda: self.answer(b"xy"),
            "garbage": lambda: self.answer(b"\x00\r\n\r\n"),
            "controller eof": lambda: [made.receive_eof() for made in self.pool.made[-1:]],
            "controller lost": lambda: [made.lose() for made in self.pool.made[-1:]],
            "no connections": lambda: setattr(self.pool, "refuses", True),
            "client eof": self.transport.receive_eof,
            "client lost": self.transport.lose,
            "block": lambda: self.block(on=True),
            "unblock": lambda: self.block(on=False),
            "late": self.late,
            "stop": lambda: [one.cut() for one in list(self.controller.under_way)],
        }

    def check(self) -> None:
        assert self.controller.under_way == {one for one in self.passed if one.state not in OVER}
        if not self.controller.under_way:
            assert all(made.closing for made in self.pool.made), "nothing goes on at the controller"
        if self.transport.lost:
            assert not self.controller.under_way, "no client, no request"


@pytest.mark.parametrize("seed", range(8))
async def test_any_order_ends_each_request_once(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a repeatable order
    for _ in range(150):
        world = World()
        events = world.events()
        for _ in range(rng.randint(2, 12)):
            events[rng.choice(list(events))]()
            if rng.random() < 0.7:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            if world.transport.closing and not world.transport.lost and rng.random() < 0.5:
                world.transport.lose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.late()
        for made in world.pool.made:
            if made.closing:
                made.lose()
        world.transport.lose()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.check()
        assert world.client.state is server_states.State.CLOSED


async def test_a_controller_that_never_answers_is_told_after_the_limit() -> None:
    world = World()
    passed = await world.ask(GET)
    now = asyncio.get_running_loop().time()
    passed.overdue(now + ANSWER_LIMIT_S - 1)
    assert passed.state is State.SENT
    world.late()
    assert passed.state is State.DONE
    assert world.transport.written.startswith(b"HTTP/1.1 503 ")
    assert b"x-request-id: r-1" in world.transport.written.lower()
    assert world.pool.made[0].closing
    world.check()


@pytest.mark.parametrize(("request_bytes", "answer"), [(GET, OK), (DIAL, SWITCH)])
async def test_an_answer_that_has_begun_has_no_limit(request_bytes: bytes, answer: bytes) -> None:
    """Watches and agents' connections last for days."""
    world = World()
    passed = await world.ask(request_bytes)
    world.answer(answer)
    world.late()
    assert passed.state in (State.ANSWERING, State.TUNNEL)


async def test_a_controller_that_is_away_is_logged_once_a_minute(logs: list[Any]) -> None:
    world = World()
    world.pool.refuses = True
    for _ in range(50):
        world.dial()
        assert (await world.ask(GET)).state is State.DONE
        assert world.transport.written.startswith(b"HTTP/1.1 503 ")
    assert [line["event"] for line in logs] == ["request not passed on"]


# Strangers


async def test_the_oldest_request_without_a_key_yields_its_connection_to_the_controller() -> None:
    world = World()
    clients = []
    for _ in range(3):
        world.dial()
        clients.append(world.transport)
        await world.ask(PUT)
    _, second, newest = world.passed
    assert [one.state for one in world.passed] == [State.CUT, State.SENT, State.SENT]
    assert [transport.closing for transport in clients] == [True, False, False]
    assert world.pool.made[0].closing
    assert set(world.controller.strangers) == {second, newest}
    second.cut()
    assert set(world.controller.strangers) == {newest}, "it is over"


@pytest.mark.parametrize("known", [True, False])
async def test_keys_and_accepted_agents_do_not_yield_to_strangers(known: bool) -> None:
    world = World()
    world.known = known
    kept = await world.ask(DIAL)
    world.answer(SWITCH)
    world.known = False
    for _ in range(3):
        world.dial()
        await world.ask(PUT)
    assert kept.state is State.TUNNEL


# Several controllers


async def test_the_next_controller_is_asked_where_one_takes_no_connection() -> None:
    refused: list[Any] = []

    class Some(MemoryPool):
        """Refuses one address."""

        async def connect(self, address: Any) -> ClientConnection:
            if address == "a":
                refused.append(address)
                raise ConnectError("refused", 111)
            return await super().connect(address)

    controller = Controller("a", "", Some(), most_strangers=1, others=deque(["b", "c"]))
    for _ in range(2):
        await controller.connect()
    assert refused == ["a"]
    assert (controller.address, [*controller.others]) == ("b", ["c", "a"])


async def test_one_that_is_silent_is_not_asked_next() -> None:
    world = World()
    world.controller.others.append("other.sock")
    await world.ask(GET)
    world.late()
    assert world.controller.address == "other.sock"
    world.controller.silent("controller.sock")  # a later request to the silent one changes nothing
    assert world.controller.address == "other.sock"


async def test_where_all_are_away_each_is_asked_once() -> None:
    pool = MemoryPool()
    pool.refuses = True
    controller = Controller("a", "", pool, most_strangers=1, others=deque(["b"]))
    with pytest.raises(ConnectError):
        await controller.connect()


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("/run/c.sock", ["/run/c.sock"]),
        ("http://a", [("a", 80)]),
        ("http://a:1,http://[::1]:2", [("a", 1), ("::1", 2)]),
        ("https://a", [("a", 443)]),
    ],
)
def test_addresses_of_controllers(text: str, addresses: list[Any]) -> None:
    assert addresses_of(text, None) == addresses


@pytest.mark.parametrize("text", ["", "a:1", "http://a/path", "http://a,/run/c.sock", "ftp://a"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        addresses_of(text, None)


async def test_a_tunnel_is_read_no_faster_than_its_budget() -> None:
    world = World()
    passed = await world.ask(DIAL)
    world.answer(SWITCH)
    burst, per_s = OF_AGENTS
    world.transport.receive(bytes(burst))
    assert world.transport.reading
    world.transport.receive(bytes(per_s // 20))
    assert not world.transport.reading
    passed.request_writable(ready=True)
    assert not world.transport.reading, "the controller takes more, and the budget does not"
    await asyncio.sleep(0.1)
    assert world.transport.reading
    world.transport.receive(bytes(per_s))
    world.transport.lose()
    assert passed.state is State.CUT
