"""One request to an engine on its loopback port: its answer passes on, or an answer of ours says what happened.

What provably did not reach the engine is marked as a refusal, so that another replica may have it. All else is final.
"""

import asyncio
import errno
from collections import deque
from typing import Final

import structlog

from agent.decide.stalls import Wait
from agent.engine_proxy.answers import end, refuse
from agent.engine_proxy.engine_states import ANSWERING, CONNECTING, CUT, DONE, EDGES, SENT, State
from agent.engine_proxy.in_flight import InFlightRequests
from http1.client_connection import ClientConnection
from http1.handler import Handler
from http1.head import HOP_BY_HOP, SWITCHING, PassedOn, RequestHead, ResponseHead, end_to_end
from http1.pool import ConnectError, Pool
from http1.server_connection import ServerConnection
from http1.server_states import Progress
from http1.sweeper import Sweeper
from schemas.wire import OUR_HEADERS, PROXY_IN_FLIGHT_HEADER

# Secrets and cookies of the hops before; "expect" is answered when the engine takes the body.
_OURS: Final = OUR_HEADERS.encode()
_NOT_FORWARDED: Final = {b"host", b"authorization", b"x-api-key", b"api-key", b"cookie", b"expect"}
_FORWARDED: Final = PassedOn(HOP_BY_HOP | _NOT_FORWARDED, _OURS)
_RETURNED: Final = PassedOn(HOP_BY_HOP, _OURS)
_BEGIN: Final = b"%b %b HTTP/1.1\r\n%bhost: 127.0.0.1:%d\r\n"
_IN_FLIGHT: Final = PROXY_IN_FLIGHT_HEADER.lower().encode()
_READ_LIMIT_S: Final = 90_000.0  # between two pieces; a last resort, beyond the limits of any deployment
PROGRESS: Final = Progress(body_s=60.0, write_s=300.0)
KEPT_S: Final = 1.5  # idle connections. Engines end theirs after 5 s (uvicorn, llama.cpp) or 2 s (gunicorn)
_SWEEP_S: Final = 0.5
_GIVEN_UP: Final = 1000  # that are kept of an instance
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_LOOPBACK: Final = "127.0.0.1"

log = structlog.get_logger()


class Engines:
    """The requests to this host's engines, and the connections kept for them. Made in the loop that serves."""

    def __init__(self, in_flight: InFlightRequests, most: int | None = None) -> None:
        self.in_flight = in_flight
        self.pool = Pool(idle_s=KEPT_S, most=most)
        self.under_way: set[EngineExchange] = set()
        self.answered: dict[str, float] = {}  # when the last answer of an instance was complete
        self._given_up: dict[str, deque[tuple[float, float]]] = {}  # sent, and left by their callers, without an answer
        self.loop = asyncio.get_running_loop()
        self._sweeper = Sweeper("requests to engines", _SWEEP_S, self._sweep)
        self._sweeper.start()

    def close(self) -> None:
        """Cuts all requests and connections."""
        self._sweeper.stop()
        for exchange in list(self.under_way):
            exchange.cut()
        self.pool.close()

    def ask(self, head: RequestHead, connection: ServerConnection, instance: str, port: int, target: bytes) -> Handler:
        """Passes a request on to the engine of an instance; returns what handles the rest of it."""
        exchange = EngineExchange(self, head, connection, instance, port, target)
        self.under_way.add(exchange)
        self.in_flight.began(instance)
        exchange.begin()
        return exchange

    def given_up(self, instance: str, sent: float) -> None:
        """A caller left that was sent not a byte of its answer."""
        self._given_up.setdefault(instance, deque(maxlen=_GIVEN_UP)).append((sent, self.loop.time()))

    def waits(self, instance: str) -> tuple[list[Wait], float | None]:
        """The requests that wait for the engine or did so in vain, and how long ago it gave a byte of an answer.

        A request that still comes, or whose caller takes nothing, does not wait for the engine. None: it never did.
        """
        now = self.loop.time()
        sign = self.answered.get(instance)
        waiting: list[Wait] = []
        for one in self.under_way:
            if one.instance != instance:
                continue
            if one.state is ANSWERING:
                sign = one.since if sign is None else max(sign, one.since)
            if one.waits_for_engine:
                waiting.append(Wait(now - one.since))
        waiting += [Wait(now - sent, now - left) for sent, left in self._given_up.get(instance, ())]
        return waiting, None if sign is None else now - sign

    def forget(self, instance: str) -> None:
        """Its process is another one from now on."""
        self.answered.pop(instance, None)
        self._given_up.pop(instance, None)

    def _sweep(self, now: float) -> None:
        def look(exchange: EngineExchange) -> None:
            if now - exchange.since > _READ_LIMIT_S:
                exchange.silent()

        self._sweeper.each(self.under_way, look)
        self.pool.sweep()


