"""A wish of the autoscaler in a line. Pure."""

from controller.decide.policies.texts import duration_text
from controller.decide.scaling.history import SATURATED_S, ScalingHistory
from controller.domain.scaling import ScalingReason, ScalingView

R = ScalingReason


def wish_text(
    view: ScalingView, history: ScalingHistory, now: float, number: int, wanted: int, reason: ScalingReason
) -> str:
    """The number and why.

    Args:
        view: the deployment.
        history: its past.
        now: seconds of the history's clock.
        number: within min and max.
        wanted: before them.
        reason: for it.
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
