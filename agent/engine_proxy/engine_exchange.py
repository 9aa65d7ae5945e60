"""One request to an engine on its loopback port, and the relayed answer or the agent's own.

A request that provably did not reach the engine is refused, so that another replica may get it. Other ends are final.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

import structlog

from agent.decide.stalls import Wait
from agent.engine_proxy.answers import end, refuse
from agent.engine_proxy.in_flight import InFlightRequests
from http1.daemon.sweeper import Sweeper
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import ConnectError
from http1.protocol.handler import Handler
from http1.protocol.heads import HOP_BY_HOP, SWITCHING, PassedOn, RequestHead, ResponseHead
from http1.protocol.server_connection import ServerConnection
from http1.protocol.states import Progress
from http1.relay import ANSWERING, CONNECTING, DONE, SENT, TUNNEL, Relay, State
from schemas.wire import OUR_HEADERS, PROXY_IN_FLIGHT_HEADER

# Secrets and cookies of earlier hops; "expect" is answered when the engine takes the body.
_OURS: Final = OUR_HEADERS.encode()
_NOT_FORWARDED: Final = {b"host", b"authorization", b"x-api-key", b"api-key", b"cookie", b"expect"}
_FORWARDED: Final = PassedOn(HOP_BY_HOP | _NOT_FORWARDED, _OURS)
_RETURNED: Final = PassedOn(HOP_BY_HOP, _OURS)
_BEGIN: Final = b"%b %b HTTP/1.1\r\n%bhost: 127.0.0.1:%d\r\n"
_IN_FLIGHT: Final = PROXY_IN_FLIGHT_HEADER.lower().encode()
_READ_LIMIT_S: Final = 90_000.0  # between two reads; beyond the limits of any deployment
PROGRESS: Final = Progress(body_s=60.0, write_s=300.0)
KEPT_S: Final = 1.5  # idle connections. Engines close theirs after 5 s (uvicorn, llama.cpp) or 2 s (gunicorn)
_SWEEP_S: Final = 0.5
_GIVEN_UP: Final = 1000  # kept of an instance
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_LOOPBACK: Final = "127.0.0.1"

log = structlog.get_logger()


class Engines:
    """The requests to this host's engines, and their kept connections. Create it in the serving loop."""

    def __init__(self, in_flight: InFlightRequests, most: int | None = None) -> None:
        self.in_flight = in_flight
        self.pool = Pool(idle_s=KEPT_S, most=most)
        self.under_way: set[EngineExchange] = set()
        self.answered: dict[str, float] = {}  # when the last answer of an instance was complete
        self._given_up: dict[str, deque[tuple[float, float]]] = {}  # sent, and left by callers, without an answer
        self.loop = asyncio.get_running_loop()
        self._sweeper = Sweeper("requests to engines", _SWEEP_S, self._sweep)
        self._sweeper.start()

    def close(self) -> None:
        """Aborts all requests and connections."""
        self._sweeper.stop()
        for exchange in list(self.under_way):
            exchange.cut()
        self.pool.close()

    def forward(
        self, head: RequestHead, connection: ServerConnection, instance: str, port: int, target: bytes
    ) -> Handler:
        """Forwards a request to the engine of an instance; returns the handler of its remaining input."""
        exchange = EngineExchange(self, head, connection, instance, port, target)
        self.under_way.add(exchange)
        self.in_flight.started(instance)
        exchange.begin()
        return exchange

    def given_up(self, instance: str, sent: float) -> None:
        """A caller left before the first byte of its answer."""
        self._given_up.setdefault(instance, deque(maxlen=_GIVEN_UP)).append((sent, self.loop.time()))

    def waits(self, instance: str) -> tuple[list[Wait], float | None]:
        """Waits for the engine, of present requests and of callers that gave up, and the age of its last byte.

        An incomplete request, and one whose caller does not read, does not wait for the engine. The age is None if the
        engine has never answered.
        """
        now = self.loop.time()
        answered = self.answered.get(instance)
        waiting: list[Wait] = []
        for exchange in self.under_way:
            if exchange.instance != instance:
                continue
            if exchange.state is ANSWERING or exchange.state is TUNNEL:
                answered = exchange.moved if answered is None else max(answered, exchange.moved)
            if exchange.waits_for_engine:
                waiting.append(Wait(now - exchange.moved))
        waiting += [Wait(now - sent, now - left) for sent, left in self._given_up.get(instance, ())]
        return waiting, None if answered is None else now - answered

    def forget(self, instance: str) -> None:
        """A new process of the instance starts."""
        self.answered.pop(instance, None)
        self._given_up.pop(instance, None)

    def _sweep(self, now: float) -> None:
        self._sweeper.each(self.under_way, lambda exchange: exchange.overdue(now))
        self.pool.sweep()


