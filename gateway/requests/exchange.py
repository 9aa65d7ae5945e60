"""The exchange with one replica at a time: the request goes to its agent, and the answer goes to the client.

An answer is kept back until its first piece. A 503 and a refusal of our own field are held: another try may follow.
"""

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from controller.live.endpoints import Endpoint
from gateway.requests import states
from gateway.requests.comments import FIRST_S
from gateway.requests.event_stream import CompleteEvents
from gateway.requests.heads import address_of, parse_agent_headers
from gateway.requests.refusals import late_refusal
from gateway.routing.retry_rules import Happening
from gateway.usage.usage_option import REFUSALS, refuses_usage, without_usage_chunk
from http1 import relay
from http1.bodies import keep
from http1.protocol.client import ClientConnection
from http1.protocol.connecting import ConnectError
from http1.protocol.heads import SWITCHING, ResponseHead, lines_of
from http1.relay import Relay

if TYPE_CHECKING:
    from gateway.requests.request import Request

log = structlog.get_logger(__name__)

_MOST_HELD_BYTES: Final = 2**20  # of a 503 that is kept while other replicas are tried
_MOST_REFUSAL_BYTES: Final = 2**16  # of an engine's refusal that is read before it is passed on
_KEY_EVERY_S: Final = 1.0  # how long a tunnel may outlive its key
_LINES: Final = b"%bx-request-id: %b\r\nserver-timing: queue;dur=%.1f, connect;dur=%.1f, engine;dur=%.1f\r\n"
_OK: Final = 200
_SERVER_ERROR: Final = 500
_OF_FAILING: Final = frozenset({500, 502})  # an engine that is busy answers 503
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


