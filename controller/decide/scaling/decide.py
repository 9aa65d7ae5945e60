"""How many replicas a deployment wants: up on the mean of the window, down only on the largest wish of a longer one.

Unknown demand never removes a replica. From zero there is no window: what waits is served at once.
"""

import math
from typing import Any, Final

from controller.decide.scaling.history import FULL_KV, GRAPH_STEP_S, SATURATED_S, ScalingHistory
from controller.decide.scaling.texts import wish_text
from controller.domain.scaling import ScalingReason, ScalingView, Wish

R = ScalingReason
TOLERANCE: Final = 0.1  # so much over the target adds nothing
_EPSILON: Final = 1e-9
_LOOK_S: Final = 1.0
_LONGEST_LOOK_S: Final = 60.0


def decide_scaling(view: ScalingView, history: ScalingHistory, now: float) -> Wish:
    """The number of replicas that the deployment wants now.

    Args:
        view: the deployment at this moment; the history has observed it.
        history: of the deployment, up to now.
        now: seconds of the history's clock.
    """
    if view.slept_by_policy and not _is_wanted(view):
        return _wish(view, history, now, 0, 0, R.POLICY)
    if (why := _sleep_reason(view, history, now)) is not None:
        return _wish(view, history, now, 0, 0, why)
    needed, reason = _needed(view, history, now)
    saturated = reason is R.SATURATED
    if view.rule.clamp(needed) > view.present:
        return _wish(view, history, now, needed, needed, reason, saturated=saturated)
    if not view.known:
        return _wish(view, history, now, view.present, max(needed, view.present), R.DEMAND_UNKNOWN)
    needed = max(needed, min(_ceil(view.seen_by_agents / view.rule.target), view.present))
    return _down(view, history, now, needed, reason)


def scaling_evidence(view: ScalingView, history: ScalingHistory, now: float, wish: Wish) -> dict[str, Any]:
    """What a wish rests on, as JSON, with the graph of the last minutes' demand."""
    rule, mean = view.rule, history.mean(view.rule.window_s, now)
    return {
        "demand_mean": None if mean is None else round(mean, 2),
        "in_flight_and_waiting": view.demand.at_once,
        "waiting": view.demand.waiting,
        "target": rule.target,
        "window_s": rule.window_s,
        "needed": wish.needed,
        "largest_of_down_window": history.largest(rule.down_window_s, now),
        "down_window_s": rule.down_window_s,
        "min": rule.min,
        "max": rule.max,
        "running": view.replicas.running,
        "starting": view.replicas.placed,
        "pending": view.replicas.pending,
        "not_serving": history.out_of_service(view, now),
        "gateways": view.demand.gateways,
        "silent_gateways": list(view.demand.silent),
        "engines": [{"queued": e.queued, "kv_use": e.kv_use, "requests": e.requests} for e in view.engines],
        "idle_s": round(history.idle_s(now), 1),
        "graph": list(history.graph()),
        "graph_step_s": GRAPH_STEP_S,
    }


def _is_wanted(view: ScalingView) -> bool:
    """Whether a request waits, or an operator keeps it awake."""
    return view.wakes > 0 or view.demand.waiting > 0 or view.awake_for_s > 0


def _sleep_reason(view: ScalingView, history: ScalingHistory, now: float) -> ScalingReason | None:
    """Why none is wanted any more; None: it stays as it is, awake or asleep.

    The mean of `window` may still hold the last requests. It does not prolong `idle_after`.
    """
    rule, demand = view.rule, view.demand
    if rule.min > 0 or view.present == 0 or _is_wanted(view) or demand.at_once > 0 or not view.known:
        return None
    if view.seen_by_agents > 0:
        return None
    if view.replicas.running == view.replicas.placed == 0 and not history.has_run:
        return R.WAKE_WITHDRAWN
    lived = history.lived_s(now) >= rule.down_window_s
    return R.IDLE if lived and history.idle_s(now) >= rule.idle_after_s else None


