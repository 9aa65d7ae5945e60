"""The autoscaler's history of one deployment: demand, wishes, activity and saturation.

It is data of one term: a new leader starts again with the number that it reads. All times are seconds of the leader's
monotonic clock, given by the caller. An observation that comes late loses no time; two at once add none.
"""

import math
from collections import deque
from typing import Final

from controller.domain.scaling import EngineLoad, ScalingView

GAP_S: Final = 5.0  # an observation covers the time since the previous, unless that is longer ago
LONGEST_WINDOW_S: Final = 600.0
LONGEST_DOWN_S: Final = 86_400.0
FULL_KV: Final = 0.9  # an engine whose KV cache is so full is saturated
SATURATED_S: Final = 30.0  # for that long before a replica is added, and between two such additions
GRAPH_STEP_S: Final = 10.0
_GRAPH_POINTS: Final = 60


class ScalingHistory:
    """The past of one deployment, since this leader watches it.

    Args:
        now: the start.
        number: the number that was wanted then; it counts as a wish.
        at_min: no fewer can be wanted, so no earlier observation could keep more.
    """

    def __init__(self, now: float, number: int, *, at_min: bool = False) -> None:
        self.started_at = -math.inf if at_min else now
        self._observed_at = now
        self._means: deque[tuple[float, float, float]] = deque()  # (end, length, mean), oldest first
        self._wishes: deque[tuple[float, int]] = deque([(now, number)])  # falling numbers, oldest first
        self._active_at = now
        self._arrived: int | None = None
        self._saturated_since: float | None = None
        self._raised_at: float | None = None
        self._exceeded_at: float | None = None  # when demand last exceeded a policy's cap
        self._outgrown_since: float | None = None  # since when the wish has been above the cap because of demand
        self._out_since: list[float] = []  # since when at least 1, 2, … replicas have not served
        self._graph: deque[tuple[float, float]] = deque(maxlen=_GRAPH_POINTS)  # (sum of mean x seconds, seconds)
        self._graph_at = now
        self.has_run = number > 0  # since it was last asleep; before this leader's time it may have

    def observe(self, view: ScalingView, now: float) -> None:
        length = now - self._observed_at
        self._observed_at = now
        if view.demand.gateways and 0 < length <= GAP_S:
            self._means.append((now, length, view.demand.mean))
            self._draw(now, length, view.demand.mean)
        while self._means and self._means[0][0] <= now - LONGEST_WINDOW_S:
            self._means.popleft()
        if length > GAP_S:  # the number that was needed in the gap is unknown
            self.note(view.present, now)
        if length > GAP_S or self._is_active(view):
            self._active_at = now
        self._arrived = view.demand.arrived
        out = view.replicas.unhealthy + view.replicas.failed
        known = self._out_since[:out] if length <= GAP_S else []
        self._out_since = known + [now] * (out - len(known))
        self.has_run = view.present > 0 and (self.has_run or view.replicas.running > 0)
        if not is_saturated(view.engines):
            self._saturated_since = None
        elif self._saturated_since is None:
            self._saturated_since = now

    def note(self, needed: int, now: float) -> None:
        """Remembers the number that is needed now."""
        while self._wishes and self._wishes[-1][1] <= needed:
            self._wishes.pop()
        self._wishes.append((now, needed))
        while self._wishes[0][0] <= now - LONGEST_DOWN_S:
            self._wishes.popleft()

    def raised(self, now: float) -> None:
        """Remembers that a replica was added now for saturated engines."""
        self._raised_at = now

    def cap_set(self, now: float, outgrown_s: float | None) -> None:
        """A policy has set a cap, which demand has exceeded for `outgrown_s`; None if it has not."""
        self._exceeded_at = None if outgrown_s is None else now
        self._outgrown_since = None if outgrown_s is None else now - outgrown_s

    def compare_to_cap(self, cap: int, needed: int, down_window_s: float, now: float) -> None:
        """Records whether demand exceeds a policy's cap. One peak counts for `down_window_s`, as always.

        Wishes from before the cap do not count: they would lift it although no request has come since.
        """
        if needed > cap:
            self._exceeded_at = now
            self._outgrown_since = now if self._outgrown_since is None else self._outgrown_since
        elif self._exceeded_at is None or now - self._exceeded_at >= down_window_s:
            self._outgrown_since = None

    def outgrown_s(self, now: float) -> float | None:
        """Seconds for which demand has kept the wish above the policy's cap; None if it is not above."""
        return None if self._outgrown_since is None else now - self._outgrown_since

    def mean(self, window_s: float, now: float) -> float | None:
        """The mean demand of the last `window_s` seconds, as far as they were observed; None if they were not."""
        total = seconds = 0.0
        for end, length, mean in reversed(self._means):
            part = min(end, now) - max(end - length, now - window_s)
            if part <= 0:
                break
            total, seconds = total + part * mean, seconds + part
        return total / seconds if seconds else None

    def largest(self, down_window_s: float, now: float) -> int:
        """The largest number that was needed within the last `down_window_s` seconds; 0 if unknown."""
        return max((number for at, number in self._wishes if at > now - down_window_s), default=0)

    def out_of_service(self, view: ScalingView, now: float) -> int:
        """Number of replicas that do not count as capacity: they have hung or failed for all of `window`.

        At most as many as serve: where most replicas fail, further replicas would fail too. A hung replica has served
        before, so one counts where none serves.
        """
        out = sum(now - since >= view.rule.window_s for since in self._out_since)
        return min(out, max(view.replicas.running, min(view.replicas.unhealthy, 1)))

    def idle_s(self, now: float) -> float:
        """Seconds without requests and without a starting replica."""
        return now - self._active_at

    def lived_s(self, now: float) -> float:
        """Seconds for which this leader has watched the deployment."""
        return now - self.started_at

    def saturated_s(self, now: float) -> float:
        """Seconds for which all engines have been saturated, counted from the last replica that was added for it."""
        if self._saturated_since is None:
            return 0.0
        return now - max(self._saturated_since, self._raised_at or self._saturated_since)

    def graph(self) -> tuple[float | None, ...]:
        """Demand over the last minutes, one figure for each `GRAPH_STEP_S`, oldest first; None if unknown."""
        return tuple(round(total / seconds, 2) if seconds else None for total, seconds in self._graph)

    def _draw(self, now: float, length: float, mean: float) -> None:
        while now - self._graph_at >= GRAPH_STEP_S or not self._graph:
            self._graph_at += GRAPH_STEP_S if self._graph else 0.0
            self._graph.append((0.0, 0.0))
            if now - self._graph_at >= GRAPH_STEP_S * _GRAPH_POINTS:
                self._graph.clear()
                self._graph_at = now
        total, seconds = self._graph[-1]
        self._graph[-1] = (total + mean * length, seconds + length)

    def _is_active(self, view: ScalingView) -> bool:
        """Whether anything keeps it awake. Unknown demand does."""
        demand = view.demand
        came = self._arrived is not None and demand.arrived != self._arrived
        starting = view.replicas.placed > 0 and view.replicas.running == 0
        requested = demand.mean > 0 or demand.at_once > 0 or came or view.reported_by_agents > 0
        return requested or starting or not view.known or view.wakes > 0 or view.awake_for_s > 0


def is_saturated(engines: tuple[EngineLoad, ...]) -> bool:
    """Whether all reporting engines have a queue of their own or a full KV cache."""
    known = [engine for engine in engines if engine.known]
    return bool(known) and all((e.queued or 0) > 0 or (e.kv_use or 0.0) >= FULL_KV for e in known)