class EngineExchange(Relay):
    """One request to an engine."""

    __slots__ = ("_engines", "_port", "_target", "instance")
    limits_s: ClassVar[Mapping[State, float]] = dict.fromkeys((CONNECTING, SENT, ANSWERING, TUNNEL), _READ_LIMIT_S)

    def __init__(
        self,
        engines: Engines,
        head: RequestHead,
        connection: ServerConnection,
        instance: str,
        port: int,
        target: bytes,
    ) -> None:
        super().__init__(head, connection, engines.loop)
        self._engines = engines
        self.instance = instance
        self._port = port
        self._target = target

    @property
    def waits_for_engine(self) -> bool:
        """Whether the engine has the complete request, and the caller reads the answer."""
        return self.complete and self.ready and (self.state is SENT or self.state is ANSWERING)

    def begin(self) -> None:
        kept = self._engines.pool.take((_LOOPBACK, self._port))
        if kept is not None:
            self.connected(kept)
            return
        self.connect(partial(self._engines.pool.connect, (_LOOPBACK, self._port)))
        if self.held and not self.complete:
            self.client.pause_reading()

    def connected(self, server: ClientConnection) -> None:
        head = self.head
        begin: bytes | None = head.alike.get(self._port)  # cached for equal heads
        if begin is None:
            begin = head.alike[self._port] = _BEGIN % (head.method, self._target, _FORWARDED.lines(head), self._port)
        if head.upgrade:
            framing = b"connection: upgrade\r\nupgrade: %b\r\n" % head.upgrade
        elif head.length is None:
            framing = b"transfer-encoding: chunked\r\n"
        else:
            framing = _line(head, b"content-length")
        self.send(server, b"%b%b%b\r\n" % (begin, _line(head, b"x-request-id"), framing))

    def answer_lines(self, head: ResponseHead) -> bytes:
        """The engine's fields. Its reason phrase is dropped, since it may be invalid."""
        lines, request_id = _RETURNED.lines(head), _line(head, b"x-request-id")
        if head.status == SWITCHING:
            return lines + request_id
        # The length follows the id: see `http1.protocol.fast_paths`.
        return b"%b%b: %d\r\n%b" % (lines, _IN_FLIGHT, self._engines.in_flight.count(self.instance), request_id)

    def response_end(self) -> None:
        self._engines.answered[self.instance] = self._loop.time()
        super().response_end()

    def response_failed(self, why: str) -> None:
        if self.state is not TUNNEL:  # a tunnel ends so
            log.info("engine's answer incomplete", instance=self.instance, error=why)
        super().response_failed(why)

    def not_connected(self, error: ConnectError) -> None:
        self.over(DONE)
        if error.errno in _NO_FILES:
            refuse(self.client, 503, "overloaded", "this worker's agent can open no more connections")
        else:
            refuse(self.client, 503, "engine_refused", f"the engine accepts no connection: {error}")

    def unanswered(self, why: str) -> None:
        """Answers 502: the engine may have received the request."""
        self.over(DONE)
        end(self.client, 502, "engine_died", f"the engine ended before it answered: {why}")

    def silent(self) -> None:
        if self.state is ANSWERING or self.state is TUNNEL:
            self.break_off()  # the caller has a part of the answer
        else:
            self.over(DONE)
            end(self.client, 504, "timed_out", f"the engine was silent for {_READ_LIMIT_S:g} s")

    def gone(self) -> None:
        """The caller has left, which ends the engine's request."""
        if self.state is SENT and self.complete:
            self._engines.given_up(self.instance, self.moved)
        super().gone()

    def over(self, state: State) -> None:
        super().over(state)
        self._engines.under_way.discard(self)
        self._engines.in_flight.ended(self.instance)


def _line(head: RequestHead | ResponseHead, name: bytes) -> bytes:
    """The unchanged line of a field; empty if it is missing."""
    value = head.named.get(name)
    return b"" if value is None else b"%b: %b\r\n" % (name, value)