class EngineExchange:
    """One request on its way to an engine, and the answer on its way back."""

    __slots__ = (
        *("_answer", "_complete", "_connecting", "_connection", "_engine", "_engines", "_head", "_held", "_instance"),
        *("_port", "_ready", "_state", "_target", "_tunnel", "since"),
    )

    def __init__(
        self,
        engines: Engines,
        head: RequestHead,
        connection: ServerConnection,
        instance: str,
        port: int,
        target: bytes,
    ) -> None:
        self._engines = engines
        self._head = head
        self._connection = connection
        self._instance = instance
        self._port = port
        self._target = target
        self._state = CONNECTING
        self._engine: ClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        body = head.take_body()
        first = head.take_first()
        # Of the body, until the engine's connection is open.
        self._held: list[bytes | memoryview] = [body] if body else [first] if first is not None else []
        self._complete = body is not None or head.length == 0
        self._answer: ResponseHead | None = None  # whose body's beginning comes at once
        self._ready = True  # whether the caller takes more
        self._tunnel = False  # the protocol was switched: bytes both ways
        self.since = self._engines.loop.time()  # of the last progress

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    @property
    def instance(self) -> str:
        """Whose engine it goes to."""
        return self._instance

    @property
    def waits_for_engine(self) -> bool:
        """Whether the engine has the whole request, and the caller takes its answer."""
        return self._complete and self._ready and not self._tunnel and self._state in (SENT, ANSWERING)

    def begin(self) -> None:
        """Sends the request; where its body comes at once, with that."""
        if self._complete or not self._connection.complete:
            self._ask()
        if self._held and not self._complete and self._state is CONNECTING:
            self._connection.pause_reading()

    def _ask(self) -> None:
        """Sends the request on a kept connection, or opens one."""
        kept = self._engines.pool.take((_LOOPBACK, self._port))
        if kept is not None:
            self._send(kept)
        else:
            self._connecting = asyncio.create_task(self._connect(), name="engine-connection")

    async def _connect(self) -> None:
        try:
            engine = await self._engines.pool.connect((_LOOPBACK, self._port))
        except ConnectError as error:
            if error.errno in _NO_FILES:
                self._refuse("overloaded", "this worker's agent can open no more connections")
            else:
                self._refuse("engine_refused", f"the engine accepts no connection: {error}")
            return
        self._connecting = None
        if self._state is CONNECTING:
            self._send(engine)
        else:
            engine.abort()

    def _send(self, engine: ClientConnection) -> None:
        self._enter(SENT)
        self._engine = engine
        head = self._head
        chunked, head_only = head.length is None, head.method == b"HEAD"
        framing = b"transfer-encoding: chunked\r\n" if chunked else _line(head, b"content-length")
        begin: bytes | None = head.alike.get(self._port)  # the same for all heads that are alike
        if begin is None:
            begin = head.alike[self._port] = _BEGIN % (head.method, self._target, _FORWARDED.lines(head), self._port)
        sent = b"%b%b%b\r\n" % (begin, _line(head, b"x-request-id"), framing)
        held, self._held = self._held, []
        if head.upgrade:
            upgrade = b"%bconnection: upgrade\r\nupgrade: %b\r\n\r\n" % (sent[:-2], head.upgrade)
            engine.begin(upgrade, self, chunked=False, upgrade=True)
            engine.end()
            return
        if self._complete and not chunked:
            engine.ask(sent, held, self, head_only)
            return
        engine.begin(sent, self, chunked=chunked, head_only=head_only, body=() if chunked else held)
        if head.expects_continue:
            self._connection.send_continue()
        for piece in held if chunked else ():
            engine.send(bytes(piece))
        if self._complete:
            engine.end()
        elif engine.takes_more:
            self._connection.resume_reading()

    # The caller's side

    def body(self, data: bytes) -> None:
        """A part of the request's body."""
        self.since = self._engines.loop.time()
        if self._engine is not None:
            self._engine.send(data)
        elif self._state is CONNECTING:
            self._held.append(data)
            self._connection.pause_reading()

    def end(self) -> None:
        """The request is complete."""
        self._complete = True
        if self._engine is not None:
            self._engine.end()
        elif self._state is CONNECTING and self._connecting is None:
            self._ask()

    def gone(self) -> None:
        """The caller is gone: the engine's request ends with it."""
        if self._state not in (DONE, CUT):
            if self._state is SENT and self._complete:
                self._engines.given_up(self._instance, self.since)
            self._over(CUT)

    def writable(self, *, ready: bool) -> None:
        """Whether the caller takes more of the answer."""
        self._ready = ready
        if self._engine is not None:
            (self._engine.resume_reading if ready else self._engine.pause_reading)()

    # The engine's side

    def response_head(self, head: ResponseHead) -> None:
        """The engine answers. Its reason phrase says nothing, and may hold what cannot be passed on."""
        self._enter(ANSWERING)
        if head.status == SWITCHING:
            self._tunnel = True
            fields = end_to_end(head, prefix=_OURS)
            self._connection.switch([*fields, (b"connection", b"upgrade"), (b"upgrade", self._head.upgrade)])
            return
        if head.alone:
            self._begin_answer(head)
        else:
            self._answer = head

    def _begin_answer(self, head: ResponseHead, body: bytes = b"") -> None:
        self._answer = None
        in_flight = self._engines.in_flight.count(self._instance)
        # The id and the length stand together: see `http1.known_heads`.
        lines = b"%b%b: %d\r\n%b" % (_RETURNED.lines(head), _IN_FLIGHT, in_flight, _line(head, b"x-request-id"))
        length = head.length
        if self._head.method == b"HEAD" or head.status == 304:  # noqa: PLR2004 - they state a length and have none
            lines, length = lines + _line(head, b"content-length"), None
        if length is None:
            self._head.drop_fields()
        self._connection.start(head.status, lines, length=length, body=body)
        if not self._ready and self._engine is not None:
            self._engine.pause_reading()

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the answer."""
        self.since = self._engines.loop.time()
        if self._answer is not None:
            self._begin_answer(self._answer, data)
        else:
            self._connection.send(data, chunks)

    def response_end(self) -> None:
        """The answer is complete."""
        if self._answer is not None:
            self._begin_answer(self._answer)
        self._engine = None
        self._over(DONE)
        self._engines.answered[self._instance] = self.since
        self._connection.finish()

    def response_failed(self, why: str) -> None:
        """The engine's connection ended, and the engine may have seen the request."""
        self._engine = None
        if not self._tunnel:  # which ends so
            log.info("engine's answer incomplete", instance=self._instance, error=why)
        self._fail(502, "engine_died", f"the engine ended before it answered: {why}")

    def request_writable(self, *, ready: bool) -> None:
        """Whether the engine takes more of the request."""
        if ready:
            self._connection.resume_reading()
        else:
            self._connection.pause_reading()

    # What ends it otherwise

    def silent(self) -> None:
        """The last resort: nothing has come for very long."""
        self._fail(504, "timed_out", f"the engine was silent for {_READ_LIMIT_S:g} s")

    def cut(self) -> None:
        """Ends the request and its caller's connection: this agent ends."""
        self._over(CUT)
        self._connection.abort()

    def _refuse(self, code: str, message: str) -> None:
        if self._state is CONNECTING:
            self._over(DONE)
            refuse(self._connection, 503, code, message)

    def _fail(self, status: int, code: str, message: str) -> None:
        """Tells the caller; once a part of the answer was sent, only a connection without its end shows it."""
        if self._state is ANSWERING:
            self._over(CUT)
            self._connection.close()
        elif self._state is not DONE:
            self._over(DONE)
            end(self._connection, status, code, message)

    def _over(self, state: State) -> None:
        self._enter(state)
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abort()
        if self._connecting is not None:
            self._connecting.cancel()
        self._engines.under_way.discard(self)
        self._engines.in_flight.ended(self._instance)

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
        self.since = self._engines.loop.time()


def _line(head: RequestHead | ResponseHead, name: bytes) -> bytes:
    """The line of a field, as it came; empty without one."""
    value = head.named.get(name)
    return b"" if value is None else b"%b: %b\r\n" % (name, value)
