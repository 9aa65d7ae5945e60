"""A request in its model's queue: how it gets there, goes on and leaves, and what a stream reads meanwhile."""

import math
from typing import Final

from gateway.requests.answering import Answering
from gateway.requests.comments import EVERY_S, STILL, UNANSWERED_S, comment
from gateway.requests.heads import UNBUFFERED, said_by
from gateway.requests.refusals import waited_too_long
from gateway.requests.states import OVER, WAIT_LIMIT_S, WAITING, State
from gateway.routing.routing_table import RoutingTable
from http1.protocol.heads import lines_of

_EVENTS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_OK: Final = 200


class Waiting(Answering):
    """The part of an exchange that its model's queue calls."""

    __slots__ = ("_tried",)

    _tried: dict[str, None]  # instances that refused it since it last waited, in order

    def go(self) -> None:
        """A replica may be free: takes it, or waits again. Another request, which has just ended, may be calling."""
        if self._state is not WAITING:
            return
        try:
            self._next_replica()
        except Exception as error:  # noqa: BLE001 - it is logged, and ends this request alone
            self._end_by_defect(error)

    def gone(self) -> None:
        """The client is gone: where it was the last that waited, its model need not wake."""
        if self._state not in OVER:
            self._models.queues.leave(self, self._model, refused=False)
        super().gone()

    def _wait(self, table: RoutingTable, lane: str) -> None:
        """Waits in the model's queue, for replicas of its lane or for any, or ends where it may not."""
        error = self._models.queues.join(self, self._model, self._tried, lane)
        if error is not None:
            self.fail(error)
            return
        if self._state is not WAITING:
            self._enter(WAITING)
        self._tried = {}
        known = table.model(self._model)
        self.deadline = self.arrived + (known.limits.queue.wait if known is not None else WAIT_LIMIT_S)

    def _waits(self) -> bool:
        """Whether it is in its model's queue."""
        return self._models.queues.waits(self, self._model)

    def _waited_too_long(self) -> None:
        self.fail(waited_too_long(self._model, self._models.routes.table.model(self._model)))

    def _comment(self, now: float) -> None:
        """Keeps a stream alive by comments while it waits for a replica, or for its engine."""
        match self._state:
            case State.WAITING if self._wants_events():
                table = self._models.routes.table
                known = table.model(self._model)
                load_s = known.load_s if known is not None else None
                self._begin_events(now, comment(now - self.arrived, load_s, waking=not table.runs(self._model)))
            case State.SENT if self._complete:
                self._comment_on_engine(now)
            case State.ANSWERING if self._events is not None:
                if self._events.between and self._writable:
                    self._connection.send(STILL)
                self._comment_at = now + EVERY_S
            case State.ANSWERING:
                self._comment_at = math.inf
            case _:
                pass

    def _comment_on_engine(self, now: float) -> None:
        """The engine has sent no piece yet. The first comment commits the status: not before that is the engine's."""
        if self._busy is not None or self._refusal is not None:
            return
        answer = self._answer
        if self._comments:
            self._begin_events(now, STILL)
        elif answer is not None:
            events, plain, _ = said_by(answer).body
            if answer.status == _OK and events and plain:
                self._connection.start(_OK, self._returned(answer), length=None)
                self._begin_events(now, STILL)
        elif now >= self._sent_at + UNANSWERED_S and self._wants_events():
            self._begin_events(now, STILL)

    def _begin_events(self, now: float, text: bytes) -> None:
        if not self._comments and not self._connection.started:
            fields = [*_EVENTS, (b"x-request-id", self.request_id.encode())]
            self._connection.start(_OK, lines_of(fields) + UNBUFFERED, length=None)
        self._comments += 1
        self._comment_at = now + EVERY_S
        self._connection.send(text)

    def _wants_events(self) -> bool:
        """Whether its client reads a stream of events, and has sent all of its request."""
        return self._complete and self._asked is not None and self._asked.stream

    def _over(self, state: State) -> None:
        self._models.queues.leave(self, self._model, refused=True)
        super()._over(state)
