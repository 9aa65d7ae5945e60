"""A request in its model's queue: how it gets there, goes on and leaves, and what a stream reads meanwhile."""

from typing import Final

from gateway.comments import comment, next_comment_s
from gateway.exchange.answering import Answering
from gateway.exchange.states import OVER, WAIT_LIMIT_S, WAITING, State
from gateway.pick_instance import RoutingTable
from gateway.unserved import waited_too_long

_EVENTS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))


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
        """Begins the answer of a stream that waits for long, and keeps it alive by comments."""
        if self._asked is None or not self._asked.stream or now < next_comment_s(self.arrived, self._comments):
            return
        table = self._models.routes.table
        known = table.model(self._model)
        if not self._comments:
            self._connection.start(200, [*_EVENTS, (b"x-request-id", self.request_id.encode())], length=None)
        self._comments += 1
        load_s = known.load_s if known is not None else None
        self._connection.send(comment(now - self.arrived, load_s, waking=not table.runs(self._model)))

    def _over(self, state: State) -> None:
        self._models.queues.leave(self, self._model, refused=True)
        super()._over(state)
