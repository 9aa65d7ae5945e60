"""The wanted number of replicas: up on the mean of the window, down only on the largest wish of a longer window.

Unknown demand never removes a replica. From zero there is no window: waiting requests start a replica at once.
"""

import math
from typing import Any, Final, NamedTuple

from controller.decide.policies.texts import duration_text
from controller.decide.scaling.history import FULL_KV, GRAPH_STEP_S, SATURATED_S, ScalingHistory
from controller.domain.scaling import PolicyCap, ScalingReason, ScalingRule, ScalingView, Wish
from controller.engines.base import SERVES_AT_ONCE, Launch
from controller.engines.registry import engine_for
from schemas.manifest.deployment import DeploymentSpec

R = ScalingReason
TOLERANCE: Final = 0.1  # demand above the target by this share adds no replica
_EPSILON: Final = 1e-9
_LOOK_S: Final = 1.0
_LONGEST_LOOK_S: Final = 60.0
_OF_CAPACITY: Final = 0.7


def decide_scaling(view: ScalingView, history: ScalingHistory, now: float) -> Wish:
    """The number of replicas that the deployment wants now.

    The history has observed this view. `now`: seconds of the history's clock.
    """
    if view.slept_by_policy and not _is_wanted(view):
        return _wish(view, history, now, 0, 0, R.POLICY)
    if (why := _sleep_reason(view, history, now)) is not None:
        return _wish(view, history, now, 0, 0, why)
    needed, reason = _needed(view, history, now)
    if view.rule.clamp(needed) > view.present:
        return _wish(view, history, now, needed, needed, reason, saturated=reason is R.SATURATED)
    if not view.known:
        return _wish(view, history, now, view.present, max(needed, view.present), R.DEMAND_UNKNOWN)
    needed = max(needed, min(_ceil(view.reported_by_agents / view.rule.target), view.present))
    return _down(view, history, now, needed, reason)


def scaling_evidence(view: ScalingView, history: ScalingHistory, now: float, wish: Wish) -> dict[str, Any]:
    """The evidence of a wish as JSON, with the graph of the last minutes' demand."""
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
    return view.wakes > 0 or view.demand.waiting > 0 or view.awake_for_s > 0


def _sleep_reason(view: ScalingView, history: ScalingHistory, now: float) -> ScalingReason | None:
    """The reason to fall asleep; None if it stays as it is, awake or asleep.

    The mean of `window` may still hold the last requests. It does not prolong `idle_after`.
    """
    rule, demand = view.rule, view.demand
    if rule.min > 0 or view.present == 0 or _is_wanted(view) or demand.at_once > 0 or not view.known:
        return None
    if view.reported_by_agents > 0:
        return None
    if view.replicas.running == view.replicas.placed == 0 and not history.has_run:
        return R.WAKE_WITHDRAWN
    lived = history.lived_s(now) >= rule.down_window_s
    return R.IDLE if lived and history.idle_s(now) >= rule.idle_after_s else None


def _needed(view: ScalingView, history: ScalingHistory, now: float) -> tuple[int, ScalingReason]:
    """The number that the present demand needs, before min and max, and why."""
    rule, present = view.rule, view.present
    out = min(history.out_of_service(view, now), present)
    if view.replicas.running == 0 or present == 0:
        # Requests in flight end at replicas that stop. Only waiting requests need a new replica.
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
    """The number that the engines' own queues and KV caches need: one more, or no fewer than present.

    `out`: number of replicas that do not count as capacity.
    """
    present = view.present
    if view.replicas.running >= present - out and history.saturated_s(now) >= SATURATED_S - _EPSILON:
        return present + 1
    if any((engine.queued or 0) > 0 for engine in view.engines):
        return present
    known = [engine.kv_use for engine in view.engines if engine.kv_use is not None]
    # Fewer replicas would share all present KV data. A replica that reports nothing counts as the mean of the reports.
    held = sum(known) / len(known) * view.replicas.running if known else 0.0
    kept = _ceil(held / FULL_KV)
    return min(kept + out if kept else 0, present)


def _down(view: ScalingView, history: ScalingHistory, now: float, needed: int, reason: ScalingReason) -> Wish:
    """The wish where no more replicas are needed than are wanted already."""
    rule, present = view.rule, view.present
    floor = max(rule.min, 1)  # a deployment that may sleep keeps its last replica for `idle_after`
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
        next_check_s=_next_check_s(view, history, now),
        saturated=saturated,
    )


def _next_check_s(view: ScalingView, history: ScalingHistory, now: float) -> float:
    """Seconds until time alone may change the number."""
    if view.demand.mean > 0 or view.demand.at_once > 0 or not view.demand.known or history.saturated_s(now) > 0:
        return _LOOK_S
    rule = view.rule
    dates = [rule.idle_after_s - history.idle_s(now), rule.down_window_s - history.lived_s(now), view.awake_for_s]
    ahead = [date for date in dates if date > 0]
    falling = history.largest(rule.down_window_s, now) > 0
    return _LOOK_S if falling else min([max(date, _LOOK_S) for date in ahead] + [_LONGEST_LOOK_S])


