"""The queues of all models at this gateway: which requests wait, which goes next, and which models shall wake.

A request waits where no replica can take it now: all are at their limit, or none runs. It goes on when a replica is
free, and ends when the deployment cannot run, the queue's time is over, or its client leaves.
"""

import math
from collections.abc import Callable, Collection
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol

from prometheus_client import CollectorRegistry

from controller.live.endpoints import Model
from gateway.errors import GatewayError
from gateway.queueing.demand import Demand
from gateway.queueing.fair_queue import FairQueue
from gateway.queueing.queue_leases import QueueLeases
from gateway.queueing.queue_metrics import QueueMetrics
from gateway.requests.refusals import no_replica_error, queue_full, trouble_error
from gateway.routing.routing_table import RoutingTable

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
        woken: called when a model shall wake or need no longer.
        places: this gateway's places in the queues; None: this is the only gateway.

    Attributes:
        by_model: the queues in which requests wait.
    """

    def __init__(
        self,
        table: RoutingTable,
        demand: Demand,
        clock: Callable[[], float],
        woken: Callable[[], None] = lambda: None,
        metrics: QueueMetrics | None = None,
        places: QueueLeases[Queued] | None = None,
    ) -> None:
        self._metrics = metrics or QueueMetrics(CollectorRegistry())
        self._table = table
        self.demand = demand
        self._clock = clock
        self._woken = woken
        self.by_model: dict[str, FairQueue[Queued]] = {}
        self._uids: dict[str, str] = {}  # the deployment for which each queue's requests wait
        self._places = places if places is not None else QueueLeases(clock)
        self._wakes: dict[str, str] = {}  # first waiting request, by deployment's uid
        self._withdrawn: set[str] = set()
        self._refused: dict[str, str] = {}  # a request that shall wake its model although it was refused, by uid
        self._prolonged_at: dict[str, float] = {}  # when one last did
        self._pumping = False

    # What waits

    def must_wait(self, model: str, lane: str = "") -> bool:
        """Whether others wait already for any replica or for those of its lane, so that it does not overtake them."""
        queue = self.by_model.get(model)
        return queue is not None and queue.waits_in(lane) and not self._pumping

    def waits(self, request: Queued, model: str) -> bool:
        queue = self.by_model.get(model)
        return queue is not None and request in queue

    def join(self, request: Queued, model: str, tried: Collection[str], lane: str = "") -> GatewayError | None:
        """Lets the request wait, for replicas of its lane or for any; the error where it may not."""
        error = self._refusal(request, model, tried)
        if error is not None:
            return error
        known = self._table.model(model)
        if known is None:
            return no_replica_error(model, self._table, tried)
        uid = self._uids.get(model, known.uid)
        length = known.limits.queue.length
        if not self._places.join(uid, request, length) and not (
            self._yielded(model, uid, request) and self._places.join(uid, request, length)
        ):
            return self._full(model, uid)
        self.by_model.setdefault(model, FairQueue()).add(request, request.key, request.arrived, lane)
        self._uids[model] = uid
        self.demand.wait(uid, self._clock(), 1)
        self._metrics.waiting(model, len(self.by_model[model]))
        self._wake(model, known, request)
        return None

    def _wake(self, model: str, known: Model, request: Queued) -> None:
        """Wakes the model, where it may sleep and nothing of it runs."""
        if known.may_sleep and not self._table.runs(model) and known.uid not in self._wakes:
            self._withdrawn.discard(known.uid)
            self._wakes[known.uid] = request.request_id
            self._metrics.wake(model)
            self._woken()

    def leave(self, request: Queued, model: str, *, refused: bool) -> None:
        """The request waits no longer. Once none waits, the wake is withdrawn, unless the last one was refused.

        A model that cannot run now is tried for a while longer: its clients come again.
        """
        uid = self._uids.get(model)
        wakes = uid in self._wakes
        if uid is not None and self._remove(request, model, uid, refused=refused):
            self._places.leave(uid, request)
            if wakes and not refused and uid not in self._wakes:
                self._metrics.wake_withdrawn(model)

    def _remove(self, request: Queued, model: str, uid: str, *, refused: bool) -> bool:
        """Takes it from the queue, but not from its place; False: it is not there."""
        queue = self.by_model.get(model)
        if queue is None or not queue.remove(request):
            return False
        self.demand.wait(uid, self._clock(), -1)
        self._metrics.waiting(model, len(queue))
        if not queue:
            del self.by_model[model], self._uids[model]
            if self._wakes.pop(uid, None) is not None and not refused:
                self._withdrawn.add(uid)
                self._prolonged_at.pop(uid, None)
                self._woken()
        return True

    def _refusal(self, request: Queued, model: str, tried: Collection[str]) -> GatewayError | None:
        """Why a request may not wait for this model; None: it may."""
        known = self._table.model(model)
        if known is None or not known.serves or self._table.stopped(model) is not None:
            return no_replica_error(model, self._table, tried)
        runs = self._table.runs(model)
        if known.trouble is not None and not runs:
            self._prolong(known, request)
            return trouble_error(known.trouble, model, request.role)
        if known.limits.queue.length == 0 and (tried or not runs):
            if not runs:
                self._prolong(known, request)
            return no_replica_error(model, self._table, tried)
        return None

    def _full(self, model: str, uid: str) -> GatewayError:
        waiting = self._places.waiting(uid)
        after_s = self.demand.retry_after_s(model, max(waiting, 1), self._clock())
        return queue_full(model, waiting, after_s)

    def refuse(self, uid: str, request: Queued) -> None:
        """Ends a request that waited for a place: the queue is full over all gateways."""
        model = next((name for name, known_uid in self._uids.items() if known_uid == uid), None)
        if model is None or not self.waits(request, model) or self._places.has(uid, request):
            return
        if not (self._yielded(model, uid, request) and self._places.has(uid, request)):
            request.fail(self._full(model, uid))

    def _yielded(self, model: str, uid: str, request: Queued) -> bool:
        """Whether a place became free in a full queue, so that no key fills it alone: the newest of most ends."""
        queue = self.by_model.get(model)
        yielding = None
        if queue is not None:
            yielding = queue.to_yield(request, request.key, lambda candidate: self._places.has(uid, candidate))
        if yielding is None:
            return False
        yielding.fail(self._full(model, uid))
        return True

    def end_newest(self, key: str, error: GatewayError) -> bool:
        """Ends the newest request of a key that waits for any model, by this error; False: none waits."""
        newest = [waiting for queue in self.by_model.values() for waiting in islice(queue.newest_of(key), 1)]
        if newest:
            max(newest, key=attrgetter("arrived")).fail(error)
        return bool(newest)

    def _prolong(self, known: Model, request: Queued) -> None:
        """Lets a model that does not run wake, or continue to try, for clients that are refused and come again."""
        now = self._clock()
        if known.may_sleep and now - self._prolonged_at.get(known.uid, -math.inf) >= _PROLONG_S:
            self._prolonged_at[known.uid] = now
            self._refused[known.uid] = request.request_id
            self._woken()

    # What continues

    def freed(self, model: str, key: str) -> None:
        """A request of the key is no longer at a replica, which may be free for another one."""
        if (queue := self.by_model.get(model)) is not None:
            queue.fewer_in_flight(key)
            self.pump(model)

    def pump(self, model: str) -> None:
        """Sends waiting requests on, in order, while a replica is free."""
        full: list[str] = []  # lanes that have turned out to have no free replica
        while not self._pumping and (queue := self.by_model.get(model)) and self._table.free(model):
            first = queue.first(self.demand.in_flight.get(model, {}), full)
            if first is None:
                return
            request, uid = first.request, self._uids[model]
            self._remove(request, model, uid, refused=False)
            self._pumping = True
            try:
                request.go()
            finally:
                self._pumping = False
            if self.waits(request, model):
                if not first.lane:
                    return  # no replica was free after all
                full.append(first.lane)
            else:
                self._places.leave(uid, request)
                self._metrics.waited(model, self._clock() - first.arrived)

    def routes_changed(self) -> None:
        """Replicas came or went: requests leave the queue, or end where their deployment cannot run."""
        for model in tuple(self.by_model):
            self._follow(model)
            self._end_or_wake(model, self.by_model[model])
            self.pump(model)
        uids, names = self._table.uids(), self._table.names()
        self.demand.keep(uids, names)
        self._prolonged_at = {uid: at for uid, at in self._prolonged_at.items() if uid in uids}
        self._metrics.keep(names, self._clock())

    def _end_or_wake(self, model: str, queue: FairQueue[Queued]) -> None:
        known = self._table.model(model)
        if known is None or self._table.stopped(model) is not None:
            for request in tuple(queue):
                request.fail(no_replica_error(model, self._table, ()))
        elif known.trouble is not None and not self._table.runs(model):
            for request in tuple(queue):
                request.fail(trouble_error(known.trouble, model, request.role))
        else:
            self._wake(model, known, next(iter(queue)))

    def _follow(self, model: str) -> None:
        """Another deployment may have taken the name: what waits for the name waits for that one."""
        known, uid = self._table.model(model), self._uids[model]
        if known is not None and known.uid != uid:
            self._wakes.pop(uid, None)
            self._uids[model] = known.uid
            for of, sign in ((uid, -1), (known.uid, 1)):
                self.demand.wait(of, self._clock(), sign * len(self.by_model[model]))
            self._places.move(uid, known.uid, tuple(self.by_model[model]), known.limits.queue.length)

    def pump_all(self) -> None:
        for model in tuple(self.by_model):
            self.pump(model)

    # What is reported

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
        """A request ended with an error of ours. A request that an engine may have received was not refused."""
        if error.status < _SERVER_ERROR or error.status == _UNAVAILABLE:
            self._metrics.refused(self._known_name(model), error.code)

    def note_cancel(self, model: str, state: str) -> None:
        """A request's client left; `state`: how far it was."""
        self._metrics.cancelled(self._known_name(model), state)

    def _known_name(self, model: str) -> str:
        """The name, if a deployment has it: clients may send any name."""
        return model if self._table.knows(model) else ""
