"""A request whose replicas come and go while it waits: it runs once, ends once, and leaves no wish to wake behind."""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from controller.live.endpoints import Endpoint, Stopped
from controller.live.key_ring import Principal
from gateway.queueing.demand import Demand
from gateway.queueing.queues import Queues
from gateway.quotas.quota_client import QuotaClient
from gateway.reporting.request_metrics import RequestMetrics
from gateway.requests.comments import FIRST_S
from gateway.requests.dispatch import Dispatch
from gateway.requests.request import Admission, Request
from gateway.requests.shared import Shared
from gateway.requests.states import State
from gateway.routing.routing_table import RoutingTable
from http1.bodies import Bodies
from http1.protocol import client as client_states
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection, Service
from schemas.key_limits import KeyLimits, LimitKind
from support.builders.models import model
from support.http1.transport import MemoryTransport

DATABASE: Any = None  # the tasks of quotas do not run
LIMITS = KeyLimits(parallel=99)
END = b"0\r\n\r\n"
ANSWERS = {
    "ok": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"9\r\ndata: x\n\n\r\n",
    "end": END,
    "bad": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    "worse": b"HTTP/1.1 500 x\r\ncontent-length: 2\r\n\r\n{}",
    "stopping": b"HTTP/1.1 503 x\r\nx-gpuward-refusal: stopping\r\ncontent-length: 2\r\n\r\n{}",
    "busy": b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


class MemoryPool(Pool):
    """Connects in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[MemoryTransport] = []

    async def connect(self, address: Any) -> ClientConnection:
        await asyncio.sleep(0)
        connection = ClientConnection(at_rest=self._rest, closed=self._open.discard, address=address)
        self.made.append(MemoryTransport(connection))
        self._open.add(connection)
        return connection


class World:
    """A model that sleeps, one client, and one replica that comes and goes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.table = RoutingTable(lambda: self.now)
        self.demand = Demand(0.0)
        self.queues = Queues(self.table, self.demand, lambda: self.now)
        self.routes()
        self.pool = MemoryPool()
        self.exchanges: list[Request] = []
        routes: Any = SimpleNamespace(table=self.table, recheck=lambda _: asyncio.sleep(0))
        bodies = Bodies(10**6, 10**6)
        keys: Any = SimpleNamespace()
        self.quotas = QuotaClient(DATABASE)
        self.quotas._limits.away = True  # the key's slots are all this gateway's
        self.models = Shared(
            keys,
            routes,
            self.pool,
            bodies,
            self.queues,
            self.quotas,
            RequestMetrics(CollectorRegistry()),
            lambda *_: None,
        )
        admission = ConnectionAdmission(
            Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9), name="test"
        )
        service = Service(self.handle, lambda _: b"{}", admission)
        self.client = ServerConnection(service, opened=lambda _: None, closed=lambda _: None)
        self.transport = MemoryTransport(self.client)

    def routes(self, *, up: bool = False, stopped: bool = False) -> None:
        endpoints = [Endpoint("m", "a", "127.0.0.1:1", "s")] if up else []
        known = model("m", may_sleep=True, serving={"aliases": ["alias"], "queue": {"length": 4, "wait": "60s"}})
        self.table.update({"m": known}, endpoints, {"m": Stopped("user")} if stopped else {})
        self.queues.routes_changed()

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        connection.admit()
        exchange = Request(self.models, head, connection, "id", Admission(lambda _request, _principal: None))
        self.exchanges.append(exchange)
        exchange.start(Principal("k", "k", "admin", limits=LIMITS), ())
        return exchange

    @property
    def engine(self) -> MemoryTransport | None:
        """The connection on which a request is under way."""
        busy = (client_states.State.REST, client_states.State.CLOSED)
        return next((made for made in self.pool.made if made.protocol.state not in busy), None)  # type: ignore[attr-defined]

    def ask(self, *, stream: bool) -> None:
        body = b'{"model": "alias", "stream": true}' if stream else b'{"model": "m"}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.transport.receive(head + body)

    def sweep(self, *, late: bool) -> None:
        for exchange in list(self.models.under_way):
            first_comment = exchange.arrived + FIRST_S
            exchange.overdue(exchange.deadline if late and exchange.deadline < math.inf else first_comment)

    def happens(self, name: str) -> None:
        if name in ANSWERS and self.engine is not None:
            self.engine.receive(ANSWERS[name])
        happenings: dict[str, Callable[[], None]] = {
            "request": lambda: self.ask(stream=False),
            "stream": lambda: self.ask(stream=True),
            "up": lambda: self.routes(up=True),
            "down": self.routes,
            "stopped": lambda: self.routes(stopped=True),
            "comment": lambda: self.sweep(late=False),
            "late": lambda: self.sweep(late=True),
            "client lost": self.transport.lose,
            "engine lost": lambda: self.engine.lose() if self.engine else None,
            "stop": lambda: [one.end_for_stop() for one in list(self.models.under_way)] and None,
            "time": self.later,
        }
        if name in happenings:
            happenings[name]()

    def later(self) -> None:
        self.now += 40
        self.queues.pump_all()

    def check(self) -> None:
        waiting = sum(one.state is State.WAITING for one in self.exchanges)
        at_replicas = sum(one.state in (State.CONNECTING, State.SENT, State.ANSWERING) for one in self.exchanges)
        assert len(self.queues.by_model.get("m", ())) == waiting
        assert self.table.in_flight("a") == at_replicas
        load = self.demand._counted.get("uid-m")
        counted = (load.in_flight, load.waiting) if load is not None else (0, 0)
        assert counted == (at_replicas, waiting)
        if not waiting:
            assert self.queues.wakes() == {}
        elif not self.table.runs("m"):
            assert self.queues.wakes()
        slots = self.quotas._limits.use_of("k", LIMITS).shares[LimitKind.PARALLEL]
        assert slots.spent == len(self.models.under_way), "each request gives its key's slot back, however it ends"
        used = self.quotas.batches._rows
        assert sum(counts.requests for counts in used.values()) == len(self.exchanges) - len(self.models.under_way)
        assert {name[2] for name in used} <= {"m"}, "under the deployment's name, also where an alias was asked"
        if not self.models.under_way:
            assert self.models.bodies.held == 0
            assert self.engine is None, "no request goes on at an engine"