def _ceil(value: float) -> int:
    return math.ceil(value - _EPSILON)


class CapVerdict(NamedTuple):
    """Whether demand exceeds the cap, and whether it has done so for all of the policy's window."""

    outgrown: bool
    lifts: bool


def judge_cap(cap: PolicyCap | None, view: ScalingView, history: ScalingHistory, now: float, wish: Wish) -> CapVerdict:
    """The verdict on the cap that a policy's `scale_down` has set.

    The policy acted because replicas were idle. Once demand exceeds the cap for the policy's complete window, that is
    no longer so. Unknown demand has no effect. The history has compared the cap to the present demand.
    """
    if cap is None:
        return CapVerdict(outgrown=False, lifts=False)
    if not view.known:
        return CapVerdict(outgrown=cap.outgrown_s is not None, lifts=False)
    above_s = history.outgrown_s(now) if wish.number > cap.number else None
    lifts = above_s is not None and cap.window_s is not None and above_s >= cap.window_s
    return CapVerdict(above_s is not None, lifts)


def max_in_flight(spec: DeploymentSpec, engine: str = "", sequences: int | None = None) -> int:
    """The most requests at one replica.

    `engine`: that placement chose; empty for the spec's only engine, or before the choice. `sequences`: concurrent
    requests that its need allows for, None if unknown.
    """
    stated = spec.serving.max_in_flight
    if stated != "auto":
        return stated
    try:
        return engine_for(spec).chosen(engine).process(spec, Launch(sequences=sequences)).serves_at_once
    except ValueError:  # written by another version, or an engine that is not chosen yet
        return SERVES_AT_ONCE


def rule_of(spec: DeploymentSpec, engine: str = "", sequences: int | None = None) -> ScalingRule:
    """The arguments are those of `max_in_flight`."""
    low, high = spec.replica_bounds
    scaling = spec.scaling
    most = max_in_flight(spec, engine, sequences)
    target = max(_OF_CAPACITY * most, 1.0) if scaling.target == "auto" else scaling.target
    return ScalingRule(
        min=low,
        max=high,
        target=target,
        window_s=scaling.window,
        down_window_s=scaling.down_window,
        idle_after_s=scaling.idle_after,
        dry_run=scaling.dry_run,
        most=most,
    )


def wish_text(
    view: ScalingView, history: ScalingHistory, now: float, number: int, wanted: int, reason: ScalingReason
) -> str:
    """The number and why.

    `number` is within min and max; `wanted` is the number before them.
    """
    limit = f"; {'at least' if number > wanted else 'at most'} {number}" if number != wanted else ""
    return f"{number} wanted: {_why(view, history, now, number, reason)}{limit}"


def _why(view: ScalingView, history: ScalingHistory, now: float, number: int, reason: ScalingReason) -> str:
    rule = view.rule
    match reason:
        case R.DEMAND | R.STEADY | R.DOWN_WINDOW:
            return _load(view, history, now, number, reason)
        case R.DEMAND_UNKNOWN:
            names = ", ".join(view.demand.silent)
            who = f"gateway {names} does not report" if names else "no gateway reports"
            return f"{who}, so nothing is removed"
        case R.NOT_IDLE_YET:
            return f"without requests for {round(history.idle_s(now))}s of {duration_text(rule.idle_after_s)}"
        case R.WOKEN:
            return f"{max(view.demand.waiting, view.wakes)} requests wait for it to wake"
        case R.KEPT_AWAKE:
            return "an operator keeps it awake"
        case _:
            return {
                R.SATURATED: f"all engines that report have a queue or a full KV cache for {SATURATED_S:g}s",
                R.NOT_WATCHED_YET: f"this leader has not watched it for {duration_text(rule.down_window_s)} yet",
                R.ASLEEP: "asleep, and no request waits",
                R.IDLE: f"without requests for {duration_text(rule.idle_after_s)}",
                R.POLICY: "put to sleep by its utilization policy",
                R.WAKE_WITHDRAWN: "no request waits any more, and no replica has run yet",
            }[reason]


def _load(view: ScalingView, history: ScalingHistory, now: float, number: int, reason: ScalingReason) -> str:
    rule = view.rule
    if view.replicas.running == 0:
        return f"{view.demand.waiting} requests wait and no replica runs"
    mean = history.mean(rule.window_s, now) or 0.0
    load = f"{mean:.1f} requests in flight and waiting as the mean of {duration_text(rule.window_s)}"
    if reason is R.DOWN_WINDOW:
        return f"{load}; {number} were needed within {duration_text(rule.down_window_s)}"
    out = history.out_of_service(view, now)
    aside = f", and {out} of {view.present} replicas do not serve" if out else ""
    return f"{load}, for a target of {rule.target:g} per replica{aside}"
