"""When demand ends a cap that a policy's `scale_down` has set. Pure.

The policy acted because replicas were idle. Once demand has asked for more than the cap for the policy's whole window,
that is no longer so. Unknown demand changes nothing.
"""

from typing import NamedTuple

from controller.decide.scaling.history import ScalingHistory
from controller.domain.scaling import PolicyCap, ScalingView, Wish


class CapVerdict(NamedTuple):
    """Whether demand asks for more than the cap, and whether it has done so for the policy's whole window."""

    outgrown: bool
    lifts: bool


def judge_cap(cap: PolicyCap | None, view: ScalingView, history: ScalingHistory, now: float, wish: Wish) -> CapVerdict:
    """The verdict on a deployment's cap. The history has compared it to the demand of this moment."""
    if cap is None:
        return CapVerdict(outgrown=False, lifts=False)
    if not view.known:
        return CapVerdict(outgrown=cap.outgrown_s is not None, lifts=False)
    above_s = history.outgrown_s(now) if wish.number > cap.number else None
    lifts = above_s is not None and cap.window_s is not None and above_s >= cap.window_s
    return CapVerdict(above_s is not None, lifts)
