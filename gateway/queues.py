"""The queues of all models at this gateway: which requests wait, which goes next, and which models shall wake.

A request waits where no replica can take it now: all are at their limit, or none runs. It goes on when a replica is
free, and ends when the deployment cannot run, the queue's time is over, or its client leaves.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

from controller.live.endpoints import Model
from gateway.demand import Demand
from gateway.errors import GatewayError
from gateway.fair_queue import FairQueue, Finished
from gateway.pick_instance import RoutingTable
from gateway.queue_metrics import QueueMetrics
from gateway.unserved import trouble_error, unserved

_PROLONG_S: Final = 20.0  # a refused request prolongs its model's wish to run, at most so often
_SERVER_ERROR: Final = 500
_UNAVAILABLE: Final = 503


class Queued(Protocol):
    """A request that can wait. Its `arrived` is when it came, in seconds of the queues' clock."""

    key: str
    role: str
    request_id: str
    arrived: float

    def go(self) -> None:
        """A replica may be free: it takes one, or begins to wait again."""

    def fail(self, error: GatewayError) -> None:
        """It ends with this error."""


class Queues:
    """The queues.

    Args:
        table: where replicas are.
        demand: counts what is in flight and waiting.
        clock: seconds, monotonic.
        woken: called when a model shall wake or need no longer.
        metrics: of what waits; None: they are counted for nothing.
    """

    def __init__(
        self,
        table: RoutingTable,
        demand: Demand,
        clock: Callable[[], float],
        woken: Callable[[], None] = lambda: None,
        metrics: QueueMetrics | None = None,
    ) -> None:
        self._metrics = metrics or QueueMetrics(CollectorRegistry())
        self._table = table
        self._demand = demand
        self._clock = clock
        self._woken = woken
        self._queues: dict[str, FairQueue[Queued]] = {}
        self._uids: dict[str, str] = {}  # of the deployment for which each queue's requests wait
        self._in_flight: dict[str, dict[str, int]] = {}  # by model and key
        self._finished: dict[str, Finished] = {}
        self._elsewhere: Mapping[str, int] = {}
        self._wakes: dict[str, str] = {}  # first waiting request, by deployment's uid
        self._withdrawn: set[str] = set()
        self._refused: dict[str, str] = {}  # a request that shall wake its model although it was refused, by uid
        self._prolonged_at: dict[str, float] = {}  # when one last did
        self._pumping = False

    # What arrives and ends

    def arrived(self, model: str) -> None:
        """A request for the model came."""
        if (known := self._table.model(model)) is not None:
            self._demand.change(known.uid, self._clock(), arrived=1)

    def entered(self, model: str, key: str) -> str:
        """A request went to a replica; returns the deployment's uid, which `left` needs."""
        counts = self._in_flight.get(model)
        if counts is None:
            counts = self._in_flight[model] = {}
        counts[key] = counts.get(key, 0) + 1
        known = self._table.model(model)
        uid = known.uid if known is not None else ""
        if uid:
            self._demand.change(uid, self._clock(), in_flight=1)
        return uid

    def left(self, model: str, key: str, uid: str) -> None:
        """A request is no longer at a replica, which may be free for another one."""
        counts = self._in_flight[model]
        if counts[key] > 1:
            counts[key] -= 1
        else:
            del counts[key]
        now = self._clock()
        if uid:
            self._demand.change(uid, now, in_flight=-1)
        finished = self._finished.get(model)
        if finished is None:
            finished = self._finished[model] = Finished()
        finished.note(now)
        if model in self._queues:
            self.pump(model)

    # What waits

    def must_wait(self, model: str) -> bool:
        """Whether others wait already, so that a new request does not overtake them."""
        return bool(self._queues.get(model)) and not self._pumping

    def waits(self, request: Queued, model: str) -> bool:
        """Whether this request waits."""
        queue = self._queues.get(model)
        return queue is not None and request in queue

    def join(self, request: Queued, model: str, tried: list[str]) -> GatewayError | None:
        """Lets the request wait; the error where it may not."""
        error = self._refusal(request, model, tried)
        if error is not None:
            return error
        known = self._table.model(model)
        if known is None:
            return unserved(model, self._table, tried)
        self._queues.setdefault(model, FairQueue()).add(request, request.key, request.arrived)
        uid = self._uids.setdefault(model, known.uid)
        self._demand.change(uid, self._clock(), waiting=1)
        self._metrics.waiting(model, len(self._queues[model]))
        self._wake(model, known, request)
        return None

    def _wake(self, model: str, known: Model, request: Queued) -> None:
        """Asks for the model to wake, where it may sleep and nothing of it runs."""
        if known.may_sleep and not self._table.runs(model) and known.uid not in self._wakes:
            self._withdrawn.discard(known.uid)
            self._wakes[known.uid] = request.request_id
            self._metrics.wake(model)
            self._woken()

    def leave(self, request: Queued, model: str, *, refused: bool) -> None:
        """The request waits no longer. Once none waits, the wake is withdrawn, unless the last one was refused.

        A model that cannot run now shall go on trying for a while: its clients come again.
        """
        queue = self._queues.get(model)
        if queue is None or not queue.remove(request):
            return
        uid = self._uids[model]
        self._demand.change(uid, self._clock(), waiting=-1)
        self._metrics.waiting(model, len(queue))
        if not queue:
            del self._queues[model], self._uids[model]
            if self._wakes.pop(uid, None) is not None and not refused:
                self._withdrawn.add(uid)
                self._prolonged_at.pop(uid, None)
                self._woken()

    def _refusal(self, request: Queued, model: str, tried: list[str]) -> GatewayError | None:
        """Why a request may not wait for this model; None: it may."""
        known = self._table.model(model)
        if known is None or not known.serves or self._table.stopped(model) is not None:
            return unserved(model, self._table, tried)
        runs = self._table.runs(model)
        if known.trouble is not None and not runs:
            self._prolong(known, request)
            return trouble_error(known.trouble, model, request.role)
        if known.limits.queue.length == 0 and (tried or not runs):
            if not runs:
                self._prolong(known, request)
            return unserved(model, self._table, tried)
        waiting = len(self._queues.get(model, ())) + self._elsewhere.get(known.uid, 0)
        if waiting >= known.limits.queue.length:
            after_s = self._finished.setdefault(model, Finished()).retry_after_s(max(waiting, 1), self._clock())
            return GatewayError(
                503,
                "queue_full",
                f"model: {model!r} is at its limit and {waiting} requests wait; try again in {after_s} s",
                headers={"Retry-After": str(after_s)},
            )
        return None

    def _prolong(self, known: Model, request: Queued) -> None:
        """Lets a model that does not run wake, or go on trying, for clients that are refused and come again."""
        now = self._clock()
        if known.may_sleep and now - self._prolonged_at.get(known.uid, -math.inf) >= _PROLONG_S:
            self._prolonged_at[known.uid] = now
            self._refused[known.uid] = request.request_id
            self._woken()

    # What goes on

    def pump(self, model: str) -> None:
        """Sends waiting requests on, in order, while a replica is free."""
        queue = self._queues.get(model)
        while queue and not self._pumping and self._table.free(model):
            first = queue.first(self._in_flight.get(model, {}))
            if first is None:
                return
            self._metrics.waited(model, self._clock() - first.arrived)
            self.leave(first, model, refused=False)
            self._pumping = True
            try:
                first.go()
            finally:
                self._pumping = False
            queue = self._queues.get(model)
            if queue and self.waits(first, model):
                return  # no replica was free after all

    def routes_changed(self) -> None:
        """Replicas came or went: requests go on, or end where their deployment cannot run."""
        for model in tuple(self._queues):
            queue = self._queues.get(model, ())
            self._follow(model)
            for request in tuple(queue):
                known = self._table.model(model)
                if known is None or self._table.stopped(model) is not None:
                    request.fail(unserved(model, self._table, []))
                elif known.trouble is not None and not self._table.runs(model):
                    request.fail(trouble_error(known.trouble, model, request.role))
                else:
                    self._wake(model, known, request)
            self.pump(model)
        uids = self._table.uids()
        self._demand.keep(uids)
        self._prolonged_at = {uid: at for uid, at in self._prolonged_at.items() if uid in uids}
        self._metrics.keep(self._table.names())

    def _follow(self, model: str) -> None:
        """Another deployment may have taken the name: what waits for the name waits for that one."""
        known, uid = self._table.model(model), self._uids[model]
        if known is not None and known.uid != uid:
            self._wakes.pop(uid, None)
            self._uids[model] = known.uid
            for of, sign in ((uid, -1), (known.uid, 1)):
                self._demand.change(of, self._clock(), waiting=sign * len(self._queues[model]))

    def pump_all(self) -> None:
        """As `pump`, for all models: a replica that was left alone may be tried again."""
        for model in tuple(self._queues):
            self.pump(model)

    # What is reported

    def told(self, elsewhere: Mapping[str, int]) -> None:
        """How many requests wait at other gateways, by deployment."""
        self._elsewhere = elsewhere

    def wakes(self) -> dict[str, str]:
        """The deployments that shall wake, with the first request that waits for each."""
        return dict(self._wakes)

    def take_withdrawn(self) -> set[str]:
        """The deployments for which nothing waits any more, since the last call."""
        taken, self._withdrawn = self._withdrawn, set()
        return taken

    def take_refused(self) -> dict[str, str]:
        """The deployments that shall wake for a request that was refused, since the last call, with that request."""
        taken, self._refused = self._refused, {}
        return taken

    def note_refusal(self, model: str, error: GatewayError) -> None:
        """A request ended with an error of ours. One that an engine may have seen was not refused."""
        if error.status < _SERVER_ERROR or error.status == _UNAVAILABLE:
            self._metrics.refused(self._known_name(model), error.code)

    def note_cancel(self, model: str, state: str) -> None:
        """A request's client left; `state`: how far it was."""
        self._metrics.cancelled(self._known_name(model), state)

    def _known_name(self, model: str) -> str:
        """The name, if a deployment has it: clients may ask for any."""
        return model if self._table.knows(model) else ""

    def in_flight(self) -> dict[str, int]:
        """Requests at replicas, by deployment."""
        return {model: sum(counts.values()) for model, counts in tuple(self._in_flight.items())}

    def waiting(self, model: str) -> int:
        """Requests that wait for the model here."""
        return len(self._queues.get(model, ()))
