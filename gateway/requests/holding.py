"""What one request to a model holds, and how it ends: each thing is given back once, whatever ends it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from controller.live.endpoints import Endpoint
from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import KeyRing
from gateway.bodies.long_request import LongRequests
from gateway.errors import NO_RETRY, GatewayError, error_event, response, unavailable
from gateway.queueing.queues import Queues
from gateway.quotas.quota_client import Meter
from gateway.reporting.request_metrics import CLIENT_GONE, RequestMetrics, count_tokens
from gateway.reporting.revision_outcomes import RevisionOutcomes
from gateway.requests.comments import FIRST_S
from gateway.requests.crash_watch import CrashWatch
from gateway.requests.event_stream import WholeEvents
from gateway.requests.heads import path_of
from gateway.requests.states import ANSWERING, CUT, DONE, EDGES, LIMITS_S, OVER, RECEIVING, SENT, UPLOAD_LIMIT_S, State
from gateway.routing.live_routes import LiveRoutes
from gateway.usage.usage_record import Passage
from http1.bodies import Bodies, Hold
from http1.protocol.client import ClientConnection, Pool
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection
from schemas.api.models import FORM_PATHS, MODEL_PATHS

ENDPOINTS: Final = frozenset((*MODEL_PATHS, *FORM_PATHS))

_TIMED_OUT: Final = 504
DATABASE_S: Final = 1.0  # for which a request waits for the database, in all
R = TypeVar("R")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Models:
    """What all exchanges share.

    Attributes:
        keys: the API's keys.
        routes: where the models' replicas are.
        pool: connections to the agents.
        bodies: bounds the bytes of bodies in flight.
        queues: of requests that wait for a replica.
        under_way: the exchanges that are not over.
        meter: keys' limits and usage.
        metrics: of requests.
        failed: logs a request that ended with an error of ours: the error, its path and its id.
        long_requests: reads long bodies in turns.
        outcomes: of revisions while one is rolled out.
        crashes: requests that crash engines.
        loop: in which they run. To ask for the running one is a system call each time.
    """

    keys: KeyRing
    routes: LiveRoutes
    pool: Pool
    bodies: Bodies
    queues: Queues
    meter: Meter
    metrics: RequestMetrics
    failed: Callable[[GatewayError, bytes, str], None]
    under_way: "set[Holding]" = field(default_factory=set)
    long_requests: LongRequests = field(default_factory=LongRequests)
    outcomes: RevisionOutcomes = field(default_factory=RevisionOutcomes)
    crashes: CrashWatch = field(default_factory=CrashWatch)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)


class Holding(ABC):
    """One request's state and what it holds.

    The layers above it: `Admitting`, `Receiving`, `Answering`, `Waiting`, `Exchange`. What a layer leaves to the ones
    above is abstract in it.
    """

    __slots__ = (
        *(
            "_client_gone",
            "_comment_at",
            "_comments",
            "_connection",
            "_database_s",
            "_endpoint",
            "_events",
            "_failed",
            "_head",
            "_hold",
            "_loop",
        ),
        *(
            "_model",
            "_models",
            "_passage",
            "_path",
            "_picked_at",
            "_pieces",
            "_revision",
            "_sent_at",
            "_state",
            "_status",
            "_task",
            "_uid",
            "_upstream",
        ),
        *("arrived", "deadline", "key", "request_id", "role"),
    )

    def __init__(self, models: Models, head: RequestHead, connection: ServerConnection, request_id: str) -> None:
        self._models = models
        self._head = head
        self._path = path_of(head)
        self._connection = connection
        self.request_id = request_id
        self.key = self.role = ""  # of its key
        self._loop = models.loop
        self._state = RECEIVING
        self.arrived = self._loop.time()
        self.deadline = self.arrived + UPLOAD_LIMIT_S
        self._pieces: list[bytes] = []  # of the body
        self._hold: Hold | None = None
        self._passage: Passage | None = None  # until it is over
        self._model = ""  # the deployment that it asks for
        self._revision = ""  # of the replica that it went to last
        self._status = 0  # of its answer
        self._picked_at = self._sent_at = self.arrived  # the choice of the replica; the request to it
        self._uid = ""  # of that, while it is at a replica
        self._endpoint: Endpoint | None = None
        self._upstream: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._events: WholeEvents | None = None  # of the answer
        self._comments = 0  # sent before the engine's first piece; with the first one its answer has begun
        self._comment_at = self.arrived + FIRST_S  # when a comment may be due
        self._client_gone = False
        self._database_s = DATABASE_S
        self._failed = False  # an error of ours is the answer

    @property
    def state(self) -> State:
        """How far it is."""
        return self._state

    def fail(self, error: GatewayError) -> None:
        """Answers with an error of ours. Nothing of an answer was sent, but perhaps comments."""
        if self._state in OVER:
            return
        self._failed = True
        self._status = error.status
        self._models.queues.note_refusal(self._model, error)
        if self._comments:
            self._models.failed(error, self._head.path, self.request_id)
            self._break_off(error)
            return
        self._over(DONE)
        self._models.failed(error, self._head.path, self.request_id)
        fields, body = response(error, self._head.path, self.request_id)
        fields.append((b"x-request-id", self.request_id.encode()))
        self._connection.answer(error.status, fields, body)

    @abstractmethod
    def overdue(self, now: float) -> None:
        """Ends the state whose deadline has passed at loop time `now`, if so."""

    def end_for_stop(self) -> None:
        """The gateway stops, and the time to drain is over."""
        message = "the gateway stops; the answer is incomplete and is not repeated"
        error = GatewayError(503, "unavailable", message, headers=NO_RETRY)
        if self._state is ANSWERING:
            self._break_off(error)
        elif self._state not in OVER:
            self.fail(error)

    def gone(self) -> None:
        """The client is gone: the engine's request ends with it."""
        if self._state not in OVER:
            log.info("client gone", request_id=self.request_id, instance=self._endpoint and self._endpoint.instance)
            self._client_gone = True
            self._models.queues.note_cancel(self._model, self._state)
            self._over(CUT)

    def _break_off(self, error: GatewayError) -> None:
        """Tells the client by an error event where it reads events, and by the cut connection in any case."""
        events = WholeEvents() if self._events is None and self._comments else self._events
        self._over(CUT)
        if events is not None:
            event = error_event(error, self._head.path, self.request_id, events.next_number())
            self._connection.send(events.last(event))
        self._connection.close()

    def _work(self, wait: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Runs what has to wait. An error of ours becomes the answer; a defect ends this request alone."""

        async def run() -> None:
            try:
                await wait(*args)
            except GatewayError as error:
                self.fail(error)
            except UnknownWhileAwayError as error:
                self.fail(unavailable(str(error)))
            except Exception as error:  # noqa: BLE001 - it is logged, and ends this request alone
                self._end_by_defect(error)

        self._task = asyncio.create_task(run(), name="exchange")

    def _end_by_defect(self, error: Exception) -> None:
        """Ends this request alone."""
        log.error("request failed", request_id=self.request_id, exc_info=error)
        text = "internal error; search the gateway's log for the request id"
        self.fail(GatewayError(500, "internal", text, details={"cause": type(error).__name__}))

    async def _of_database(self, ask: Callable[[float], Coroutine[Any, Any, R]]) -> R:
        """What `ask` answers, which is told for how long it may wait for the database: all waits share `DATABASE_S`."""
        began = self._loop.time()
        try:
            return await ask(self._database_s)
        finally:
            self._database_s = max(0.0, self._database_s - (self._loop.time() - began))

    def _leave(self) -> None:
        """It is no longer at its replica."""
        endpoint, self._endpoint = self._endpoint, None
        self._drop_upstream()
        if endpoint is not None:
            self._models.routes.table.leave(endpoint)
            self._models.queues.left(self._model, self.key, self._uid)

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()

    def _over(self, state: State) -> None:
        broken = self._state is ANSWERING and state is CUT and not self._client_gone
        late = self._status == _TIMED_OUT  # the engine goes on working for nothing
        left = (self._client_gone or late) and self._state in (SENT, ANSWERING)
        left_after_s = self._loop.time() - self._sent_at if left else None
        self._enter(state)
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.over(broken=broken or self._failed, left_after_s=left_after_s)
        self._measure(passage, broken=broken)
        self._pieces.clear()
        if self._hold is not None:
            self._release()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._models.under_way.discard(self)
        self._leave()  # others go on within it: what fails there leaves nothing of this one behind

    def _measure(self, passage: Passage | None, *, broken: bool) -> None:
        """Counts its end."""
        models = self._models
        if not (self._status or self._client_gone or broken):
            return  # a list of models
        status = CLIENT_GONE if self._client_gone else 500 if broken else self._status
        deployment = self._model if models.routes.table.knows(self._model) else ""
        endpoint = self._path if self._path in ENDPOINTS else ""
        ended_s = self._loop.time() - self.arrived
        series = models.metrics.ended((deployment, self._revision if deployment else "", endpoint), status, ended_s)
        if passage is not None and passage.counts is not None:
            count_tokens(series, passage.counts, streamed=passage.streamed, ended_s=ended_s)

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            self._models.bodies.release(hold)

    def _enter(self, state: State) -> None:
        if state not in EDGES[self._state]:
            raise AssertionError(f"no edge from {self._state} to {state}")
        self._state = state
        limit_s = LIMITS_S.get(state)
        if limit_s is not None:
            self.deadline = self._loop.time() + limit_s
