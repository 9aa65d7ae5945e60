"""The reverse proxy to the controllers: requests that are not for a model, WebSockets included, and the gateway's own.

Each request gets a connection of its own, so that none inherits the controller's verdict on another request's key.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import orjson
import structlog

from gateway.errors import response, unavailable
from http1.daemon.log_limit import LogLimit
from http1.fetch import FetchError, fetch
from http1.forwarded import BEHIND_PROXY_HEADER, GATEWAY_HEADER
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.connecting import Address, ConnectError
from http1.protocol.connection_rules import AGENT
from http1.protocol.heads import (
    HOP_BY_HOP,
    SWITCHING,
    Fields,
    RequestHead,
    ResponseHead,
    end_to_end,
    lines_of,
    request_bytes,
)
from http1.protocol.server_connection import ServerConnection
from http1.rate import Rate
from http1.relay import DONE, SENT, TUNNEL, Relay, State
from schemas.wire import MAX_MESSAGE_BYTES, OUR_HEADERS

log = structlog.get_logger(__name__)

_GATEWAY_FIELD: Final = GATEWAY_HEADER.lower().encode()
_READY: Final = b"/readyz"
_MOST_BYTES: Final = 64 * 2**20
BEHIND_PROXY_FIELD: Final = BEHIND_PROXY_HEADER.lower().encode()
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
# What a client may send on a WebSocket: bytes at once, and bytes a second after that. The controller's own budgets
# count complete messages; its library reads frames of a message that never ends without a bound.
OF_KEYS: Final = (256 * 2**10, 64 * 2**10)
OF_AGENTS: Final = (4 * 2**20 + MAX_MESSAGE_BYTES, 2 * 2**20)


@dataclass(slots=True)
class Controller:
    """The controllers, which share a database: the first that answers gets the requests.

    Attributes:
        address: the current controller's Unix socket, or host and port.
        secret: the secret by which it trusts the gateway's fields about clients; empty on its socket.
        pool: makes the connections; none is kept.
        most_strangers: requests without a valid key that may have a connection at once.
        under_way: requests that are passed on.
        failures: bounds log lines about requests that could not be passed on.
        others: addresses of further controllers, in the order in which they are tried.
        strangers: requests without a valid key that have a connection, oldest first.
    """

    address: Address
    secret: str
    pool: Pool
    most_strangers: int
    under_way: set[Relay] = field(default_factory=set)
    failures: LogLimit = field(default_factory=LogLimit)
    others: deque[Address] = field(default_factory=deque)
    strangers: dict[Relay, None] = field(default_factory=dict)

    async def connect(self) -> ClientConnection:
        """A new connection, to the next controller where this one refuses.

        Raises:
            ConnectError: none of them accepts.
        """
        for _ in range(len(self.others)):
            address = self.address
            try:
                return await self.pool.connect(address)
            except ConnectError:
                self.silent(address)
        return await self.pool.connect(self.address)

    def admit_stranger(self, relay: Relay) -> None:
        """Counts a request without a valid key until it is over; at the bound the oldest one's client is cut."""
        if len(self.strangers) >= self.most_strangers:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.client.evict()
        self.strangers[relay] = None

    def silent(self, address: Address) -> None:
        """Sends requests to the next controller, if this address is the current one."""
        if self.others and address == self.address:
            self.others.append(self.address)
            self.address = self.others.popleft()

    def credential(self) -> Fields:
        """Fields by which the controller recognizes the gateway."""
        return [(_GATEWAY_FIELD, self.secret.encode())] if self.secret else []

    async def fetch(self, path: bytes, fields: Fields, limit_s: float) -> tuple[ResponseHead, bytes]:
        """Head and body of the answer to a GET. A controller without an answer is tried last from then on.

        Raises:
            FetchError: no answer within the limit, or a too large one.
        """
        requested = self.address

        async def connect() -> ClientConnection:
            nonlocal requested
            connection = await self.connect()
            requested = self.address
            return connection

        sent = [(b"host", b"controller"), *fields, *self.credential()]
        try:
            head, body = await fetch(connect, b"GET", path, sent, limit_s=limit_s, most_bytes=_MOST_BYTES + 1)
        except FetchError:
            self.silent(requested)
            raise
        if len(body) > _MOST_BYTES:
            raise FetchError("the answer is too large")
        return head, body

    async def has_database(self, limit_s: float) -> bool:
        """Whether the controller reports that it reaches the database; False also without an answer.

        So a gateway knows whether it alone has lost the database.
        """
        try:
            _, body = await self.fetch(_READY, [], limit_s)
            return bool(orjson.loads(body)["checks"]["database"]["ok"])
        except (FetchError, orjson.JSONDecodeError, KeyError, TypeError):
            return False


