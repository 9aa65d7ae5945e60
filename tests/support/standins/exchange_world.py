"""One exchange in a small world of memory: its client, two replicas, the network and the clock."""

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.queueing.demand import Demand
from gateway.queueing.queues import Queues
from gateway.quotas.quota_client import QuotaClient
from gateway.reporting.request_metrics import RequestMetrics
from gateway.requests.request import Admission, Request
from gateway.requests.shared import Shared
from gateway.requests.states import State
from gateway.requests.upload import Upload
from gateway.routing.routing_table import RoutingTable
from http1.bodies import Bodies
from http1.protocol import client as client_states
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import ConnectError
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from support.builders.models import model
from support.http1.transport import MemoryTransport

BODY = b'{"model": "m"}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BODY)
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: x\n\n\r\n"
END = b"0\r\n\r\n"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"
REFUSED = b"HTTP/1.1 503 x\r\nx-gpuward-refusal: stopping\r\ncontent-length: 2\r\n\r\n{}"
DIED = b"HTTP/1.1 502 x\r\nx-gpuward-outcome: engine_died\r\ncontent-length: 2\r\n\r\n{}"


DATABASE: Any = None  # the meter's tasks do not run


class MemoryPool(Pool):
    """Connects in memory, or refuses to."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.made: list[MemoryTransport] = []

    async def connect(self, address: Any) -> ClientConnection:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectError("refused", 111)
        connection = ClientConnection(at_rest=self._rest, closed=self._open.discard, address=address)
        self.made.append(MemoryTransport(connection))
        self._open.add(connection)
        return connection


class World:
    """One client's connection, two replicas of its model, and what the network and the clock do."""

    upload: type[Upload] = Upload
    request_head, request_body = HEAD, BODY

    def __init__(self) -> None:
        self.table = RoutingTable(lambda: self.now)
        self.now = 0.0
        endpoints = [Endpoint("m", name, f"127.0.0.1:{port}", "s") for name, port in (("a", 1), ("b", 2))]
        known = model("m", serving={"queue": {"length": 0}})
        self.table.update({"m": known}, endpoints)
        self.queues = Queues(self.table, Demand(0.0), lambda: self.now)
        self.pool = MemoryPool()
        self.exchanges: list[Request] = []
        routes: Any = SimpleNamespace(table=self.table, recheck=lambda _: asyncio.sleep(0))
        keys: Any = SimpleNamespace()
        self.bodies = Bodies(10**8, 10**8)
        self.models = Shared(
            keys,
            routes,
            self.pool,
            self.bodies,
            self.queues,
            QuotaClient(DATABASE),
            RequestMetrics(CollectorRegistry()),
            lambda *_: None,
        )
        admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        self.client = ServerConnection(
            Service(self.handle, lambda _: b"{}", admission), opened=lambda _: None, closed=lambda _: None
        )
        self.transport = MemoryTransport(self.client)
        self.blocked = False
        self.owner = Principal("k", "k", "admin")  # of the client's key
        self.ran = 0  # requests of which an engine may have begun to work

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        exchange = Request(
            self.models, head, connection, "id", Admission(lambda _request, _principal: None), upload=self.upload
        )
        self.exchanges.append(exchange)
        exchange.start(self.owner, ())
        return exchange

    @property
    def engine(self) -> MemoryTransport | None:
        """The connection on which a request is under way."""
        busy = (client_states.State.REST, client_states.State.CLOSED)
        return next((made for made in self.pool.made if made.protocol.state not in busy), None)  # type: ignore[attr-defined]

    def answer(self, data: bytes) -> None:
        if self.engine is not None:
            self.engine.receive(data)

    def block(self, *, on: bool) -> None:
        if self.blocked is not on and not self.transport.closing:
            self.blocked = on
            (self.transport.block if on else self.transport.unblock)()

    def late(self) -> None:
        for exchange in list(self.models.under_way):
            exchange.overdue(math.inf if exchange.deadline < math.inf else 0.0)

    def events(self) -> dict[str, Callable[[], None]]:
        return {
            "request": lambda: self.transport.receive(self.request_head + self.request_body),
            "head": lambda: self.transport.receive(self.request_head),
            "body": lambda: self.transport.receive(self.request_body),
            "ok": lambda: self.answer(OK),
            "event": lambda: self.answer(EVENT),
            "end": lambda: self.answer(END),
            "busy": lambda: self.answer(BUSY),
            "refused": lambda: self.answer(REFUSED),
            "died": lambda: self.answer(DIED),
            "garbage": lambda: self.answer(b"\x00\r\n\r\n"),
            "engine eof": lambda: self.engine.receive_eof() if self.engine else None,
            "engine lost": lambda: self.engine.lose() if self.engine else None,
            "no connections": lambda: setattr(self.pool, "refuses", True),
            "client eof": self.transport.receive_eof,
            "client lost": self.transport.lose,
            "block": lambda: self.block(on=True),
            "unblock": lambda: self.block(on=False),
            "late": self.late,
            "stop": lambda: [one.end_for_stop() for one in list(self.models.under_way)] and None,
            "time": lambda: setattr(self, "now", self.now + 40),
        }

    def check(self) -> None:
        counted = sum(self.table.in_flight(name) for name in "ab")
        at_replicas = (State.CONNECTING, State.SENT, State.ANSWERING)
        assert counted == sum(exchange.state in at_replicas for exchange in self.exchanges)
        assert self.models.under_way == {one for one in self.exchanges if one.state not in (State.DONE, State.CUT)}
        if not self.models.under_way:
            assert self.bodies.held == 0
            assert self.engine is None, "no request goes on at an engine"
        for kept in self.pool.resting:
            assert kept.state in (client_states.State.REST, client_states.State.CLOSED)
            transport = kept._transport
            assert transport is None or not isinstance(transport, MemoryTransport) or transport.reading
        if self.transport.closing:
            assert not self.models.under_way


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


async def play(order: tuple[str, ...], make: type[World] = World) -> World:
    """Plays these events, looks at the world after each, and lets the client leave."""
    world = make()
    for name in order:
        world.events()[name]()
        world.check() if name not in ("request", "body") else None
        await settle()
        world.check()
    world.transport.lose()
    await settle()
    world.check()
    assert not world.models.under_way
    return world
