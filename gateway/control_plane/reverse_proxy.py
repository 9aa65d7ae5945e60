"""What is not for a model goes on to the controller: bytes both ways, WebSockets included.

Each request gets a connection of its own, so that none inherits what the controller thinks of another one's key.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

from gateway.errors import response, unavailable
from http1.daemon.log_limit import LogLimit
from http1.forwarded import BEHIND_PROXY_HEADER, GATEWAY_HEADER
from http1.protocol.admission import AGENT
from http1.protocol.client import Address, ClientConnection, ConnectError, Pool
from http1.protocol.heads import HOP_BY_HOP, SWITCHING, Fields, RequestHead, ResponseHead, end_to_end, request_bytes
from http1.protocol.server_connection import ServerConnection
from schemas.wire import OUR_HEADERS

log = structlog.get_logger(__name__)

BEHIND_PROXY_FIELD: Final = BEHIND_PROXY_HEADER.lower().encode()
_GATEWAY_FIELD: Final = GATEWAY_HEADER.lower().encode()
_OURS: Final = OUR_HEADERS.encode()
# Only the gateway's own word on where a request comes from reaches the controller.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    *(b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port"),
    *(b"x-forwarded-prefix", b"x-forwarded-server", b"x-real-ip", b"x-request-id", b"expect"),
}
_NOT_RETURNED: Final = HOP_BY_HOP | {b"content-length"}
_CONNECTION: Final = b"connection"
_UPGRADE: Final = b"upgrade"
# Longer than any handler of the controller takes. It counts from the last sign of the request's progress.
ANSWER_LIMIT_S: Final = 120.0


class State(StrEnum):
    """How far a request is."""

    CONNECTING = "connecting"
    SENT = "sent"
    ANSWERING = "answering"
    TUNNEL = "tunnel"
    DONE = "done"
    CUT = "cut"


EDGES: Final = {
    State.CONNECTING: {State.SENT, State.DONE, State.CUT},
    State.SENT: {State.ANSWERING, State.TUNNEL, State.DONE, State.CUT},
    State.ANSWERING: {State.DONE, State.CUT},
    State.TUNNEL: {State.CUT},
    State.DONE: set[State](),
    State.CUT: set[State](),
}
_OVER: Final = (State.DONE, State.CUT)


@dataclass(slots=True)
class Controller:
    """Where the controller is, or several that share a database: the one that answers is asked.

    Attributes:
        address: that of the one to ask: its Unix socket, or host and port.
        secret: by which it believes what the gateway says of clients; empty on its socket, which needs none.
        pool: makes the connections; none is kept.
        under_way: requests that are passed on.
        failures: bounds the log lines about requests that could not be passed on.
        others: addresses of further ones, in the order in which they are asked next.
    """

    address: Address
    secret: str
    pool: Pool
    under_way: "set[Passed]" = field(default_factory=set)
    failures: LogLimit = field(default_factory=LogLimit)
    others: deque[Address] = field(default_factory=deque)

    async def connect(self) -> ClientConnection:
        """A new connection, to the next one where this one takes none: no byte has left until then.

        Raises:
            ConnectError: none of them takes one.
        """
        for _ in range(len(self.others)):
            asked = self.address
            try:
                return await self.pool.connect(asked)
            except ConnectError:
                self.silent(asked)
        return await self.pool.connect(self.address)

    def silent(self, asked: Address) -> None:
        """The controller at this address does not answer: the next one is asked, unless that has happened already."""
        if self.others and asked == self.address:
            self.others.append(self.address)
            self.address = self.others.popleft()

    def credential(self) -> Fields:
        """The fields by which the controller knows the gateway."""
        return [(_GATEWAY_FIELD, self.secret.encode())] if self.secret else []


class Passed:
    """One request on its way to the controller, and the answer on its way back."""

    __slots__ = (
        "_asked",
        "_complete",
        "_connection",
        "_controller",
        "_fields",
        "_head",
        "_held",
        "_known",
        "_moved",
        "_state",
        "_task",
        "_upstream",
    )

    def __init__(
        self,
        controller: Controller,
        head: RequestHead,
        connection: ServerConnection,
        fields: Fields,
        *,
        known: bool = False,
    ) -> None:
        """`known`: the connection was admitted with a key of the API."""
        self._known = known
        self._controller = controller
        self._asked = controller.address
        self._head = head
        self._connection = connection
        self._fields = fields
        self._state = State.CONNECTING
        self._complete = not head.has_body
        self._held: list[bytes] = []  # of the body, until the connection is open
        self._upstream: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.get_running_loop().time()

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    def begin(self) -> None:
        """Connects."""
        self._controller.under_way.add(self)
        self._task = asyncio.create_task(self._connect(), name="controller-connection")

    def overdue(self, now: float) -> None:
        """Ends the request if the controller took it and has not answered in time; `now` is of the loop's clock."""
        if self._state is State.SENT and now - self._moved > ANSWER_LIMIT_S:
            self._controller.silent(self._asked)
            self._fail(f"the controller did not answer within {ANSWER_LIMIT_S:.0f} s; try again in a moment")

    def cut(self) -> None:
        """Ends the request and its client's connection."""
        if self._state not in _OVER:
            self._over(State.CUT)
        self._connection.abort()

    async def _connect(self) -> None:
        try:
            upstream = await self._controller.connect()
        except ConnectError as error:
            if self._state is State.CONNECTING:
                self._fail(f"the controller cannot be reached: {error}; try again in a moment")
            return
        self._task = None
        if self._state is State.CONNECTING:
            self._send(upstream)
        else:
            upstream.abort()

    def _send(self, upstream: ClientConnection) -> None:
        self._enter(State.SENT)
        self._moved = asyncio.get_running_loop().time()
        self._asked = self._controller.address
        self._upstream = upstream
        head = self._head
        fields = end_to_end(head, _NOT_FORWARDED, prefix=_OURS)
        fields += self._fields
        fields += self._controller.credential()
        chunked = head.length is None
        if chunked:
            fields.append((b"transfer-encoding", b"chunked"))
        fields += [(_CONNECTION, _UPGRADE), (_UPGRADE, head.upgrade)] if head.upgrade else [(_CONNECTION, b"close")]
        sent = request_bytes(head.method, head.target, fields)
        upstream.begin(sent, self, chunked=chunked, head_only=head.method == b"HEAD", upgrade=bool(head.upgrade))
        if head.expects_continue:
            self._connection.send_continue()
        for piece in self._held:
            upstream.send(piece)
        self._held.clear()
        if self._complete:
            upstream.end()
        elif upstream.takes_more:
            self._connection.resume_reading()

    # The client's side

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client."""
        if self._state is State.SENT:
            self._moved = asyncio.get_running_loop().time()
        if self._upstream is not None:
            self._upstream.send(data)
        elif self._state is State.CONNECTING:
            self._held.append(data)
            self._connection.pause_reading()

    def end(self) -> None:
        """The request is complete."""
        self._complete = True
        if self._upstream is not None:
            self._upstream.end()

    def gone(self) -> None:
        """The client is gone."""
        if self._state not in _OVER:
            self._over(State.CUT)

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer."""
        if self._upstream is not None:
            (self._upstream.resume_reading if ready else self._upstream.pause_reading)()

    # The controller's side

    def response_head(self, head: ResponseHead) -> None:
        """The controller answers."""
        if head.status == SWITCHING:
            self._enter(State.TUNNEL)
            if not self._known:
                self._connection.admit(standing=AGENT)  # the controller has taken the credential
            fields = end_to_end(head, HOP_BY_HOP)
            fields += [(_CONNECTION, _UPGRADE), (_UPGRADE, self._head.upgrade)]
            self._connection.switch(fields)
            return
        self._enter(State.ANSWERING)
        whole = self._head.method == b"HEAD" or head.status == 304  # noqa: PLR2004 - they state a length and have none
        fields = end_to_end(head, HOP_BY_HOP if whole else _NOT_RETURNED)
        self._connection.start(head.status, fields, length=None if whole else head.length)

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the answer; in a tunnel, bytes of the controller."""
        self._connection.send(data, chunks)

    def response_end(self) -> None:
        """The answer is complete."""
        self._upstream = None
        self._over(State.DONE)
        self._connection.finish()

    def response_failed(self, why: str) -> None:
        """The controller's connection ended: a tunnel ends with it, and an answer is cut."""
        self._upstream = None
        if self._state in (State.ANSWERING, State.TUNNEL):
            self._over(State.CUT)
            self._connection.close()
        elif self._state not in _OVER:
            self._fail(f"the controller ended before it answered: {why}; try again in a moment")

    def request_writable(self, *, ready: bool) -> None:
        """Whether the controller takes more of the request."""
        (self._connection.resume_reading if ready else self._connection.pause_reading)()

    def _fail(self, message: str) -> None:
        self._over(State.DONE)
        held_back = self._controller.failures.admit("not passed on")
        if held_back is not None:
            log.warning("request not passed on", error=message, more_before=held_back)
        fields, body = response(unavailable(message), self._head.path, "")
        fields += [field for field in self._fields if field[0] == b"x-request-id"]
        self._connection.answer(503, fields, body)

    def _over(self, state: State) -> None:
        self._enter(state)
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._controller.under_way.discard(self)

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
