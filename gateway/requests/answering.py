"""A replica's answer on its way to the client: kept back until its first piece, held where another replica may do."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_bytes
from typing import Final

import structlog

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.bodies.request_body import Asked
from gateway.errors import GatewayError
from gateway.requests.comments import FIRST_S
from gateway.requests.crash_watch import body_digest, request_digest
from gateway.requests.event_stream import WholeEvents
from gateway.requests.heads import returned, said_by
from gateway.requests.holding import Models
from gateway.requests.receiving import Receiving
from gateway.requests.refusals import broken_off, late_refusal, settled_error
from gateway.requests.states import ANSWERING, DONE, HELD_LIMIT_S, OVER
from gateway.routing.outcomes import ENDS, MIDWAY, OF_ENGINE, VERDICTS, Happening, Settled, TryAnother
from gateway.usage.stream_usage import REFUSALS, refuses_usage, without_usage_chunk
from http1.bodies import keep
from http1.protocol.heads import RequestHead, ResponseHead, lines_of
from http1.protocol.server_connection import ServerConnection

log = structlog.get_logger(__name__)

_MOST_HELD_BYTES: Final = 2**20  # of a 503 that is kept while other replicas are tried
_MOST_REFUSAL_BYTES: Final = 2**16  # of an engine's refusal that is read before it is passed on
_LINES: Final = b"%bx-request-id: %b\r\nserver-timing: queue;dur=%.1f, connect;dur=%.1f, engine;dur=%.1f\r\n"
_OK: Final = 200
_BUSY: Final = 503
_SERVER_ERROR: Final = 500
_OF_FAILING: Final = frozenset({500, 502})  # no 503: that is said by an engine that is busy


@dataclass(slots=True)
class _Kept:
    """An engine's answer that is not passed on yet. `size` beyond its bound: not all of it is kept."""

    head: ResponseHead
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


