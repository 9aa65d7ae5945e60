"""The dispatch of a request: which replica gets it, when it waits, and what follows where a replica gives no answer."""

import math
from collections.abc import Callable
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

import structlog

from controller.live.endpoints import Endpoint, Model
from gateway.errors import GatewayError, unavailable
from gateway.requests.crash_watch import WAIT_S, crashes_engine, request_digest
from gateway.requests.heads import session_of
from gateway.requests.refusals import adapter_not_loaded, broken_off, settled_error, waited_too_long
from gateway.requests.states import ANSWERING, DONE, OVER, WAIT_LIMIT_S, WAITING
from gateway.routing.retry_rules import ENDS, MIDWAY, OF_ENGINE, VERDICTS, Happening, Settled, TryAnother

if TYPE_CHECKING:
    from gateway.requests.exchange import Kept
    from gateway.requests.request import Request

log = structlog.get_logger(__name__)

_MOST_TRIES: Final = 16  # of one request, before it waits or is refused
_BUSY: Final = 503
_SERVER_ERROR: Final = 500


class Dispatch:
    """Chooses replicas. `held`: an engine's 503, which is the answer where no other replica takes the request."""

    __slots__ = (
        *("_adapter", "_place", "_rechecked", "_request", "_session", "_suspected", "_tried"),
        *("_uses_home", "held", "queued"),
    )

    def __init__(self, request: "Request") -> None:
        self._request = request
        self._tried: dict[str, None] = {}  # instances that refused it since it last waited, in order
        self._rechecked = self._suspected = self.queued = self._uses_home = False
        self._adapter = ""
        self._session = b""
        self._place: float | None = None  # 0 to 1, decides between two revisions; None: no rollout
        self.held: Kept | None = None

    def choose_by(self, name: str, known: Model | None) -> None:
        """Notes what the choice depends on. `name`: the model's, as the client gave it; `known`: its deployment."""
        request = self._request
        if known is not None:
            self._session = session_of(request.head.named)
            self._uses_home = known.limits.routing == "session"
        if name != request.model and request.shared.routes.table.is_adapter(name):
            self._adapter = name

    def engines_name(self, endpoint: Endpoint, name: str) -> str:
        """The model's name for the engine, given the client's. Engines do not know aliases."""
        if self._adapter:
            return endpoint.adapters[self._adapter]
        return endpoint.request_model or self._request.model or name

    # To a replica

    def next_replica(self) -> None:
        """Sends it to the best replica that it has not tried; without one, reads the routes again or waits."""
        request, shared = self._request, self._request.shared
        if request.upload.is_bound():
            self._end_at_bound()
            return
        if shared.crashes.suspicions and self._refuse_or_await_decision():
            return
        table, model = shared.routes.table, request.model
        endpoint, lane = self._pick()
        if endpoint is not None:
            self._tried[endpoint.instance] = None
            request.exchange.begin(endpoint)
        elif self.held is not None:
            self._answer_held(self.held)
        elif not self._rechecked and not table.runs(model, self._adapter):
            self._rechecked = True
            request.enter(WAITING)
            request.work(self._recheck)
        elif self._adapter and table.runs(model) and not table.runs(model, self._adapter):
            request.fail(adapter_not_loaded(self._adapter, model))
        else:
            self._wait(lane)

    def _pick(self) -> tuple[Endpoint | None, str]:
        """The best replica that it has not tried, and the lane in which it waits without a replica."""
        shared, model, lane = self._request.shared, self._request.model, ""
        queues, table = shared.queues, shared.routes.table
        if self._place is None:
            self._place = table.place(model, self._session)
        if self._place is not None:
            lane = table.lane(model, self._session, self._place, self._adapter)
        if len(self._tried) >= _MOST_TRIES or (queues.by_model and queues.must_wait(model, lane)):
            return None, lane
        session = self._session if self._uses_home else b""
        tried, place = self._tried, self._place
        endpoint = table.pick(model, tried, adapter=self._adapter, session=session, place=place, bound=bool(lane))
        return endpoint, lane

    def _end_at_bound(self) -> None:
        """Its replica took a part of the request, but gave no answer to pass on."""
        if self.held is not None:
            self._answer_held(self.held)
            return
        message = "the replica did not take the request, of which a part has passed on; send it again"
        self._request.fail(unavailable(message))

    async def _recheck(self) -> None:
        await self._request.of_database(self._request.shared.routes.recheck)
        if self._request.state is WAITING:
            self.next_replica()

    def _answer_held(self, held: "Kept") -> None:
        request = self._request
        if request.commented:
            request.break_off(GatewayError(_BUSY, "engine_busy", "each replica that was asked answered 503"))
            return
        request.status = _BUSY
        lines = request.exchange.answer_lines(held.head)
        if not held.head.named.get(b"retry-after"):
            lines += b"retry-after: 1\r\n"
        request.over(DONE)
        request.connection.answer(_BUSY, lines, b"".join(held.parts))

    # The queue

    def _wait(self, lane: str) -> None:
        """Waits in the model's queue, for replicas of its lane or for any, or ends where it may not."""
        request = self._request
        error = request.shared.queues.join(request, request.model, self._tried, lane)
        if error is not None:
            request.fail(error)
            return
        self.queued = True
        if request.state is not WAITING:
            request.enter(WAITING)
        self._tried = {}
        known = request.shared.routes.table.model(request.model)
        request.deadline = request.arrived + (known.limits.queue.wait if known is not None else WAIT_LIMIT_S)

    def go(self) -> None:
        if self._request.state is WAITING:
            self.next_replica()

    def leave_queue(self, *, refused: bool) -> None:
        """Leaves the queue. `refused`: its model, if it sleeps, continues to wake."""
        if self.queued:
            self._request.shared.queues.leave(self._request, self._request.model, refused=refused)

    def late(self) -> None:
        request = self._request
        if self.queued and request.shared.queues.waits(request, request.model):
            request.fail(waited_too_long(request.model, request.shared.routes.table.model(request.model)))
        else:
            request.fail(unavailable("no replica was found in time; try again in a moment"))

    # Without an answer

    def ended(self, happening: Happening, detail: str) -> None:
        """The replica gave no complete answer: the table of verdicts decides what follows."""
        request = self._request
        endpoint, table = request.exchange.endpoint, request.shared.routes.table
        if endpoint is None:
            return
        if happening in OF_ENGINE and not (happening in MIDWAY and request.status >= _SERVER_ERROR):  # counted already
            self.note_outcome(endpoint, requests=0 if happening in MIDWAY else 1, failed=True)
        if happening in ENDS:
            request.shared.crashes.note(endpoint, self._identity() or token_bytes(32))
        request.exchange.leave()
        match VERDICTS[happening]:
            case TryAnother():
                table.refused(endpoint)
                name = happening.name.lower()
                request.shared.metrics.retried(request.model, endpoint.revision, name)
                log.info("replica refused", instance=endpoint.instance, happening=name, error=detail)
                self.next_replica()
            case Settled(status=None) as settled:
                log.warning("answer broke off", instance=endpoint.instance, code=settled.code, error=detail)
                self._end(happening, partial(request.break_off, broken_off(settled, endpoint, detail)))
            case Settled() as settled:
                self._end(happening, partial(request.fail, settled_error(settled, endpoint, detail)))

    def _end(self, happening: Happening, end: Callable[[], None]) -> None:
        """Ends the request, but after other gateways know of it if its engine may have crashed.

        The client may repeat it at once, and another gateway would send it to the next engine.
        """
        if happening in ENDS and self._request.shared.crashes.shares:
            self._request.deadline = math.inf
            self._request.work(self._end_once_shared, end)
        else:
            end()

    async def _end_once_shared(self, end: Callable[[], None]) -> None:
        await self._request.shared.crashes.shared()
        if self._request.state not in OVER:
            end()

    # Evidence about engines

    def _refuse_or_await_decision(self) -> bool:
        """Refuses a request that crashes engines, or waits once until that is decided.

        Returns False if the request may go to a replica at once.
        """
        request, identity = self._request, self._identity()
        suspicion = request.shared.crashes.suspicion(identity)
        if suspicion is None or (self._suspected and not suspicion.crashes):
            return False
        if suspicion.crashes:
            request.fail(crashes_engine(request.model, suspicion))
        else:
            self._suspected = True
            request.enter(WAITING)
            request.work(self._await_decision, identity)
        return True

    async def _await_decision(self, identity: bytes) -> None:
        await self._request.shared.crashes.decided(identity, WAIT_S)
        if self._request.state is WAITING:
            self.next_replica()

    def stop_or_delay(self, proceed: Callable[[], None]) -> bool:
        """Ends a request that an engine partly has if it crashes engines, or delays it once until that is decided.

        Returns False if the caller may proceed at once. After a delay it calls `proceed`, if the request has not ended.
        """
        request = self._request
        if not request.shared.crashes.suspicions or request.exchange.server is None:
            return False
        identity = self._identity()
        suspicion = request.shared.crashes.suspicion(identity)
        if suspicion is None or (self._suspected and not suspicion.crashes):
            return False
        if suspicion.crashes:
            error = crashes_engine(request.model, suspicion)
            (request.break_off if request.state is ANSWERING else request.fail)(error)
        else:
            self._suspected = True
            request.deadline = max(request.deadline, request.loop.time() + 2 * WAIT_S)
            request.work(self._proceed_once_decided, identity, proceed)
        return True

    async def _proceed_once_decided(self, identity: bytes, proceed: Callable[[], None]) -> None:
        await self._request.shared.crashes.decided(identity, WAIT_S)
        if self._request.state not in OVER and not self.stop_or_delay(proceed):
            proceed()

    def _identity(self) -> bytes:
        """A digest that is the request's own; empty: not all of its body has come."""
        request, digest = self._request, self._request.upload.digest()
        known = request.shared.routes.table.model(request.model)
        deployment = known.uid if known is not None else request.model
        return request_digest(request.key, deployment, digest) if digest else b""

    def note_error(self) -> None:
        """The engine answered with an error, as some do just before they end."""
        endpoint = self._request.exchange.endpoint
        if endpoint is not None:
            self._request.shared.crashes.note_error(endpoint, self._identity() or token_bytes(32))

    def note_outcome(self, endpoint: Endpoint, *, requests: int = 1, failed: bool) -> None:
        """Counts a request that an engine has answered or broken off, while a revision is rolled out."""
        known = self._request.shared.routes.table.model(self._request.model)
        if known is not None and known.rollout is not None:
            count = self._request.shared.outcomes.note
            count(known.uid, known.rollout, endpoint.revision, requests=requests, errors=int(failed))
