"""A deployment that is watched second by second, without a clock: what is seen goes in, the wish comes out."""

from dataclasses import replace
from typing import Any

from controller.decide.scaling.decide import decide_scaling, scaling_evidence
from controller.decide.scaling.history import ScalingHistory
from controller.domain.scaling import Demand, EngineLoad, GatewayLoad, Replicas, ScalingRule, ScalingView, Wish

RULE = ScalingRule(min=1, max=6, target=8, window_s=10, down_window_s=300, idle_after_s=900)


def demand(*in_flight: int, waiting: int = 0, silent: tuple[str, ...] = (), arrived: int = 0) -> Demand:
    """One figure for each gateway; what waits, waits at the first one."""
    loads = tuple(
        GatewayLoad(n + (waiting if i == 0 else 0), n, waiting if i == 0 else 0, arrived)
        for i, n in enumerate(in_flight)
    )
    return Demand(loads, silent, len(loads))


class Watched:
    """The wish is taken as the next number, as the leader does."""

    def __init__(self, number: int | None = 2, *, rule: ScalingRule = RULE, running: int | None = None) -> None:
        self.now = 1000.0
        up = (number or 0) if running is None else running
        self.view = ScalingView(rule, number, Replicas(running=up), demand(0))
        self.history = ScalingHistory(self.now, self.view.present, at_min=self.view.present == rule.min)

    def see(self, seconds: float = 0, *, follow: bool = True, **fields: Any) -> Wish:
        """The wish after so many seconds, in each of which the same was seen. `follow`: its number takes effect."""
        self.view = replace(self.view, **fields)
        wish = self._look()
        for _ in range(round(seconds)):
            if follow:
                self._take(wish)
            self.now += 1
            wish = self._look()
        if follow:
            self._take(wish)
        return wish

    def evidence(self) -> dict[str, Any]:
        """What the wish of the last look rests on."""
        return scaling_evidence(self.view, self.history, self.now, decide_scaling(self.view, self.history, self.now))

    def skip(self, seconds: float) -> None:
        """Nothing is looked at for so long."""
        self.now += seconds

    def _look(self) -> Wish:
        self.history.observe(self.view, self.now)
        wish = decide_scaling(self.view, self.history, self.now)
        self.history.note(wish.needed, self.now)
        if wish.saturated:
            self.history.raised(self.now)
        return wish

    def _take(self, wish: Wish) -> None:
        """The wished replicas run at once; those that are too many go at once."""
        if self.view.number != wish.number:
            self.view = replace(self.view, number=wish.number, replicas=Replicas(running=wish.number))


def engines(*loads: tuple[int | None, float | None]) -> tuple[EngineLoad, ...]:
    return tuple(EngineLoad(queued, kv) for queued, kv in loads)