class Answering(Receiving):
    """The part of an exchange that a replica's agent calls, and what it makes of the answer."""

    __slots__ = ("_answer", "_asked", "_body", "_busy", "_held", "_hides_usage", "_refusal", "_writable")

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
    ) -> None:
        super().__init__(models, head, connection, request_id, admit)
        self._asked: Asked | None = None  # while it may go to a replica
        self._body = b""  # digest of its body, where that is known
        self._answer: ResponseHead | None = None  # of the engine, until its first piece comes
        self._busy: _Kept | None = None  # a 503 that is being read
        self._held: _Kept | None = None  # one that was read
        self._hides_usage = False  # its client did not ask for the chunk with token counts
        self._refusal: _Kept | None = None  # which may be of the field that asks for them
        self._writable = True

    def response_head(self, head: ResponseHead) -> None:
        """An answer begins: the engine's own, or the agent's word on what happened."""
        happening, detail, told, _ = said_by(head)
        if happening is Happening.ENGINE_BUSY:
            self._busy = _Kept(head)
            self.deadline = self._loop.time() + HELD_LIMIT_S
        elif happening is not None:
            self._drop_upstream()
            self._ended(happening, detail)
        elif self._endpoint is not None:
            self._answer = head
            table = self._models.routes.table
            table.answered(self._endpoint)
            if told is not None:
                table.told(self._endpoint, told)
            of_usage = self._asks_for_usage(self._endpoint) and head.status in REFUSALS
            if of_usage or (self._comments and head.status != _OK):
                self._refusal = _Kept(head)

    def response_body(self, data: bytes, chunks: bytes = b"") -> None:
        """A part of the answer."""
        if self._busy is not None or self._refusal is not None:
            self._keep_back(data)
            return
        answer, self._answer = self._answer, None
        if self._endpoint is None:
            return
        if answer is not None:
            self._enter_answer(answer)
        if self._writable:
            now = self._loop.time()
            self.deadline, self._comment_at = now + self._endpoint.limits.silence_timeout, now + FIRST_S
        counted = self._passage is None or self._passage.piece(data)
        shown = data
        if self._events is not None:
            shown = self._events.pass_on(data)
            if self._hides_usage and (counted or shown is not data):
                shown = without_usage_chunk(shown)
        if answer is not None:
            self._begin_answer(answer, shown, length=answer.length)
        else:
            self._connection.send(shown, chunks if shown is data else b"")

    def _keep_back(self, data: bytes) -> None:
        """A part of an answer that may not be its client's."""
        if self._busy is not None:
            self._busy.size += len(data)
            if self._busy.size <= _MOST_HELD_BYTES:
                keep(self._busy.pieces, data)
        elif self._refusal is not None:
            self._refusal.size += len(data)
            self._refusal.pieces.append(data)
            if self._refusal.size > _MOST_REFUSAL_BYTES:
                self._pass_on_refusal(self._refusal)

    def response_end(self) -> None:
        """The answer is complete."""
        self._upstream = None
        if self._busy is not None:
            self._ended_busy(kept=self._busy.size <= _MOST_HELD_BYTES)
            return
        if self._refusal is not None and self._goes_on_without_usage(self._refusal):
            return
        answer, self._answer = self._answer, None
        if answer is not None:
            self._enter_answer(answer)
            self._begin_answer(answer, b"", length=answer.length or 0)
        if self._state is not ANSWERING:
            return
        if self._passage is not None and self._passage.failed and self._status == _OK:
            self._note_error()
        if self._events is not None:
            self._connection.send(self._shown(self._events.rest()))
        self._over(DONE)
        self._connection.finish()

    def response_failed(self, why: str) -> None:
        """The connection to the agent ended before the answer did."""
        self._upstream = self._refusal = None
        if self._busy is not None:
            self._ended_busy(kept=False)
        else:
            midway, begun = self._state is ANSWERING, self._answer is not None
            before = Happening.BROKE_OFF if begun else Happening.AGENT_GONE
            self._ended(Happening.BROKE_OFF_MIDWAY if midway else before, why)

    def request_writable(self, *, ready: bool) -> None:
        """The body is in memory and under its bound: it waits in the transport."""

    def writable(self, *, ready: bool) -> None:
        """Whether the client takes more of the answer. While it does not, the engine is not silent."""
        self._writable = ready
        if self._upstream is None or self._endpoint is None:
            return
        if ready:
            self._upstream.resume_reading()
            now = self._loop.time()
            self.deadline, self._comment_at = now + self._endpoint.limits.silence_timeout, now + FIRST_S
        else:
            self._upstream.pause_reading()
            self.deadline = math.inf

    def _enter_answer(self, head: ResponseHead) -> None:
        """The answer has a first piece, for which its head has waited: until then, an end is an error with a status."""
        self._enter(ANSWERING)
        self._status = head.status
        if self._endpoint is not None:
            self._note_outcome(self._endpoint, failed=head.status >= _SERVER_ERROR)
        self._note_body()
        if head.status in _OF_FAILING:
            self._note_error()
        self._asked = None  # the body goes nowhere else from now on
        self._release()
        events, plain, encoding = said_by(head).body
        if events:
            self._head.drop_fields()
            if plain:
                self._events = WholeEvents()
        if self._passage is not None:
            self._passage.answered(head.status, events, encoding, head.length)

    def _begin_answer(self, head: ResponseHead, body: bytes, *, length: int | None) -> None:
        """Sends the head with the beginning of the body."""
        if self._comments:  # the answer has begun: only events can follow
            if head.status != _OK or self._events is None:
                self._break_off(late_refusal(head.status, body))
            else:
                self._connection.send(body)
            return
        hides = self._hides_usage and self._events is not None
        self._connection.start(head.status, self._returned(head), length=None if hides else length, body=body)

    def _goes_on_without_usage(self, refusal: _Kept) -> bool:
        """Sends the request once more to the same replica, without the field that the engine refused.

        Else the refusal is passed on. The engine has done nothing, and the field was not its client's.
        """
        endpoint = self._endpoint
        asks = endpoint is not None and self._asks_for_usage(endpoint)
        if endpoint is None or not (asks and refuses_usage(refusal.head.status, b"".join(refusal.pieces))):
            self._pass_on_refusal(refusal)
            return False
        self._refusal = self._answer = None
        self._models.routes.table.refuses_usage(endpoint)
        log.info("engine refuses stream_options, tokens are estimated", instance=endpoint.instance)
        self._leave()
        self._ask(endpoint)
        return True

    def _asks_for_usage(self, endpoint: Endpoint) -> bool:
        """Whether the engine got a field that its client did not send, and which it may do without."""
        return self._hides_usage and endpoint.limits.stream_usage == "auto"

    def _pass_on_refusal(self, refusal: _Kept) -> None:
        self._refusal = None
        if refusal.pieces:
            self.response_body(b"".join(refusal.pieces))

    def _shown(self, events: bytes) -> bytes:
        return without_usage_chunk(events) if self._hides_usage else events

    def _returned(self, head: ResponseHead) -> bytes:
        """The lines of the answer's head."""
        picked, sent, now = self._picked_at, self._sent_at, self._loop.time()
        spans_ms = (1e3 * (picked - self.arrived), 1e3 * (sent - picked), 1e3 * (now - sent))
        lines = _LINES % (self._engines_lines(head), self.request_id.encode(), *spans_ms)
        if self._passage is not None and self._passage.limited():
            lines += lines_of(self._models.meter.headers(self._passage))
        return lines

    def _engines_lines(self, head: ResponseHead) -> bytes:
        """Those of the engine's that its client gets."""
        return returned(head)

    def _ended(self, happening: Happening, detail: str) -> None:
        """One replica gave no answer: the table of verdicts says what follows."""
        endpoint, table = self._endpoint, self._models.routes.table
        if endpoint is None:
            return
        if happening in OF_ENGINE and not (happening in MIDWAY and self._status >= _SERVER_ERROR):  # counted already
            self._note_outcome(endpoint, requests=0 if happening in MIDWAY else 1, failed=True)
        if happening in ENDS:
            self._models.crashes.note(endpoint, self._identity() or token_bytes(32))
        self._leave()
        match VERDICTS[happening]:
            case TryAnother():
                table.refused(endpoint)
                name = happening.name.lower()
                self._models.metrics.retried(self._model, endpoint.revision, name)
                log.info("replica refused", instance=endpoint.instance, happening=name, error=detail)
                self._next_replica()
            case Settled(status=None) as settled:
                log.warning("answer broke off", instance=endpoint.instance, code=settled.code, error=detail)
                self._end(happening, partial(self._break_off, broken_off(settled, endpoint, detail)))
            case Settled() as settled:
                self._end(happening, partial(self.fail, settled_error(settled, endpoint, detail)))

    def _end(self, happening: Happening, end: Callable[[], None]) -> None:
        """Ends it, where its engine may have crashed once other gateways know: its client may go to one at once."""
        if happening in ENDS and self._models.crashes.shares:
            self.deadline = math.inf
            self._work(self._end_once_shared, end)
        else:
            end()

    async def _end_once_shared(self, end: Callable[[], None]) -> None:
        await self._models.crashes.shared()
        if self._state not in OVER:
            end()

    def _note_error(self) -> None:
        """The engine answered with an error, as some do just before they end."""
        if self._endpoint is not None:
            self._models.crashes.note_error(self._endpoint, self._identity() or token_bytes(32))

    def _identity(self) -> bytes:
        """What tells this request from others; empty: not all of its body has come."""
        self._note_body()
        known = self._models.routes.table.model(self._model)
        deployment = known.uid if known is not None else self._model
        return request_digest(self.key, deployment, self._body) if self._body else b""

    def _note_body(self) -> None:
        """Keeps the body's digest before the body goes."""
        if not self._body and self._asked is not None:
            self._body = body_digest(self._asked.body)

    def _note_outcome(self, endpoint: Endpoint, *, requests: int = 1, failed: bool) -> None:
        """Counts a request that an engine has answered or broken off, while a revision is rolled out."""
        known = self._models.routes.table.model(self._model)
        if known is not None and known.rollout is not None:
            count = self._models.outcomes.note
            count(known.uid, known.rollout, endpoint.revision, requests=requests, errors=int(failed))

    def _ended_busy(self, *, kept: bool) -> None:
        busy, self._busy = self._busy, None
        if kept and busy is not None:
            self._held = busy
        self._ended(Happening.ENGINE_BUSY, "the engine answered 503")

    def _answer_held(self, held: _Kept) -> None:
        if self._comments:
            self._break_off(GatewayError(_BUSY, "engine_busy", "each replica that was asked answered 503"))
            return
        self._status = _BUSY
        lines = self._returned(held.head)
        if not held.head.named.get(b"retry-after"):
            lines += b"retry-after: 1\r\n"
        self._over(DONE)
        self._connection.answer(_BUSY, lines, b"".join(held.pieces))

    @abstractmethod
    def _ask(self, endpoint: Endpoint) -> None:
        """Sends it to this replica."""

    @abstractmethod
    def _next_replica(self) -> None:
        """Sends it to a replica that it has not tried, or ends it."""
