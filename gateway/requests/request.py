"""One request to a model, from its head to the end of its answer: which replica gets it, and what is too late.

No timer of its own: the gateway sweeps deadlines by `overdue`. What follows an end without an answer: `outcomes.py`.
"""

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.bodies.long_request import is_long
from gateway.bodies.prompt_text import prompt_bytes
from gateway.bodies.request_body import Asked, BadRequestError, read_asked
from gateway.errors import GatewayError, unavailable
from gateway.requests.crash_watch import WAIT_S, body_digest, crashes_engine
from gateway.requests.heads import address_of, forwarded, id_for_engine
from gateway.requests.holding import Models
from gateway.requests.refusals import adapter_not_loaded, model_not_found
from gateway.requests.states import ADMITTED, CONNECTING, LONG_READ_LIMIT_S, SENT, UPLOAD_LIMIT_S, WAITING, State
from gateway.requests.waiting import Waiting
from gateway.routing.outcomes import Happening
from gateway.routing.session_home import session_of
from gateway.usage.stream_usage import asks_for_usage, with_usage_asked
from gateway.usage.usage_record import Passage
from http1.protocol.client import ClientConnection, ConnectError
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection

_MOST_TRIES: Final = 16  # of one request, before it waits or is refused
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Exchange(Waiting):
    """One request. `admit` is called with its key's owner, before its body is read; it refuses by a `GatewayError`."""

    __slots__ = ("_adapter", "_has_home", "_place", "_prompt_bytes", "_rechecked", "_session", "_suspected")

    def __init__(
        self,
        models: Models,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admit: Callable[[Principal], None],
    ) -> None:
        super().__init__(models, head, connection, request_id, admit)
        self._tried = {}
        self._rechecked = self._suspected = False
        self._adapter = ""  # for which it asks
        self._session = b""
        self._has_home = False  # its session goes to one of the replicas
        self._prompt_bytes: int | None = None  # of text, once they were counted
        self._place: float | None = None  # among the requests of which a new revision gets a share

    def _route(self) -> None:
        pieces, self._pieces = self._pieces, []
        if is_long(pieces, self._size):
            self.deadline = self._loop.time() + LONG_READ_LIMIT_S
            self._work(self._read_long, pieces)
            return
        try:
            self._asked = read_asked(*pieces)
        except BadRequestError as error:
            self._refuse(error)
            return
        self._ask_for(self._asked, self._size)

    async def _read_long(self, pieces: list[bytes]) -> None:
        try:
            self._body = await asyncio.to_thread(body_digest, pieces)  # would hold up the loop for 30 ms
            self._asked = await self._models.long_requests.read(pieces)
            if self._reserves():
                self._prompt_bytes = await asyncio.to_thread(prompt_bytes, pieces)
        except BadRequestError as error:
            self._refuse(error)
            return
        self._ask_for(self._asked, self._size)

    def _refuse(self, error: BadRequestError) -> None:
        self.fail(GatewayError(400, "invalid", str(error), param=error.param or None))

    def _ask_for(self, asked: Asked, size: int) -> None:
        """Its model is known: it goes to a replica. `size`: of its prompt, in bytes."""
        self._enter(ADMITTED)
        table = self._models.routes.current()
        self._model = table.name_of(asked.model)
        known = table.model(self._model)
        allows = self._principal.limits.allows if self._principal is not None else None
        if allows is not None and not (allows(asked.model) or allows(self._model)):
            self._model = ""  # as for a name that does not exist, in metrics too
            self.fail(model_not_found(asked.model))
            return
        if known is not None:
            if self._passage is not None:
                self._passage.asks(self._model, size, asked, self._count_prompt(asked) if self._reserves() else None)
            self._session = session_of(self._head.named)
            self._has_home = known.limits.routing == "session"
        if asked.model != self._model and table.is_adapter(asked.model):
            self._adapter = asked.model
        passage = self._passage
        if passage is None or not passage.expected:
            self._go_on()
            return
        try:
            reserved = self._models.meter.reserve(passage)
        except GatewayError as error:
            self.fail(error)
            return
        if reserved:
            self._go_on()
        else:
            self._work(self._await_tokens, passage)

    def _reserves(self) -> bool:
        """Whether its key has limits of tokens, so that some are reserved."""
        return self._passage is not None and self._passage.use.limits_tokens()

    def _count_prompt(self, asked: Asked) -> int:
        """Bytes of its prompt's text."""
        return prompt_bytes(asked.body) if self._prompt_bytes is None else self._prompt_bytes

    async def _await_tokens(self, passage: Passage) -> None:
        await self._of_database(partial(self._models.meter.wait_to_reserve, passage))
        if self._state is ADMITTED:
            self._go_on()

    def _go_on(self) -> None:
        """Its key's limits let it pass for good."""
        self._models.queues.arrived(self._model)
        self._next_replica()

    def _next_replica(self) -> None:
        """Sends it to the best replica that it has not tried; without one, reads the routes once more, or waits."""
        if self._models.crashes.suspects and self._crashes_engines():
            return
        table, queues = self._models.routes.current(), self._models.queues
        endpoint, lane = None, ""
        if self._place is None:
            self._place = table.place(self._model, self._session)
        if self._place is not None:
            lane = table.lane(self._model, self._session, self._place, self._adapter)
        if len(self._tried) < _MOST_TRIES and not queues.must_wait(self._model, lane):
            endpoint = table.pick(
                self._model,
                self._tried,
                adapter=self._adapter,
                session=self._session if self._has_home else b"",
                place=self._place,
                bound=bool(lane),
            )
        if endpoint is not None:
            self._ask(endpoint)
        elif self._held is not None:
            self._answer_held(self._held)
        elif not self._rechecked and not table.runs(self._model, self._adapter):
            self._rechecked = True
            self._enter(WAITING)
            self._work(self._recheck)
        elif self._adapter and table.runs(self._model) and not table.runs(self._model, self._adapter):
            self.fail(adapter_not_loaded(self._adapter, self._model))
        else:
            self._wait(table, lane)

    def _crashes_engines(self) -> bool:
        """Whether it goes to no replica: it is refused, or waits once until it is known whether it is to be."""
        identity = self._identity()
        found = self._models.crashes.suspicion(identity)
        if found is None or (self._suspected and not found.crashes):
            return False
        if found.crashes:
            self.fail(crashes_engine(self._model, found))
        else:
            self._suspected = True
            self._enter(WAITING)
            self._work(self._await_decision, identity)
        return True

    async def _await_decision(self, identity: bytes) -> None:
        await self._models.crashes.decided(identity, WAIT_S)
        if self._state is WAITING:
            self._next_replica()

    def _of_asked(self) -> Asked:
        if self._asked is None:
            raise AssertionError("its model is not known yet")
        return self._asked

    async def _recheck(self) -> None:
        await self._of_database(self._models.routes.recheck)
        if self._state is WAITING:
            self._next_replica()

    def _ask(self, endpoint: Endpoint) -> None:
        self._tried[endpoint.instance] = None
        self._endpoint = endpoint
        self._revision = endpoint.revision
        self._picked_at = self._loop.time()
        self._models.routes.table.enter(endpoint)
        self._uid = self._models.queues.entered(self._model, self.key)
        address = address_of(endpoint)
        kept = self._models.pool.take(address)
        if kept is not None:
            self._send(endpoint, kept)
        else:
            self._enter(CONNECTING)
            self._work(self._connect, endpoint, address)

    async def _connect(self, endpoint: Endpoint, address: tuple[str, int]) -> None:
        try:
            upstream = await self._models.pool.connect(address)
        except ConnectError as error:
            if self._endpoint is endpoint and self._state is CONNECTING:
                happening = Happening.NO_FILES if error.errno in _NO_FILES else Happening.NOT_CONNECTED
                self._ended(happening, str(error))
            return
        if self._endpoint is endpoint and self._state is CONNECTING:
            self._send(endpoint, upstream)
        else:
            upstream.abort()

    def _send(self, endpoint: Endpoint, upstream: ClientConnection) -> None:
        self._enter(SENT)
        self._sent_at = self._loop.time()
        self.deadline = self._sent_at + endpoint.limits.first_token_timeout
        self._upstream = upstream
        asked = self._of_asked()
        body = asked.with_model(self._engines_name(endpoint, asked.model))
        self._hides_usage = False
        may_ask = bool(asked.options) and self._models.routes.table.asks_for_usage(endpoint)
        if may_ask and asks_for_usage(self._path, asked.options):
            with_usage = with_usage_asked(body, asked)
            if with_usage is not None:
                body, self._hides_usage = with_usage, True
        readable = self._hides_usage or self._comments > 0  # a begun answer has no encoding
        engines_id = id_for_engine(self._head, self.request_id)
        head = forwarded(self._head, endpoint, engines_id, sum(map(len, body)), readable=readable)
        upstream.ask(head, body, self)

    def _engines_name(self, endpoint: Endpoint, asked: str) -> str | None:
        """The model's name for the engine; None: as asked. An alias means nothing to an engine."""
        if self._adapter:
            return endpoint.adapters[self._adapter]
        return endpoint.request_model or (self._model if self._model != asked else None)

    def _body_late(self) -> None:
        if self._complete:
            self.fail(unavailable("the body was not read in time; try again in a moment"))
            return
        message = f"body: did not arrive within {UPLOAD_LIMIT_S:g} s; send it again"
        self.fail(GatewayError(408, "body_timed_out", message))

    def overdue(self, now: float) -> None:
        """Ends the state whose deadline has passed at loop time `now`, if so."""
        if now < self.deadline:
            if now >= self._comment_at:
                self._comment(now)
            return
        match self._state:
            case State.RECEIVING:
                self._body_late()
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
            case State.WAITING if self._waits():
                self._waited_too_long()
            case State.ADMITTED | State.WAITING:
                self.fail(unavailable("no replica was found in time; try again in a moment"))
            case _:
                pass
