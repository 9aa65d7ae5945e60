"""The replicas that may take a request, so that a look for one goes over no others. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from controller.live.endpoints import Endpoint


class OpenReplicas:
    """Of each model the replicas that may take a request: all that can are among them, and some that cannot.

    Those are found out by the look that meets them, and are left out from then on: until their time comes, or until
    `opened` says that something has changed. So each look costs what has changed since the last one.

    Args:
        takes_at: when a replica can take a request if nothing more happens, infinity: never; asked at a given time.

    Attributes:
        closed: those that are left out, by instance.
    """

    def __init__(self, takes_at: Callable[[Endpoint, float], float]) -> None:
        self._takes_at = takes_at
        self.closed: dict[str, Endpoint] = {}
        self._open: dict[str, dict[str, Endpoint]] = {}  # by model and instance
        self._later: list[tuple[float, str]] = []

    def update(self, by_model: Mapping[str, Sequence[Endpoint]]) -> None:
        """Replaces the replicas."""
        self._open = {model: {one.instance: one for one in running} for model, running in by_model.items()}
        self.closed.clear()
        self._later.clear()

    def opened(self, instance: str) -> None:
        """The replica may be able to take a request sooner than it was."""
        if (one := self.closed.pop(instance, None)) is not None:
            self._open[one.model][instance] = one

    def some(self, model: str, now: float, most: int) -> list[Endpoint]:
        """Those that can take a request now, at most so many."""
        while self._later and self._later[0][0] <= now:
            self.opened(heappop(self._later)[1])
        maybe = self._open.get(model, {})
        found: list[Endpoint] = []
        closed: list[tuple[float, str]] = []
        for instance, one in maybe.items():
            at = self._takes_at(one, now)
            if at > now:
                closed.append((at, instance))
            else:
                found.append(one)
                if len(found) == most:
                    break
        for at, instance in closed:
            self.closed[instance] = maybe.pop(instance)
            if at < math.inf:
                heappush(self._later, (at, instance))
        return found