def _needed(view: ScalingView, history: ScalingHistory, now: float) -> tuple[int, ScalingReason]:
    """What the present demand asks for, before min and max, and why."""
    rule, present = view.rule, view.present
    out = min(history.out_of_service(view, now), present)
    if view.replicas.running == 0 or present == 0:
        # What is in flight ends at replicas that stop. Only what waits needs a new one.
        needed, reason = _ceil(view.demand.waiting / rule.target), R.DEMAND
        needed += out if needed else 0
        if view.wakes > 0 and present == 0:
            reason = R.WOKEN
    else:
        mean, serving = history.mean(rule.window_s, now) or 0.0, present - out
        needed, reason = _ceil(mean / rule.target), R.DEMAND
        if serving < needed and mean <= rule.target * serving * (1 + TOLERANCE) + _EPSILON:
            needed, reason = serving, R.STEADY
        needed += out if needed else 0
        pressed = _pressed(view, history, now, out)
        if pressed > needed:
            needed, reason = pressed, R.SATURATED if pressed > present else R.STEADY
    if view.wakes > 0:
        needed = max(needed, 1)
    if view.awake_for_s > 0 and needed < 1:
        needed, reason = 1, R.KEPT_AWAKE
    return needed, reason


def _pressed(view: ScalingView, history: ScalingHistory, now: float, out: int) -> int:
    """What the engines' own queues and KV caches ask for: one more, or that none of the present ones goes.

    Args:
        view: the deployment at this moment.
        history: of the deployment.
        now: seconds of the history's clock.
        out: number of replicas that are no capacity.
    """
    present = view.present
    if view.replicas.running >= present - out and history.saturated_s(now) >= SATURATED_S - _EPSILON:
        return present + 1
    if any((engine.queued or 0) > 0 for engine in view.engines):
        return present
    known = [engine.kv_use for engine in view.engines if engine.kv_use is not None]
    # Fewer replicas share what all of them hold now. Those that say nothing are taken for the mean of the others.
    held = sum(known) / len(known) * view.replicas.running if known else 0.0
    kept = _ceil(held / FULL_KV)
    return min(kept + out if kept else 0, present)


def _down(view: ScalingView, history: ScalingHistory, now: float, needed: int, reason: ScalingReason) -> Wish:
    """The number where no more replicas are needed than are wanted already."""
    rule, present = view.rule, view.present
    floor = 1 if rule.min == 0 and present > 0 else rule.min
    number = min(max(needed, history.largest(rule.down_window_s, now), floor), present)
    if number < present or needed > present:
        return _wish(view, history, now, max(number, needed), needed, R.DEMAND)
    if present == 0:
        why = R.ASLEEP
    elif needed == present:
        why = R.STEADY if reason is R.DEMAND else reason
    elif history.lived_s(now) < rule.down_window_s:
        why = R.NOT_WATCHED_YET
    elif present == floor > needed:
        why = R.NOT_IDLE_YET if rule.min == 0 else R.STEADY
    else:
        why = R.DOWN_WINDOW
    return _wish(view, history, now, number, needed, why)


def _wish(
    view: ScalingView,
    history: ScalingHistory,
    now: float,
    number: int,
    needed: int,
    reason: ScalingReason,
    *,
    saturated: bool = False,
) -> Wish:
    clamped = view.rule.clamp(number)
    return Wish(
        number=clamped,
        needed=needed,
        reason=reason,
        message=wish_text(view, history, now, clamped, number, reason),
        look_again_s=_look_again_s(view, history, now),
        saturated=saturated and clamped > view.present,
    )


def _look_again_s(view: ScalingView, history: ScalingHistory, now: float) -> float:
    """When the passing of time alone may change the number."""
    if view.demand.mean > 0 or view.demand.at_once > 0 or not view.demand.known or history.saturated_s(now) > 0:
        return _LOOK_S
    rule = view.rule
    dates = [
        rule.idle_after_s - history.idle_s(now),
        rule.down_window_s - history.lived_s(now),
        *([view.awake_for_s] if view.awake_for_s > 0 else []),
    ]
    ahead = [date for date in dates if date > 0]
    falling = history.largest(rule.down_window_s, now) > 0
    return _LOOK_S if falling else min([max(date, _LOOK_S) for date in ahead] + [_LONGEST_LOOK_S])


def _ceil(value: float) -> int:
    return math.ceil(value - _EPSILON)
