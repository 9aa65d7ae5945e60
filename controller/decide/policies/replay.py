"""What a policy would have freed: the verdict for each minute of the past. Pure.

The history holds a mean and a maximum per minute, which count as a sample that speaks for the seconds of the minute
that were read. It holds no requests, so requests are ignored. An instance is followed from its start until its first
idle verdict. From then on, all that it held without a gap would have been free, restarts in place included.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from controller.decide.policies.idle_verdict import judge
from controller.domain.history import MINUTE_S, Minute, PastClaim, Track
from controller.domain.mean_series import MeanSeries
from controller.domain.series import Series
from controller.domain.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

_GAP_S: Final = 1.0  # claims with a smaller gap count as continuous


def freed_gpu_s(
    claims: Sequence[PastClaim], minutes: Mapping[Track, Sequence[Minute]], policy: UtilizationPolicy, since: float
) -> dict[str, float]:
    """GPU seconds that the policy would have freed of one instance from `since` on, by the GPUs' model.

    Args:
        claims: all of the instance's claims.
        minutes: of its GPUs, oldest first, from the policy's window before `since` on.
        policy: the policy; its action does not matter.
        since: nothing counts as freed before.
    """
    freed: dict[str, float] = defaultdict(float)
    policy = policy.model_copy(update={"ignore_requests": True})
    for chain in _chains(claims):
        idle_at = _first_idle(chain, minutes, policy, since)
        if idle_at is not None:
            for claim in chain:
                freed[claim.model] += claim.share * max(0.0, claim.ended - max(claim.began, idle_at))
    return freed


def _chains(claims: Sequence[PastClaim]) -> list[list[PastClaim]]:
    """Claims that follow one another without a gap."""
    chains: list[list[PastClaim]] = []
    end = 0.0
    for claim in sorted(claims, key=lambda c: c.began):
        if chains and claim.began <= end + _GAP_S:
            chains[-1].append(claim)
        else:
            chains.append([claim])
            end = 0.0
        end = max(end, claim.ended)
    return chains


def _first_idle(
    chain: Sequence[PastClaim], minutes: Mapping[Track, Sequence[Minute]], policy: UtilizationPolicy, since: float
) -> float | None:
    for epoch in sorted({claim.epoch for claim in chain}):
        found = _idle_in_epoch([c for c in chain if c.epoch == epoch], minutes, policy, since)
        if found is not None:
            return found
    return None


def _idle_in_epoch(
    claims: Sequence[PastClaim], minutes: Mapping[Track, Sequence[Minute]], policy: UtilizationPolicy, since: float
) -> float | None:
    started = claims[0].running_since
    if started is None:
        return None
    ended = min(claim.ended for claim in claims)
    uses = tuple(GpuUse(c.track.device, c.worker, Series(), own=c.track.own) for c in claims)
    mean = MeanSeries([gpu.series for gpu in uses])
    use = InstanceUse(phase="running", running_since=started, gpus=uses, mean=mean)
    arrivals = sorted(
        (minute, n)
        for n, claim in enumerate(claims)
        for minute in minutes.get(claim.track, ())
        if started <= minute.at - MINUTE_S and minute.at <= ended
    )
    not_before = started + policy.grace_period + policy.time_window
    for k, (minute, n) in enumerate(arrivals):
        uses[n].series.put(minute.at, MINUTE_S, minute.mean, minute.high, min(minute.covered_s, MINUTE_S))
        if policy.gpus == "all" and minute.high >= policy.min_gpu_utilization:
            not_before = max(not_before, minute.at + policy.time_window)  # busy until then
        together = k + 1 < len(arrivals) and arrivals[k + 1][0].at == minute.at
        if together or minute.at < not_before:
            continue
        for gpu in uses:
            gpu.series.trim(minute.at - policy.time_window - MINUTE_S)
        verdict = judge(policy, use, minute.at)
        if verdict.verdict == "idle" and minute.at >= since:
            return minute.at
        not_before = max(not_before, verdict.due_at or 0.0)
    return None
