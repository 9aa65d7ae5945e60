"""Passes requests that are not for a model to the controller: bytes both ways, WebSockets included.

Each request gets a connection of its own, so that none inherits the controller's verdict on another request's key.
"""

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Final

import structlog

from gateway.control_plane.controller import Controller
from gateway.errors import response, unavailable
from http1.forwarded import BEHIND_PROXY_HEADER
from http1.protocol.admission import AGENT
from http1.protocol.client import ClientConnection
from http1.protocol.connecting import ConnectError
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
# Of a WebSocket, in bytes at once and bytes a second beyond that. The controller's library reads frames that end no
# message without end, so that its own budgets, which count messages, do not hold there.
OF_KEYS: Final = (256 * 2**10, 64 * 2**10)
OF_AGENTS: Final = (4 * 2**20 + MAX_MESSAGE_BYTES, 2 * 2**20)


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
        self._rate: Rate | None = None  # of a tunnel
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
