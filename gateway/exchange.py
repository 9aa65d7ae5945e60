"""One request to a model: received, admitted, sent to one replica, answered. States as data; no timer of its own.

What follows an end without an answer stands in `outcomes.py`. The gateway sweeps deadlines by `overdue`.
"""

import asyncio
import errno
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import structlog

from controller.live.endpoints import Endpoint
from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import KeyRing, Principal
from gateway.errors import NO_RETRY, GatewayError, response, unavailable
from gateway.event_stream import WholeEvents, is_event_stream
from gateway.live_routes import LiveRoutes
from gateway.meter import Meter
from gateway.outcomes import VERDICTS, Happening, Settled, TryAnother, of_agents_answer
from gateway.pick_instance import RoutingTable
from gateway.request_body import Asked, BadRequestError, read_asked
from gateway.unserved import model_not_found, settled_error, unserved
from gateway.usage.include_usage import asks_for_usage, with_usage_asked, without_usage_chunk
from gateway.usage.passage import Passage
from http1.bodies import Bodies, BodiesFullError, Hold
from http1.client_connection import ClientConnection
from http1.head import HOP_BY_HOP, Fields, RequestHead, ResponseHead, end_to_end, first, request_bytes
from http1.pool import ConnectError, Pool
from http1.server_connection import ServerConnection
from schemas.wire import (
    OUR_HEADERS,
    PROXY_ENGINE_PREFIX,
    PROXY_IN_FLIGHT_HEADER,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
)

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 2**20
UPLOAD_LIMIT_S: Final = 300.0
CLIENT_STALL_S: Final = 60.0  # a client that reads nothing for so long counts as gone
_HELD_LIMIT_S: Final = 5.0
_MOST_HELD_BYTES: Final = 2**20  # of a 503 that is kept while other replicas are tried
_CONNECT_LIMIT_S: Final = 10.0  # the pool's own limit is shorter
_WAIT_LIMIT_S: Final = 5.0  # the routes' own limit is shorter
# A client's keys and cookies are between it and the gateway.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    *(b"host", b"authorization", b"x-api-key", b"api-key", b"cookie", b"content-length", b"expect", b"x-request-id"),
}
_NOT_RETURNED: Final = HOP_BY_HOP | {b"date", b"server", b"set-cookie", b"x-request-id", b"content-length"}
_OURS: Final = OUR_HEADERS.encode()
_ENGINES: Final = PROXY_ENGINE_PREFIX.encode()
_REFUSAL: Final = PROXY_REFUSAL_HEADER.lower().encode()
_OUTCOME: Final = PROXY_OUTCOME_HEADER.lower().encode()
_IN_FLIGHT: Final = PROXY_IN_FLIGHT_HEADER.lower().encode()
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_BUSY: Final = 503


class State(StrEnum):
    """How far a request is. Each state but the last two has a deadline."""

    RECEIVING = "receiving"  # its key is checked, its body is read
    ADMITTED = "admitted"  # complete, and its model is known
    WAITING = "waiting"  # no replica is known: the routes are read again
    CONNECTING = "connecting"  # to a replica's agent
    SENT = "sent"  # some bytes may have reached an engine
    ANSWERING = "answering"  # a part of the engine's answer is on its way to the client
    DONE = "done"  # answered, by an engine or by an error of ours
    CUT = "cut"  # the client is gone, or the answer broke off