async def play(order: tuple[str, ...]) -> World:
    world = World()
    for name in order:
        world.happens(name)
        for _ in range(12):
            await asyncio.sleep(0)
        world.check()
    return world


EVENTS = (*ANSWERS, "up", "down", "stopped", "comment", "late", "client lost", "engine lost", "stop", "time")


@pytest.mark.parametrize("stage", [("request",), ("request", "up"), ("stream", "comment"), ("stream", "comment", "up")])
async def test_every_order_of_two_events_after_each_stage(stage: tuple[str, ...]) -> None:
    for more in itertools.product(EVENTS, repeat=2):
        world = await play((*stage, *more))
        world.transport.lose()
        world.check()
        assert not world.models.under_way


@pytest.mark.parametrize(
    ("order", "engines", "said"),
    [
        (("request", "up", "ok", "end"), 1, b"200 OK"),
        (("request", "up", "stopping", "down", "time", "up", "ok", "end"), 2, b"200 OK"),
        (("request", "late"), 0, b'"code":"waited_too_long"'),
        (("request", "stopped"), 0, b'"code":"stopped"'),
        (("request", "up", "bad"), 1, b"400 Bad Request"),
        (("stream", "comment", "up", "ok", "end"), 1, b": waking\n\n"),
        (("stream", "comment", "late"), 0, b'"code":"waited_too_long"'),
        (("stream", "comment", "stopped"), 0, b'"code":"stopped"'),
        (("stream", "comment", "up", "bad"), 1, b'"code":"engine_error"'),
        (("stream", "comment", "up", "worse"), 1, b'"code":"engine_error"'),
        (("stream", "comment", "up", "engine lost"), 1, b'"code":"engine_died"'),
        (("stream", "comment", "up", "busy"), 1, b'"code":"engine_busy"'),
        (("stream", "comment", "stop"), 0, b'"code":"unavailable"'),
    ],
)
async def test_what_the_client_of_a_waking_model_gets(order: tuple[str, ...], engines: int, said: bytes) -> None:
    world = await play(order)
    written = bytes(world.transport.written)
    assert len(world.pool.made) == engines
    assert said in written
    assert written.count(b"HTTP/1.1 ") == 1, "one answer"
    if "comment" in order:
        assert written.startswith(b"HTTP/1.1 200 ")
        assert written.endswith(END) is (order[-1] == "end"), "a failure has no end"
        assert world.engine is None
        assert not world.models.under_way


@pytest.mark.parametrize("order", [("request", "up"), ("stream", "comment", "up")])
async def test_a_defect_as_a_request_goes_on_ends_that_request_alone(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    """Its turn comes within another one's end, or within the change of routes."""

    def odd(*_: Any) -> None:
        raise TypeError("odd")

    world = await play(order[:-1])
    monkeypatch.setattr(Dispatch, "next_replica", odd)
    world.happens(order[-1])
    world.check()
    assert not world.models.under_way
    assert b'"code":"internal"' in bytes(world.transport.written)
