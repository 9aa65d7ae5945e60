"""How many requests each model has at this gateway: at replicas, waiting, and ended lately. Pure.

A deployment's counts go to the leader by its uid. Those by key and by name decide which request of a queue is next,
and when a full queue has room. Times are seconds of the caller's clock.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from controller.live.demand import GatewayLoad

RATE_S: Final = 30.0  # over which ends are counted
LONGEST_RETRY_S: Final = 60


@dataclass(slots=True)
class _Counted:
    at: float
    in_flight: int = 0
    waiting: int = 0
    arrived: int = 0
    area: float = 0.0  # requests x seconds since the last report
    reported: GatewayLoad | None = None

    def move(self, now: float) -> None:
        self.area += (self.in_flight + self.waiting) * (now - self.at)
        self.at = now


class Demand:
    """How many requests each deployment and key have. `in_flight`: requests at replicas, by model and key."""

    def __init__(self, now: float) -> None:
        self._counted: dict[str, _Counted] = {}  # by the deployment's uid
        self._reported_at = now
        self._ends: dict[str, deque[list[int]]] = {}  # for each model: a second, and how many requests ended in it
        self.in_flight: dict[str, dict[str, int]] = {}

    def arrived(self, uid: str, now: float) -> None:
        self._at(uid, now).arrived += 1

    def wait(self, uid: str, now: float, number: int) -> None:
        """Counts requests that wait; `number` is negative for those that no longer do."""
        self._at(uid, now).waiting += number

    def entered(self, uid: str, model: str, key: str, now: float) -> None:
        """Counts a request at a replica. `uid` is empty for a deployment that is gone."""
        counts = self.in_flight.get(model)
        if counts is None:
            counts = self.in_flight[model] = {}
        counts[key] = counts.get(key, 0) + 1
        if uid:
            self._at(uid, now).in_flight += 1

    def left(self, uid: str, model: str, key: str, now: float) -> None:
        counts = self.in_flight[model]
        if counts[key] > 1:
            counts[key] -= 1
        else:
            del counts[key]
        if uid:
            self._at(uid, now).in_flight -= 1
        ends = self._ends.get(model)
        if ends is None:
            ends = self._ends[model] = deque(maxlen=math.ceil(RATE_S) + 1)
        second = int(now)
        if ends and ends[-1][0] == second:
            ends[-1][1] += 1
        else:
            ends.append([second, 1])

    def _at(self, uid: str, now: float) -> _Counted:
        counted = self._counted.get(uid)
        if counted is None:
            counted = self._counted[uid] = _Counted(now)
        counted.move(now)
        return counted

    def waiting(self, uid: str) -> int:
        counted = self._counted.get(uid)
        return counted.waiting if counted is not None else 0

    def retry_after_s(self, model: str, waiting: int, now: float) -> int:
        """Seconds, rounded up, until as many requests will have ended as wait, from 1 to `LONGEST_RETRY_S`."""
        ended = sum(number for second, number in self._ends.get(model, ()) if second >= now - RATE_S)
        if not ended:
            return LONGEST_RETRY_S
        return min(max(math.ceil(waiting * RATE_S / ended), 1), LONGEST_RETRY_S)

    def at_replicas(self) -> dict[str, int]:
        return {model: sum(counts.values()) for model, counts in tuple(self.in_flight.items())}

    def report(
        self, now: float, replicas: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    ) -> dict[str, GatewayLoad]:
        """The loads that changed since the last report, by uid. `replicas`: requests at each instance, by uid."""
        span, self._reported_at = now - self._reported_at, now
        changed: dict[str, GatewayLoad] = {}
        for uid, counted in self._counted.items():
            counted.move(now)
            mean = counted.area / span if span > 0 else float(counted.in_flight + counted.waiting)
            counted.area = 0.0
            at = replicas.get(uid, {})
            load = GatewayLoad(round(mean, 3), counted.in_flight, counted.waiting, counted.arrived, at)
            if load != counted.reported:
                counted.reported = load
                changed[uid] = load
        return changed

    def everything_again(self) -> None:
        """The next report has all loads: an earlier one may be lost."""
        for counted in self._counted.values():
            counted.reported = None

    def keep(self, uids: Collection[str], models: Collection[str]) -> None:
        """Forgets deployments that are gone, by uid and by name, once they have no request."""
        gone = [
            uid
            for uid, counted in self._counted.items()
            if uid not in uids and not (counted.in_flight or counted.waiting)
        ]
        for uid in gone:
            del self._counted[uid]
        self.in_flight = {name: counts for name, counts in self.in_flight.items() if counts or name in models}
        self._ends = {name: ends for name, ends in self._ends.items() if name in models}