EDGES: Final = {
    State.RECEIVING: {State.ADMITTED, State.DONE, State.CUT},
    State.ADMITTED: {State.WAITING, State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.WAITING: {State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.CONNECTING: {State.SENT, State.WAITING, State.CONNECTING, State.DONE, State.CUT},
    State.SENT: {State.ANSWERING, State.WAITING, State.CONNECTING, State.SENT, State.DONE, State.CUT},
    State.ANSWERING: {State.DONE, State.CUT},
    State.DONE: set[State](),
    State.CUT: set[State](),
}
_LIMITS_S: Final = {
    State.RECEIVING: UPLOAD_LIMIT_S,
    State.ADMITTED: _WAIT_LIMIT_S,
    State.WAITING: _WAIT_LIMIT_S,
    State.CONNECTING: _CONNECT_LIMIT_S,
}
_OVER: Final = (State.DONE, State.CUT)


@dataclass(frozen=True, slots=True)
class Models:
    """What all exchanges share.

    Attributes:
        keys: the API's keys.
        routes: where the models' replicas are.
        pool: connections to the agents.
        bodies: bounds the bytes of bodies in flight.
        under_way: the exchanges that are not over.
        meter: keys' limits and usage.
        failed: logs a request that ended with an error of ours: the error, its path and its id.
    """

    keys: KeyRing
    routes: LiveRoutes
    pool: Pool
    bodies: Bodies
    meter: Meter
    failed: Callable[[GatewayError, bytes, str], None]
    under_way: "set[Exchange]" = field(default_factory=set)


@dataclass(slots=True)
class _Held:
    """An engine's 503, kept for the case that no other replica answers. `size` beyond the bound: it is not kept."""

    head: ResponseHead
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


class Exchange:
    """One request. `admit` is called with its key's owner, before its body is read; it refuses by a `GatewayError`."""

    __slots__ = (
        *("_client_gone", "_failed", "_hides_usage", "_passage", "_path", "_principal"),
        *("_admit", "_admitted", "_answer", "_asked", "_busy", "_complete", "_connection", "_endpoint", "_events"),
        *("_head", "_held", "_hold", "_loop", "_models", "_pieces", "_rechecked", "_request_id", "_size", "_state"),
        *("_task", "_tried", "_upstream", "_writable", "deadline"),
    )

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
    ) -> None:
        self._models = models
        self._head = head
        self._connection = connection
        self._request_id = request_id
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._state = State.RECEIVING
        self.deadline = self._loop.time() + UPLOAD_LIMIT_S
        self._admitted = False
        self._complete = not head.has_body
        self._pieces: list[bytes] = []  # of the body
        self._size = 0
        self._hold: Hold | None = None
        self._asked: Asked | None = None
        self._tried: list[str] = []
        self._rechecked = False
        self._endpoint: Endpoint | None = None
        self._upstream: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer: ResponseHead | None = None  # of the engine, until its first piece comes
        self._busy: _Held | None = None  # a 503 that is being read
        self._held: _Held | None = None  # one that was read
        self._events: WholeEvents | None = None
        self._writable = True
        self._path = head.path.decode("latin-1")
        self._principal: Principal | None = None
        self._passage: Passage | None = None  # until it is over
        self._hides_usage = False  # its client did not ask for the chunk with token counts
        self._client_gone = False
        self._failed = False  # an error of ours is the answer

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    def begin(self, principal: Principal | None, key: str) -> None:
        """Admits it at once where its key is in memory, else looks the key up."""
        self._models.under_way.add(self)
        if principal is not None:
            self._admission(principal)
        else:
            self._work(self._authenticate, key)

    async def _authenticate(self, key: str) -> None:
        principal = await self._models.keys.authenticate(key)
        if self._state not in _OVER:
            if principal is None:
                self.fail(unauthenticated())
            else:
                self._admission(principal)

    def _admission(self, principal: Principal) -> None:
        """Refuses by key, limits and head, before the body is read."""
        try:
            self._admit(principal)
            self._passage = self._models.meter.begin(principal, self._path)
        except GatewayError as error:
            self.fail(error)
            return
        if self._passage is None:
            self._work(self._await_share, principal)
        else:
            self._receive(principal)

    async def _await_share(self, principal: Principal) -> None:
        """No request but one that would be refused gets here."""
        passage = await self._models.meter.wait(principal, self._path)
        if self._state in _OVER:
            passage.over()
        else:
            self._passage = passage
            self._receive(principal)

    def _receive(self, principal: Principal) -> None:
        """Its key and limits let it pass: the body may come."""
        try:
            self._principal = principal
            self._hold = self._models.bodies.begin(principal.key_id)
            self._take(max(self._head.length or 0, self._size))
        except GatewayError as error:
            self.fail(error)
            return
        self._admitted = True
        if self._complete:
            self._route()
        else:
            if self._head.expects_continue:
                self._connection.send_continue()
            self._connection.resume_reading()

    def _take(self, size: int) -> None:
        """Counts the body's bytes: announced ones before they are sent, the others as they come."""
        if size > MAX_BODY_BYTES:
            message = f"body: larger than {MAX_BODY_BYTES} bytes; split it or make it smaller"
            raise GatewayError(413, "too_large", message)
        if self._hold is None:
            return
        try:
            self._hold.take_up_to(size)
        except BodiesFullError as error:
            raise _bodies_full(error) from error

    # The client's side

    def body(self, data: bytes) -> None:
        """A part of the request's body."""
        if self._state is not State.RECEIVING:
            return
        self._pieces.append(data)
        self._size += len(data)
        if not self._admitted:
            self._connection.pause_reading()
            return
        try:
            self._take(self._size)
        except GatewayError as error:
            self.fail(error)

    def end(self) -> None:
        """The request is complete."""
        self._complete = True
        if self._admitted and self._state is State.RECEIVING:
            self._route()

    def gone(self) -> None:
        """The client is gone: the engine's request ends with it."""
        if self._state not in _OVER:
            log.info("client gone", request_id=self._request_id, instance=self._endpoint and self._endpoint.instance)
            self._client_gone = True
            self._over(State.CUT)

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer. While it does not, the engine is not silent."""
        self._writable = ready
        if self._upstream is None or self._endpoint is None:
            return
        if ready:
            self._upstream.resume_reading()
            self.deadline = self._loop.time() + self._endpoint.limits.silence_timeout
        else:
            self._upstream.pause_reading()
            self.deadline = math.inf

    # The choice of the replica

    def _route(self) -> None:
        pieces, self._pieces = self._pieces, []
        try:
            self._asked = read_asked(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        except BadRequestError as error:
            self.fail(GatewayError(400, "invalid", str(error), param=error.param or None))
            return
        self._enter(State.ADMITTED)
        asked, table = self._of_asked()
        if self._principal is not None and not self._principal.limits.allows(asked.model):
            self.fail(model_not_found(asked.model))  # as for a name that does not exist
            return
        if self._passage is not None and table.knows(asked.model):
            self._passage.asks(asked.model, self._size)
        self._next_replica()

    def _next_replica(self) -> None:
        """Sends it to the best replica that it has not tried; without one, reads the routes once more, or refuses."""
        asked, table = self._of_asked()
        endpoint = table.pick(asked.model, self._tried)
        if endpoint is not None:
            self._ask(endpoint)
        elif self._held is not None:
            self._answer_held(self._held)
        elif not self._rechecked:
            self._rechecked = True
            self._enter(State.WAITING)
            self._work(self._recheck)
        else:
            self.fail(unserved(asked.model, table, self._tried))

    def _of_asked(self) -> tuple[Asked, RoutingTable]:
        if self._asked is None:
            raise AssertionError("its model is not known yet")
        return self._asked, self._models.routes.current()

    async def _recheck(self) -> None:
        await self._models.routes.recheck()
        if self._state is State.WAITING:
            self._next_replica()

    def _ask(self, endpoint: Endpoint) -> None:
        self._tried.append(endpoint.instance)
        self._endpoint = endpoint
        self._models.routes.table.enter(endpoint)
        host, _, port = endpoint.address.rpartition(":")
        address = (host.strip("[]"), int(port))
        kept = self._models.pool.take(address)
        if kept is not None:
            self._send(endpoint, kept)
        else:
            self._enter(State.CONNECTING)
            self._work(self._connect, endpoint, address)

    async def _connect(self, endpoint: Endpoint, address: tuple[str, int]) -> None:
        try:
            upstream = await self._models.pool.connect(address)
        except ConnectError as error:
            if self._endpoint is endpoint and self._state is State.CONNECTING:
                happening = Happening.NO_FILES if error.errno in _NO_FILES else Happening.NOT_CONNECTED
                self._ended(happening, str(error))
            return
        if self._endpoint is endpoint and self._state is State.CONNECTING:
            self._send(endpoint, upstream)
        else:
            upstream.abort()

    def _send(self, endpoint: Endpoint, upstream: ClientConnection) -> None:
        self._enter(State.SENT)
        self.deadline = self._loop.time() + endpoint.limits.first_token_timeout
        self._upstream = upstream
        asked, _ = self._of_asked()
        body = asked.with_model(endpoint.request_model)
        head = self._head
        fields = end_to_end(head.fields, _NOT_FORWARDED, prefix=_OURS)
        if asks_for_usage(self._path, asked.options):
            with_usage = with_usage_asked(body, asked.options)
            if with_usage is not None:
                body, self._hides_usage = with_usage, True
                fields = [field for field in fields if field[0].lower() != b"accept-encoding"]  # else it is not seen
        fields += (
            (b"host", endpoint.address.encode()),
            (b"authorization", b"Bearer " + endpoint.secret.encode()),
            (b"x-request-id", self._request_id.encode()),
            (b"content-length", b"%d" % len(body)),
        )
        # The target is kept as the client encoded it.
        target = b"%b/%b%b" % (_ENGINES, endpoint.instance.encode(), head.target)
        upstream.begin(request_bytes(head.method, target, fields), self, chunked=False)
        upstream.send(body)
        upstream.end()

    # The engine's side

    def response_head(self, head: ResponseHead) -> None:
        """An answer begins: the engine's own, or the agent's word on what happened."""
        refusal, outcome = first(head.fields, _REFUSAL), first(head.fields, _OUTCOME)
        happening = of_agents_answer(
            refusal=refusal.decode("latin-1") or None, outcome=outcome.decode("latin-1") or None, status=head.status
        )
        if happening is Happening.ENGINE_BUSY:
            self._busy = _Held(head)
            self.deadline = self._loop.time() + _HELD_LIMIT_S
        elif happening is not None:
            self._drop_upstream()
            self._ended(happening, (refusal or outcome).decode("latin-1"))
        elif self._endpoint is not None:
            self._answer = head
            table = self._models.routes.table
            table.answered(self._endpoint)
            told = first(head.fields, _IN_FLIGHT)
            if told.isdigit():
                table.told(self._endpoint, int(told))

    def response_body(self, data: bytes) -> None:
        """A part of the answer."""
        if self._busy is not None:
            self._busy.size += len(data)
            if self._busy.size <= _MOST_HELD_BYTES:
                self._busy.pieces.append(data)
            return
        if self._answer is None or self._endpoint is None:
            return
        if self._state is State.SENT:
            self._begin_answer(self._answer, length=self._answer.length)
        if self._writable:
            self.deadline = self._loop.time() + self._endpoint.limits.silence_timeout
        if self._passage is not None:
            self._passage.piece(data)
        self._connection.send(data if self._events is None else self._shown(self._events.pass_on(data)))

    def response_end(self) -> None:
        """The answer is complete."""
        self._upstream = None
        if self._busy is not None:
            self._ended_busy(kept=self._busy.size <= _MOST_HELD_BYTES)
            return
        if self._answer is None:
            return
        if self._state is State.SENT:
            self._begin_answer(self._answer, length=self._answer.length or 0)
        if self._events is not None:
            self._connection.send(self._shown(self._events.rest()))
        self._over(State.DONE)
        self._connection.finish()

    def response_failed(self, why: str) -> None:
        """The connection to the agent ended before the answer did."""
        self._upstream = None
        if self._busy is not None:
            self._ended_busy(kept=False)
        else:
            midway = self._state is State.ANSWERING
            self._ended(Happening.BROKE_OFF_MIDWAY if midway else Happening.BROKE_OFF, why)

    def request_writable(self, *, ready: bool) -> None:
        """The body is in memory and under its bound: it waits in the transport."""

    def _begin_answer(self, head: ResponseHead, *, length: int | None) -> None:
        """The headers waited for the first piece: until then, an end of the engine is an error with a status."""
        self._enter(State.ANSWERING)
        self._asked = None  # the body goes nowhere else from now on
        self._release()
        kind, encoding = first(head.fields, b"content-type"), first(head.fields, b"content-encoding")
        if is_event_stream(kind, encoding):
            self._events = WholeEvents()
        if self._passage is not None:
            self._passage.answered(head.status, events=is_event_stream(kind, b""), encoding=encoding.decode("latin-1"))
        hides = self._hides_usage and self._events is not None
        self._connection.start(head.status, self._returned(head), length=None if hides else length)

    def _shown(self, events: bytes) -> bytes:
        return without_usage_chunk(events) if self._hides_usage else events

    def _returned(self, head: ResponseHead) -> Fields:
        fields = end_to_end(head.fields, _NOT_RETURNED, prefix=_OURS)
        fields.append((b"x-request-id", self._request_id.encode()))
        if self._passage is not None:
            fields += self._models.meter.headers(self._passage)
        return fields

    # Ends without an answer

    def overdue(self, now: float) -> None:
        """Ends the state whose deadline has passed at loop time `now`, if so."""
        if now < self.deadline:
            return
        match self._state:
            case State.RECEIVING:
                message = f"body: did not arrive within {UPLOAD_LIMIT_S:g} s; send it again"
                self.fail(GatewayError(408, "body_timed_out", message))
            case State.CONNECTING:
                self._ended(Happening.NOT_CONNECTED, "no connection in time")
            case State.SENT if self._busy is not None:
                self._drop_upstream()
                self._ended_busy(kept=False)
            case State.SENT:
                self._drop_upstream()
                self._ended(Happening.SILENT, "nothing came in time")
            case State.ANSWERING:
                self._ended(Happening.SILENT_MIDWAY, "nothing more came in time")
            case State.ADMITTED | State.WAITING:
                self.fail(unavailable("no replica was found in time; try again in a moment"))
            case _:
                pass

    def end_for_stop(self) -> None:
        """The gateway stops, and the time to drain is over."""
        message = "the gateway stops; the answer is incomplete and is not repeated"
        if self._state is State.ANSWERING:
            self._break_off("unavailable", message)
        elif self._state not in _OVER:
            self.fail(GatewayError(503, "unavailable", message, headers=NO_RETRY))

    def fail(self, error: GatewayError) -> None:
        """Answers with an error of ours. Nothing of an answer was sent."""
        if self._state in _OVER:
            return
        self._failed = True
        self._over(State.DONE)
        self._models.failed(error, self._head.path, self._request_id)
        fields, body = response(error, self._head.path, self._request_id)
        fields.append((b"x-request-id", self._request_id.encode()))
        self._connection.answer(error.status, fields, body)

    def _ended(self, happening: Happening, detail: str) -> None:
        """One replica gave no answer: the table of verdicts says what follows."""
        endpoint, table = self._endpoint, self._models.routes.table
        if endpoint is None:
            return
        self._leave()
        match VERDICTS[happening]:
            case TryAnother():
                table.refused(endpoint)
                name = happening.name.lower()
                log.info("replica refused", instance=endpoint.instance, happening=name, error=detail)
                self._next_replica()
            case Settled(status=None) as settled:
                log.warning("answer broke off", instance=endpoint.instance, code=settled.code, error=detail)
                what = f"the answer of {endpoint.model!r} broke off ({settled.code}); it is incomplete"
                self._break_off(settled.code, f"{what} and is not repeated")
            case Settled() as settled:
                self.fail(settled_error(settled, endpoint, detail))

    def _ended_busy(self, *, kept: bool) -> None:
        busy, self._busy = self._busy, None
        if kept and busy is not None:
            self._held = busy
        self._ended(Happening.ENGINE_BUSY, "the engine answered 503")

    def _answer_held(self, held: _Held) -> None:
        fields = self._returned(held.head)
        if not first(fields, b"retry-after"):
            fields.append((b"retry-after", b"1"))
        self._over(State.DONE)
        self._connection.answer(_BUSY, fields, b"".join(held.pieces))

    def _break_off(self, code: str, message: str) -> None:
        """Tells the client by an error event where it reads events, and by the cut connection in any case."""
        events = self._events
        self._over(State.CUT)
        if events is not None:
            self._connection.send(events.error(self._head.path, code, message))
        self._connection.close()

    # What it holds

    def _work(self, wait: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Runs what has to wait. An error of ours becomes the answer; a defect ends this request alone."""

        async def run() -> None:
            try:
                await wait(*args)
            except GatewayError as error:
                self.fail(error)
            except UnknownWhileAwayError as error:
                self.fail(unavailable(str(error)))
            except Exception as error:
                log.exception("request failed", request_id=self._request_id)
                text = "internal error; search the gateway's log for the request id"
                self.fail(GatewayError(500, "internal", text, details={"cause": type(error).__name__}))

        self._task = asyncio.create_task(run(), name="exchange")

    def _leave(self) -> None:
        """It is no longer at its replica."""
        endpoint, self._endpoint = self._endpoint, None
        self._drop_upstream()
        if endpoint is not None:
            self._models.routes.table.leave(endpoint)

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _over(self, state: State) -> None:
        broken = self._state is State.ANSWERING and state is State.CUT and not self._client_gone
        self._enter(state)
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.over(broken=broken or self._failed)
        self._leave()
        self._pieces.clear()
        self._release()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._models.under_way.discard(self)

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._models.bodies.release(hold)

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
        limit_s = _LIMITS_S.get(state)
        if limit_s is not None:
            self.deadline = self._loop.time() + limit_s


def unauthenticated() -> GatewayError:
    """401."""
    return GatewayError(
        401,
        "unauthenticated",
        "API key is missing or invalid; send Authorization: Bearer KEY (for gpuward: set GPUWARD_API_KEY)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _bodies_full(error: BodiesFullError) -> GatewayError:
    limit = f"{error.limit_bytes // 2**20} MiB"
    if error.of_key:
        message = f"body: this key's requests in flight would hold more than {limit}; wait until others are answered"
        return GatewayError(429, "too_much_in_flight", message)
    return GatewayError(
        503, "overloaded", f"body: all requests in flight would hold more than {limit}; try again in a moment"
    )