@dataclass(slots=True)
class Kept:
    """An engine's answer that is not passed on yet. `size` beyond its bound: a part of it is not kept."""

    head: ResponseHead
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Exchange(Relay):
    """The relay of a request and a replica's agent.

    Attributes:
        revision: the last replica's.
        sent_at: loop time at which the request went to the last replica.
        hides_usage: the gateway requested the chunk with token counts and the client did not: it is not passed on.
        busy: a 503 that is being read.
    """

    __slots__ = (
        *("_key_at", "_picked_at", "_refusal", "_uid", "busy", "endpoint", "events", "hides_usage", "request"),
        *("revision", "sent_at"),
    )

    def __init__(self, request: "Request") -> None:
        super().__init__(request.head, request.connection, request.loop)
        self.request = request
        self.endpoint: Endpoint | None = None
        self.revision = ""
        self._uid = ""  # the deployment's uid, while the request is at a replica
        self._picked_at = self.sent_at = request.arrived
        self.busy: Kept | None = None
        self._refusal: Kept | None = None  # an answer that may refuse the field that requests token counts
        self.events: CompleteEvents | None = None
        self.hides_usage = False
        self._key_at = math.inf  # when the key of a tunnel is checked next

    # To the replica

    def begin(self, endpoint: Endpoint) -> None:
        request = self.request
        shared = request.shared
        self.endpoint, self.revision = endpoint, endpoint.revision
        self._picked_at = now = self._loop.time()
        self._uid = shared.routes.table.enter(endpoint)
        shared.queues.demand.entered(self._uid, request.model, request.key, now)
        address = address_of(endpoint)
        kept = shared.pool.take(address)
        if kept is not None:
            request.upload.send(endpoint, kept)
        else:
            request.enter(states.CONNECTING)
            self.connect(partial(shared.pool.connect, address))

    def connected(self, server: ClientConnection) -> None:
        if self.endpoint is None:
            server.abort()
        else:
            self.request.guard(self.request.upload.send, self.endpoint, server)

    def not_connected(self, error: ConnectError) -> None:
        """Another replica may get the request, unless this process can open no connection."""
        happening = Happening.NO_FILES if error.errno in _NO_FILES else Happening.NOT_CONNECTED
        self.request.guard(self.request.dispatch.ended, happening, str(error))

    def send_head(self, server: ClientConnection, head: bytes, *, chunked: bool, continued: Callable[[], None]) -> None:
        """Sends the head of a request whose body follows once the agent requests it: see `ClientConnection.begin`."""
        self._enter(relay.SENT)
        self.server = server
        server.begin(head, self, chunked=chunked, continued=continued)

    def close(self, state: states.State) -> None:
        self.leave()
        super()._enter(relay.State(state))

    def leave(self) -> None:
        endpoint, self.endpoint = self.endpoint, None
        self.busy = self._refusal = None
        self.leave_server()
        if endpoint is not None:
            request, queues = self.request, self.request.shared.queues
            request.shared.routes.table.leave(endpoint)
            queues.demand.left(self._uid, request.model, request.key, self._loop.time())
            if queues.by_model:
                queues.freed(request.model, request.key)

    def _enter(self, state: relay.State) -> None:
        """The relay's states from `SENT` on are the request's as well."""
        super()._enter(state)
        if state is relay.SENT:
            self.request.enter(states.SENT)
            self.sent_at = self.moved
            if self.endpoint is not None:
                self.request.deadline = self.moved + self.endpoint.limits.first_token_timeout
        elif state is relay.ANSWERING or state is relay.TUNNEL:
            self.request.enter(states.ANSWERING)

    # The answer

    def response_head(self, head: ResponseHead) -> None:
        """An answer begins: the engine's own, or the agent's report of a failure."""
        request, endpoint = self.request, self.endpoint
        if head.status == SWITCHING:
            self._switch(head)
            return
        happening, detail, in_flight, _ = parse_agent_headers(head)
        if happening is Happening.ENGINE_BUSY:
            self.busy = Kept(head)
            request.deadline = self._loop.time() + states.HELD_LIMIT_S
        elif happening is not None:
            request.dispatch.ended(happening, detail)
        elif endpoint is not None:
            self._answer = head
            table = request.shared.routes.table
            table.answered(endpoint, in_flight)
            of_usage = head.status in REFUSALS and self._may_do_without_usage(endpoint)
            if of_usage or (request.commented and head.status != _OK):
                self._refusal = Kept(head)

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        if self.busy is not None or self._refusal is not None:
            self._keep_back(data)
            return
        request, answer, endpoint = self.request, self._answer, self.endpoint
        if endpoint is None:
            return
        if self.state is relay.TUNNEL:
            super().response_body(data, chunks)
            self._note_progress()
            return
        if answer is not None:
            self._enter_answer(answer)
        if self.ready:
            self._note_progress()
        counted = request.usage is None or request.usage.piece(data)
        shown = data
        if self.events is not None:
            shown = self.events.pass_on(data)
            if self.hides_usage and (counted or shown is not data):
                shown = without_usage_chunk(shown)
        if answer is not None:
            self._start(answer, shown)
        else:
            self.client.send(shown, chunks if shown is data else b"")

    def response_end(self) -> None:
        request = self.request
        self.server = None
        if self.busy is not None:
            self._ended_busy(kept=self.busy.size <= _MOST_HELD_BYTES)
            return
        if self._refusal is not None and self._repeats_without_usage(self._refusal):
            return
        answer = self._answer
        if answer is not None:
            self._enter_answer(answer)
            self._start(answer if answer.length is not None else replace(answer, length=0), b"")
        if request.state is not states.ANSWERING:
            return
        if request.usage is not None and request.usage.failed and request.status == _OK:
            request.dispatch.note_error()
        if self.events is not None:
            rest = self.events.rest()
            self.client.send(without_usage_chunk(rest) if self.hides_usage else rest)
        request.over(states.DONE)
        self.client.finish()

    def response_failed(self, why: str) -> None:
        """The connection to the agent ended before the answer did: a tunnel ends with it."""
        self.server = self._refusal = None
        if self.end_tunnel():
            return
        if self.busy is not None:
            self._ended_busy(kept=False)
            return
        if self.request.state is states.ANSWERING:
            self.request.dispatch.ended(Happening.BROKE_OFF_MIDWAY, why)
        else:
            self.unanswered(why)

    def unanswered(self, why: str) -> None:
        """The connection ended before a part of the answer came: the engine may have received the request."""
        has_head = self._answer is not None
        self.request.dispatch.ended(Happening.BROKE_OFF if has_head else Happening.AGENT_GONE, why)

    def _enter_answer(self, head: ResponseHead) -> None:
        """The answer has a first part, for which its head has waited: until then, an end is an error with a status."""
        request = self.request
        self._enter(relay.ANSWERING)
        request.status = head.status
        if self.endpoint is not None:
            request.dispatch.note_outcome(self.endpoint, failed=head.status >= _SERVER_ERROR)
        request.upload.release()  # the body goes nowhere else from now on
        if head.status in _OF_FAILING:
            request.dispatch.note_error()
        events, plain, encoding = parse_agent_headers(head).body
        if events:
            self.head.drop_fields()
            if plain and request.upload.reads_events:
                self.events = CompleteEvents()
        if request.usage is not None:
            request.usage.answered(head.status, events, encoding, head.length)

    def _start(self, head: ResponseHead, body: bytes) -> None:
        if not self.request.commented:
            shortened = self.hides_usage and self.events is not None and head.length is not None
            super()._start(replace(head, length=None) if shortened else head, body)
            return
        self._answer = None  # the client's answer has started: only events can follow
        if head.status != _OK or self.events is None:
            self.request.break_off(late_refusal(head.status, body))
        else:
            self.client.send(body)

    def answer_lines(self, head: ResponseHead) -> bytes:
        request, now = self.request, self._loop.time()
        if self.state is relay.TUNNEL:
            return request.upload.returned_lines(head) + b"x-request-id: %b\r\n" % request.request_id.encode()
        picked, sent = self._picked_at, self.sent_at
        spans_ms = (1e3 * (picked - request.arrived), 1e3 * (sent - picked), 1e3 * (now - sent))
        lines = _LINES % (request.upload.returned_lines(head), request.request_id.encode(), *spans_ms)
        if request.usage is not None and request.usage.use is not None and request.usage.use.shares:
            lines += lines_of(request.shared.quotas.headers(request.usage))
        return lines

    # An answer that may not be the client's

    def _keep_back(self, data: bytes) -> None:
        if self.busy is not None:
            self.busy.size += len(data)
            if self.busy.size <= _MOST_HELD_BYTES:
                keep(self.busy.parts, data)
        elif self._refusal is not None:
            self._refusal.size += len(data)
            self._refusal.parts.append(data)
            if self._refusal.size > _MOST_REFUSAL_BYTES:
                self._pass_on_refusal(self._refusal)

    def _repeats_without_usage(self, refusal: Kept) -> bool:
        """Repeats the request at the same replica without the field that the engine refused, or passes the refusal on.

        The engine has done nothing yet, and the client did not send the field.
        """
        endpoint = self.endpoint
        if endpoint is None or not (
            self._may_do_without_usage(endpoint) and refuses_usage(refusal.head.status, b"".join(refusal.parts))
        ):
            self._pass_on_refusal(refusal)
            return False
        self.request.shared.routes.table.refuses_usage(endpoint)
        log.info("engine refuses stream_options, tokens are estimated", instance=endpoint.instance)
        self.leave()
        self.begin(endpoint)
        return True

    def _may_do_without_usage(self, endpoint: Endpoint) -> bool:
        """Whether the engine got a field that the client did not send, and may be sent the request without it."""
        return self.hides_usage and endpoint.limits.stream_usage == "auto"

    def _pass_on_refusal(self, refusal: Kept) -> None:
        self._refusal = None
        if refusal.parts:
            self.response_body(b"".join(refusal.parts))

    def _ended_busy(self, *, kept: bool) -> None:
        busy, self.busy = self.busy, None
        if kept and busy is not None:
            self.request.dispatch.held = busy
        self.request.dispatch.ended(Happening.ENGINE_BUSY, "the engine answered 503")

    @property
    def head_that_waits(self) -> ResponseHead | None:
        """The head of an engine's answer that waits for its first part."""
        return self._answer

    @property
    def keeps_back(self) -> bool:
        """Whether it reads an answer that may not go to the client."""
        return self.busy is not None or self._refusal is not None

    # Tunnels, back-pressure, deadlines

    def _switch(self, head: ResponseHead) -> None:
        if self.endpoint is None:
            return
        request = self.request
        request.shared.routes.table.answered(self.endpoint, None)
        request.status = head.status
        request.dispatch.note_outcome(self.endpoint, failed=False)
        request.upload.release()
        if request.usage is not None:
            request.usage.answered(head.status, False, "", None)
        super().response_head(head)
        self._key_at = self._loop.time() + _KEY_EVERY_S
        self._note_progress()

    def from_client(self, data: bytes) -> bool:
        """Passes bytes of a tunnel on; returns whether there is a tunnel."""
        if self.state is not relay.TUNNEL:
            return False
        self._note_progress()
        super().body(data)
        return True

    def end_tunnel(self) -> bool:
        """Ends a tunnel; returns whether there was one."""
        if self.state is not relay.TUNNEL or self.request.state in states.OVER:
            return False
        self.request.over(states.DONE)
        self.client.close()
        return True

    def ends_tunnel_at(self, now: float) -> bool:
        """Ends a tunnel that has passed nothing for too long at loop time `now`, or whose key has ended.

        Returns whether it is a tunnel.
        """
        if self.state is not relay.TUNNEL:
            return False
        if now >= self.request.deadline or (now >= self._key_at and not self._has_key(now)):
            self.end_tunnel()
        return True

    def _has_key(self, now: float) -> bool:
        self._key_at = now + _KEY_EVERY_S
        keys = self.request.shared.keys
        return any(keys.known(key) is not None for key in self.request.keys)

    def _note_progress(self) -> None:
        """From now on the engine may be silent for its limit again."""
        if self.endpoint is not None:
            now = self._loop.time()
            self.request.deadline = now + self.endpoint.limits.silence_timeout
            self.request.comment_at = now + FIRST_S

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer. While it does not, the engine is not silent."""
        super().writable(ready=ready)
        if self.server is None or self.endpoint is None:
            return
        if ready:
            self._note_progress()
        else:
            self.request.deadline = math.inf

    def request_writable(self, *, ready: bool) -> None:
        if self.state is relay.TUNNEL:
            super().request_writable(ready=ready)
        else:
            self.request.upload.server_writable(ready=ready)

    def silent(self) -> None:
        dispatch = self.request.dispatch
        match self.request.state:
            case states.CONNECTING:
                dispatch.ended(Happening.NOT_CONNECTED, "no connection in time")
            case states.SENT if self.busy is not None:
                self._ended_busy(kept=False)
            case states.SENT:
                dispatch.ended(Happening.SILENT, "nothing came in time")
            case states.ANSWERING:
                dispatch.ended(Happening.SILENT_MIDWAY, "nothing more came in time")
            case _:
                pass
