"""Which replicas may take a request: not those that refused lately, nor those at their limit. Pure."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from controller.live.endpoints import Endpoint

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0


@dataclass(slots=True)
class _Suspect:
    """`until`: when it may be tried. `trial`: a request was let through since and has not ended."""

    refusals: int
    until: float
    trial: bool = False


class ReplicaBackoff:
    """Replicas that refused. Each may be tried by one request after 1 s, then 2, 4, ... 30 s; an answer ends that."""

    def __init__(self) -> None:
        self.suspects: dict[str, _Suspect] = {}

    def waits_until(self, instance: str) -> float:
        """When it may be tried next, in the caller's seconds; 0: at any time."""
        suspect = self.suspects.get(instance)
        return suspect.until if suspect is not None else 0.0

    def picked(self, instance: str, now: float) -> None:
        """A request goes there. If it is a suspect, others keep away until that request is answered or refused."""
        suspect = self.suspects.get(instance)
        if suspect is not None:
            suspect.trial, suspect.until = True, now + _delay_s(suspect.refusals)

    def refused(self, instance: str, now: float) -> None:
        """It refused a request. Requests that were already under way when it began to refuse count once."""
        suspect = self.suspects.get(instance)
        if suspect is None:
            self.suspects[instance] = _Suspect(1, now + _delay_s(1))
        elif suspect.trial:
            suspect.refusals, suspect.trial = suspect.refusals + 1, False
            suspect.until = now + _delay_s(suspect.refusals)

    def answered(self, instance: str) -> None:
        self.suspects.pop(instance, None)

    def keep(self, instances: Collection[str]) -> None:
        self.suspects = {instance: suspect for instance, suspect in self.suspects.items() if instance in instances}


def _delay_s(refusals: int) -> float:
    return min(FIRST_S * 2.0 ** min(refusals - 1, 16), LONGEST_S)


class OpenReplicas:
    """The replicas of each model that may take a request: all that can are among them, and some that cannot.

    A search leaves those that cannot out from then on: until their time comes, or until `opened` reports a change. So
    each search costs what has changed since the last one.

    Args:
        takes_at: when a replica can take a request if nothing more happens, infinity: never; given the time.

    Attributes:
        closed: those that are left out, by instance.
    """

    def __init__(self, takes_at: Callable[[Endpoint, float], float]) -> None:
        self._takes_at = takes_at
        self.closed: dict[str, Endpoint] = {}
        self._open: dict[str, dict[str, Endpoint]] = {}  # by model and instance
        self._later: list[tuple[float, str]] = []

    def update(self, by_model: Mapping[str, Sequence[Endpoint]]) -> None:
        self._open = {
            model: {endpoint.instance: endpoint for endpoint in running} for model, running in by_model.items()
        }
        self.closed.clear()
        self._later.clear()

    def opened(self, instance: str) -> None:
        """The replica may be able to take a request sooner than it was."""
        if (endpoint := self.closed.pop(instance, None)) is not None:
            self._open[endpoint.model][instance] = endpoint

    def some(self, model: str, now: float, most: int) -> list[Endpoint]:
        """At most `most` replicas that can take a request now."""
        while self._later and self._later[0][0] <= now:
            self.opened(heappop(self._later)[1])
        maybe = self._open.get(model, {})
        able: list[Endpoint] = []
        closed: list[tuple[float, str]] = []
        for instance, endpoint in maybe.items():
            at = self._takes_at(endpoint, now)
            if at > now:
                closed.append((at, instance))
            else:
                able.append(endpoint)
                if len(able) == most:
                    break
        for at, instance in closed:
            self.closed[instance] = maybe.pop(instance)
            if at < math.inf:
                heappush(self._later, (at, instance))
        return able
