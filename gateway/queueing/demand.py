"""How many requests each model has at this gateway: in flight and waiting, as a mean over time and now. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from controller.live.demand import GatewayLoad


@dataclass(slots=True)
class _Counted:
    in_flight: int = 0
    waiting: int = 0
    arrived: int = 0
    area: float = 0.0  # requests x seconds since the last report
    at: float = 0.0
    reported: GatewayLoad | None = None

    def move(self, now: float) -> None:
        self.area += (self.in_flight + self.waiting) * (now - self.at)
        self.at = now


class Demand:
    """The counts by deployment (uid). Times are seconds of the caller's clock."""

    def __init__(self, now: float) -> None:
        self._counted: dict[str, _Counted] = {}
        self._reported_at = now

    def change(self, uid: str, now: float, *, in_flight: int = 0, waiting: int = 0, arrived: int = 0) -> None:
        """Adds to the counts, or takes from them."""
        counted = self._at(uid, now)
        counted.in_flight += in_flight
        counted.waiting += waiting
        counted.arrived += arrived

    def arrived(self, uid: str, now: float) -> None:
        """A request came."""
        self._at(uid, now).arrived += 1

    def entered(self, uid: str, now: float) -> None:
        """A request went to a replica."""
        self._at(uid, now).in_flight += 1

    def left(self, uid: str, now: float) -> None:
        """A request is no longer at a replica."""
        self._at(uid, now).in_flight -= 1

    def _at(self, uid: str, now: float) -> _Counted:
        counted = self._counted.get(uid)
        if counted is None:
            counted = self._counted[uid] = _Counted(at=now)
        counted.area += (counted.in_flight + counted.waiting) * (now - counted.at)
        counted.at = now
        return counted

    def waiting(self, uid: str) -> int:
        """Requests that wait now."""
        counted = self._counted.get(uid)
        return counted.waiting if counted is not None else 0

    def report(
        self, now: float, replicas: Mapping[str, Mapping[str, int]] = MappingProxyType({})
    ) -> dict[str, GatewayLoad]:
        """What has changed since the last report, by deployment. `replicas`: requests at each instance, likewise."""
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
        """The next report tells all: what was told before may be lost."""
        for counted in self._counted.values():
            counted.reported = None

    def keep(self, present: Collection[str]) -> None:
        """Forgets deployments that are gone and have no request any more."""
        gone = [u for u, one in self._counted.items() if u not in present and not (one.in_flight or one.waiting)]
        for uid in gone:
            del self._counted[uid]