class Passed(Relay):
    """A request to the controller, and its answer. `fields`: added to its head; `known`: it has a valid key."""

    __slots__ = ("_controller", "_fields", "_known", "_rate", "_requested", "_resume")
    limits_s: ClassVar[Mapping[State, float]] = {SENT: ANSWER_LIMIT_S}

    def __init__(
        self,
        controller: Controller,
        head: RequestHead,
        client: ServerConnection,
        fields: Fields,
        *,
        known: bool = False,
    ) -> None:
        super().__init__(head, client, asyncio.get_running_loop())
        self._controller = controller
        self._requested = controller.address
        self._fields = fields
        self._known = known
        self._rate: Rate | None = None  # bounds a tunnel
        self._resume: asyncio.TimerHandle | None = None  # while the rate holds the client back

    def begin(self) -> None:
        self._controller.under_way.add(self)
        if not self._known:
            self._controller.admit_stranger(self)
        self.connect(self._controller.connect)

    def connected(self, server: ClientConnection) -> None:
        self._requested = self._controller.address
        head = self.head
        fields = end_to_end(head, _NOT_FORWARDED, prefix=_OURS)
        fields += self._fields
        fields += self._controller.credential()
        if head.length is None:
            fields.append((b"transfer-encoding", b"chunked"))
        fields += [(_CONNECTION, _UPGRADE), (_UPGRADE, head.upgrade)] if head.upgrade else [(_CONNECTION, b"close")]
        self.send(server, request_bytes(head.method, head.target, fields))

    def response_head(self, head: ResponseHead) -> None:
        """The controller answers. With a switch of protocols it has accepted the credential."""
        if head.status == SWITCHING:
            self._rate = Rate(self._loop.time(), *(OF_KEYS if self._known else OF_AGENTS))
            if not self._known:
                self.client.admit(standing=AGENT)
                self._controller.strangers.pop(self, None)
        super().response_head(head)

    def body(self, data: bytes) -> None:
        """A part of the request's body; in a tunnel, bytes of the client, no faster than they are allowed."""
        super().body(data)
        if self._rate is None or self.state is not TUNNEL:
            return
        wait_s = self._rate.take(self._loop.time(), len(data))
        if wait_s:
            self.client.pause_reading()
            if self._resume is None:
                self._resume = self._loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        if self.server is not None and self.server.takes_more:
            self.client.resume_reading()

    def request_writable(self, *, ready: bool) -> None:
        if not ready or self._resume is None:
            super().request_writable(ready=ready)

    def answer_lines(self, head: ResponseHead) -> bytes:
        return lines_of(end_to_end(head, _NOT_RETURNED))

    def not_connected(self, error: ConnectError) -> None:
        self._fail(f"the controller cannot be reached: {error}; try again in a moment")

    def unanswered(self, why: str) -> None:
        self._fail(f"the controller ended before it answered: {why}; try again in a moment")

    def silent(self) -> None:
        """Answers 503; further requests go to the next controller."""
        self._controller.silent(self._requested)
        self._fail(f"the controller did not answer within {ANSWER_LIMIT_S:.0f} s; try again in a moment")

    def over(self, state: State) -> None:
        super().over(state)
        self._controller.under_way.discard(self)
        self._controller.strangers.pop(self, None)
        if self._resume is not None:
            self._resume.cancel()

    def _fail(self, message: str) -> None:
        self.over(DONE)
        held_back = self._controller.failures.admit("not passed on")
        if held_back is not None:
            log.warning("request not passed on", error=message, more_before=held_back)
        fields, body = response(unavailable(message), self.head.path, "")
        fields += [field for field in self._fields if field[0] == b"x-request-id"]
        self.client.answer(503, fields, body)
