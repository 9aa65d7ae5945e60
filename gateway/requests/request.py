"""One request to a model, from its head to the end of its answer.

A request holds its parts: the admission of its key, the upload of its body, the dispatch to a replica, the exchange
with that replica, and its usage. The parts change its state by `enter`, `fail`, `break_off` and `over`; `over` gives
back what they hold. It has no timer: the gateway sweeps deadlines by `overdue`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from controller.live.errors import UnknownWhileAwayError
from controller.live.key_ring import Principal
from controller.live.key_use import Counts
from gateway.bodies.parameters import BadRequestError, Parameters
from gateway.errors import NO_RETRY, GatewayError, error_event, response, unauthenticated, unavailable
from gateway.requests.comments import FIRST_S, comment_on
from gateway.requests.dispatch import Dispatch
from gateway.requests.event_stream import CompleteEvents
from gateway.requests.exchange import Exchange
from gateway.requests.refusals import model_not_found, refuses
from gateway.requests.shared import Shared
from gateway.requests.states import (
    ADMITTED,
    ANSWERING,
    CUT,
    DONE,
    EDGES,
    LIMITS_S,
    OVER,
    RECEIVING,
    SENT,
    UPLOAD_LIMIT_S,
    State,
)
from gateway.requests.upload import Upload
from gateway.usage.usage_record import UsageRecord
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection
from schemas.key_limits import CAPACITIES, NO_CAPACITIES

DATABASE_S: Final = 1.0  # for which a request waits for the database, in all
_TIMED_OUT: Final = 504
R = TypeVar("R")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may send a request.

    Attributes:
        check: called with the request and its key's owner; refuses it by a `GatewayError`.
        unknown: makes the error without a valid key.
        answer: answers without a replica, called with the key's owner; None where a replica answers.
    """

    check: Callable[["Request", Principal], None]
    unknown: Callable[[], GatewayError] = unauthenticated
    answer: Callable[[Principal], None] | None = None


