"""What each replica has to do, and when it can take a request: counts in memory, which outlive a read of the routes."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from controller.live.endpoints import Endpoint
from gateway.routing.open_replicas import OpenReplicas
from gateway.routing.replica_backoff import ReplicaBackoff

_TOLD_S: Final = 2.0  # for which a count of other gateways' requests is believed


class ReplicaLoads:
    """The requests in flight to each replica, and which replicas are left alone for a while.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight: dict[str, int] = {}
        self._others: dict[str, tuple[int, float]] = {}  # requests of other gateways, and when they were told
        self._backoff = ReplicaBackoff()
        self._open = OpenReplicas(self._takes_at)

    def _keep(self, by_model: Mapping[str, Sequence[Endpoint]]) -> None:
        """Replaces the replicas. Requests in flight to others stay counted."""
        present = {one.instance for running in by_model.values() for one in running}
        self._others = {instance: told for instance, told in self._others.items() if instance in present}
        self._backoff.keep(present)
        self._open.update(by_model)

    def enter(self, endpoint: Endpoint) -> None:
        """Counts a request in flight; `leave` must follow."""
        self._in_flight[endpoint.instance] = self._in_flight.get(endpoint.instance, 0) + 1

    def leave(self, endpoint: Endpoint) -> None:
        """A request in flight has ended."""
        left = self._in_flight[endpoint.instance] - 1
        if left:
            self._in_flight[endpoint.instance] = left
        else:
            del self._in_flight[endpoint.instance]
        if endpoint.instance in self._open.closed:
            self._open.opened(endpoint.instance)

    def in_flight(self, instance: str) -> int:
        """Requests in flight to an instance, from this gateway."""
        return self._in_flight.get(instance, 0)

    def told(self, endpoint: Endpoint, in_flight: int) -> None:
        """The endpoint's agent told how many requests the instance has, those of other gateways included."""
        others = in_flight - self._in_flight.get(endpoint.instance, 0)
        if others > 0:
            self._others[endpoint.instance] = (others, self._clock())
        else:
            self._others.pop(endpoint.instance, None)
        if endpoint.instance in self._open.closed:
            self._open.opened(endpoint.instance)

    def refused(self, endpoint: Endpoint) -> None:
        """The endpoint could not take a request: it is left alone for a while."""
        self._backoff.refused(endpoint.instance, self._clock())

    def answered(self, endpoint: Endpoint) -> None:
        """The endpoint's engine began an answer."""
        if self._backoff.suspects:
            self._backoff.answered(endpoint.instance)
            if endpoint.instance in self._open.closed:
                self._open.opened(endpoint.instance)

    def free(self, model: str) -> bool:
        """Whether a replica is below its limit and not left alone."""
        return bool(self._open.some(model, self._clock(), 1))

    def _load(self, instance: str, now: float) -> int:
        own, told = self._in_flight.get(instance, 0), self._others.get(instance)
        return own if told is None or now >= told[1] + _TOLD_S else own + told[0]

    def _takes_at(self, endpoint: Endpoint, now: float) -> float:
        """When it can take a request if nothing more happens; infinity: never."""
        instance, most = endpoint.instance, endpoint.max_in_flight
        if (until := self._backoff.waits_until(instance)) > now:
            return until
        if self._in_flight.get(instance, 0) >= most:
            return math.inf
        return now if self._load(instance, now) < most else self._others[instance][1] + _TOLD_S