class Request:
    """One request.

    Args:
        upload: makes the part that takes its body.
        path: the path by which it is counted; empty: that of no endpoint; None: the head's.

    Attributes:
        arrived: loop time at which it came.
        deadline: loop time at which its state ends.
        comment_at: loop time at which a comment to its client may be due.
        keys: the keys that its client sent.
        key: id of the valid key.
        model: the deployment that it is for.
        status: the answer's status; 0 before it.
    """

    __slots__ = (
        *("_caller", "_database_s", "_failed", "_task", "_uid", "admission", "arrived", "client_gone", "comment_at"),
        *("commented", "connection", "deadline", "dispatch", "exchange", "head", "key", "keys", "loop"),
        *("model", "path", "principal", "request_id", "role", "shared", "state", "status", "upload", "usage"),
    )

    def __init__(
        self,
        shared: Shared,
        head: RequestHead,
        connection: ServerConnection,
        request_id: str,
        admission: Admission,
        *,
        upload: Callable[[Any], Upload] = Upload,
        path: str | None = None,
    ) -> None:
        self.shared = shared
        self.head = head
        self.connection = connection
        self.request_id = request_id
        self.path = head.path.decode("latin-1") if path is None else path
        self.loop = shared.loop
        self.state: State = RECEIVING
        self.arrived = self.loop.time()
        self.deadline = self.arrived + UPLOAD_LIMIT_S
        self.comment_at = self.arrived + FIRST_S
        self.principal: Principal | None = None
        self.keys: Sequence[str] = ()
        self.key = self.role = self.model = ""
        self.status = 0
        self.client_gone = self._failed = False
        self._task: asyncio.Task[None] | None = None
        self._uid = ""  # the deployment's uid
        self._caller = ""  # its key by id, from its authentication on
        self._database_s = DATABASE_S
        self.admission = admission
        self.upload = upload(self)
        self.dispatch = Dispatch(self)
        self.exchange = Exchange(self)
        self.commented = False  # a comment was sent, and with it the status
        self.usage: UsageRecord | None = None  # from the admission to the end

    # From the head to a complete body

    def start(self, principal: Principal | None, keys: Sequence[str]) -> None:
        """Admits it at once where its key is in memory, else reads the keys: the first valid key counts."""
        self.keys = keys
        self.shared.under_way.add(self)
        if principal is not None:
            self._admit(principal)
        else:
            self.work(self._authenticate, keys)

    async def _authenticate(self, keys: Sequence[str]) -> None:
        principal = await self.of_database(lambda _: self.shared.keys.first_owner(keys))
        if self.state in OVER:
            return
        if principal is None:
            self.fail(self.admission.unknown())
        else:
            self._admit(principal)

    def _admit(self, principal: Principal) -> None:
        """Refuses by key, limits and head, before the body is read."""
        self._caller = principal.key_id
        try:
            self.admission.check(self, principal)
            if self.admission.answer is not None:
                self.over(DONE)
                self.admission.answer(principal)
                return
            quotas = self.shared.quotas
            if CAPACITIES(principal.limits) == NO_CAPACITIES and principal.key_id not in quotas.limited:
                self.usage = UsageRecord(principal.key_id, self.path, self.loop.time, quotas.batches)
            else:
                self.usage = quotas.begin(principal, self.path)
        except GatewayError as error:
            self.fail(error)
            return
        if self.usage is None:
            self.work(self._await_share, principal)
        else:
            self._receive(principal)

    async def _await_share(self, principal: Principal) -> None:
        """Waits for a larger share of the key's limits: with the present share the request would be refused."""
        usage = await self.of_database(partial(self.shared.quotas.wait, principal, self.path))
        if self.state in OVER:
            usage.over()
        else:
            self.usage = usage
            self._receive(principal)

    def _receive(self, principal: Principal) -> None:
        self.principal = principal
        self.key, self.role = principal.key_id, principal.role
        try:
            self.upload.start(principal.key_id)
        except GatewayError as error:
            self.fail(error)

    def uploaded(self, parameters: Parameters, size: int) -> None:
        """The body is known as far as its model. `size`: the prompt's, in bytes; 0 if it does not show tokens."""
        self.enter(ADMITTED)
        table = self.shared.routes.table
        self.model = table.name_of(parameters.model)
        if not self._may_use(parameters.model):
            self.model = ""  # as for a name that does not exist, in metrics too
            self.fail(model_not_found(parameters.model))
            return
        known = table.model(self.model)
        self.dispatch.choose_by(parameters.model, known)
        self._uid = known.uid if known is not None else ""
        usage = self.usage
        if usage is None:
            self._go_on()
            return
        if known is not None:
            reserves = usage.use is not None and usage.use.limits_tokens()
            usage.expect(self.model, size, parameters, self.upload.text_bytes() if reserves else None)
        if not usage.expected:
            self._go_on()
            return
        try:
            reserved = self.shared.quotas.reserve(usage)
        except GatewayError as error:
            self.fail(error)
            return
        if reserved:
            self._go_on()
        else:
            self.work(self._await_tokens, usage)

    def _may_use(self, name: str) -> bool:
        """Whether its key may use the model, by the name that the client gave or by its own."""
        limits = None if self.principal is None else self.principal.limits
        return limits is None or not limits.models or limits.allows(name) or limits.allows(self.model)

    async def _await_tokens(self, usage: UsageRecord) -> None:
        await self.of_database(partial(self.shared.quotas.wait_to_reserve, usage))
        if self.state is ADMITTED:
            self._go_on()

    def _go_on(self) -> None:
        """The limits of its key let it pass for good."""
        if self._uid:
            self.shared.queues.demand.arrived(self._uid, self.loop.time())
        self.dispatch.next_replica()

    # The client's side

    def body(self, data: bytes) -> None:
        if self.state not in OVER and not self.exchange.from_client(data):
            self.upload.body(data)

    def end(self) -> None:
        if self.state not in OVER:
            self.upload.end()

    def writable(self, *, ready: bool) -> None:
        if self.state not in OVER:
            self.exchange.writable(ready=ready)

    def gone(self) -> None:
        """The client is gone: the engine's request ends with it."""
        if self.state in OVER or self.exchange.end_tunnel():
            return
        endpoint = self.exchange.endpoint
        log.info("client gone", request_id=self.request_id, instance=endpoint and endpoint.instance)
        self.dispatch.leave_queue(refused=False)
        self.client_gone = True
        self.shared.queues.note_cancel(self.model, self.state)
        self.over(CUT)

    # The queue's side

    def go(self) -> None:
        self.guard(self.dispatch.go)

    # The end

    def refuse(self, error: BadRequestError) -> None:
        self.fail(GatewayError(400, "invalid", str(error), param=error.param or None))

    def fail(self, error: GatewayError) -> None:
        """Answers with an error of ours. At most comments were sent before."""
        if self.state in OVER:
            return
        self._failed = True
        self.status = error.status
        if self._caller and refuses(error):
            known = self.model if self._uid else ""  # clients may send any name
            self.shared.quotas.batches.add(self._caller, self.path, known, Counts(refused=1))
        self.shared.queues.note_refusal(self.model, error)
        self.shared.failed(error, self.head.path, self.request_id)
        if self.commented:
            self.break_off(error)
            return
        self.over(DONE)
        fields, body = response(error, self.head.path, self.request_id)
        fields.append((b"x-request-id", self.request_id.encode()))
        self.connection.answer(error.status, fields, body)

    def break_off(self, error: GatewayError) -> None:
        """Ends an answer that was partly sent: by an error event in a stream, and by closing the connection."""
        events = CompleteEvents() if self.exchange.events is None and self.commented else self.exchange.events
        self.over(CUT)
        if events is not None:
            event = error_event(error, self.head.path, self.request_id, events.next_number())
            self.connection.send(events.last(event))
        self.connection.close()

    def overdue(self, now: float) -> None:
        if self.exchange.ends_tunnel_at(now):
            return
        if now < self.deadline:
            if now >= self.comment_at:
                comment_on(self.exchange, now)
            return
        match self.state:
            case State.RECEIVING:
                self.upload.late()
            case State.ADMITTED | State.WAITING:
                self.dispatch.late()
            case State.SENT:
                if not self.upload.end_if_late_at_replica():
                    self.exchange.silent()
            case _:
                self.exchange.silent()

    def end_for_stop(self) -> None:
        """Ends it where the gateway stops and the time to drain is over."""
        message = "the gateway stops; the answer is incomplete and is not repeated"
        error = GatewayError(503, "unavailable", message, headers=NO_RETRY)
        if self.state in OVER or self.exchange.end_tunnel():
            return
        if self.state is ANSWERING:
            self.break_off(error)
        else:
            self.fail(error)

    def over(self, state: State) -> None:
        broken = self.state is ANSWERING and state is CUT and not self.client_gone
        late = self.status == _TIMED_OUT  # the engine works on for nothing
        left = (self.client_gone or late) and self.state in (SENT, ANSWERING)
        left_after_s = self.loop.time() - self.exchange.sent_at if left else None
        if self.dispatch.queued:
            self.dispatch.leave_queue(refused=True)
        self.enter(state)
        usage, self.usage = self.usage, None
        if usage is not None:
            usage.over(broken=broken or self._failed, left_after_s=left_after_s)
        self.shared.metrics.count(self, usage, broken=broken)
        self.upload.drop()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self.shared.under_way.discard(self)
        # It resumes other requests, whose failure must leave nothing of this one behind.
        self.exchange.close(state)
        self.loop.call_soon(self._part)

    def _part(self) -> None:
        """Lets go of its parts, which refer to it: else each request stays in memory until a collection."""
        del self.upload, self.dispatch, self.exchange

    @property
    def ended(self) -> bool:
        return self.state in OVER

    def enter(self, state: State) -> None:
        if state not in EDGES[self.state]:
            raise AssertionError(f"no edge from {self.state} to {state}")
        self.state = state
        limit_s = LIMITS_S.get(state)
        if limit_s is not None:
            self.deadline = self.loop.time() + limit_s

    # Waits

    def work(self, wait: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
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

        self._task = asyncio.create_task(run(), name="request")

    def guard(self, step: Callable[..., None], *args: Any) -> None:
        """Takes a step that another request's end or a task has called: a defect ends this request alone."""
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends this request alone
            self._end_by_defect(error)

    def _end_by_defect(self, error: Exception) -> None:
        log.error("request failed", request_id=self.request_id, exc_info=error)
        text = "internal error; search the gateway's log for the request id"
        self.fail(GatewayError(500, "internal", text, details={"cause": type(error).__name__}))

    async def of_database(self, read: Callable[[float], Coroutine[Any, Any, R]]) -> R:
        """The result of `read`, which gets the seconds that it may wait: all waits of a request share `DATABASE_S`."""
        began = self.loop.time()
        try:
            return await read(self._database_s)
        finally:
            self._database_s = max(0.0, self._database_s - (self.loop.time() - began))
