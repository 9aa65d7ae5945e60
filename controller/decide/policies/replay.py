"""A policy over the past: the GPU time that it would have freed, by the verdict for each minute. Pure.

The history holds a maximum per minute, which counts as a sample that covers the seconds of the minute that were read.
It holds no requests, so requests are ignored. An instance is followed from its start until its first idle verdict. From
then on, all that it held without a gap would have been free, restarts in place included.

A verdict depends on the minutes of its window alone. So the past may be read in parts, in their order, and no more once
it is decided. `judge` alone decides what is idle; minutes after which it cannot are left out before, by columns.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.decide.policies.idle_verdict import judge
from controller.domain.telemetry.history import MINUTE_S, NO_MINUTES, Minutes, PastClaim, Track
from controller.domain.telemetry.series import Series, Times
from controller.domain.telemetry.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

_GAP_S: Final = 1.0  # claims with a smaller gap count as continuous
# A sample counts as following its predecessor though it starts a little later; `windows.py` has the tolerance.
_JOINED_S: Final = 0.5
_BEFORE_S: Final = 2 * MINUTE_S  # a window may start within a minute, and a gap before it matters


class Replay:
    """A policy over the past of one instance."""

    def __init__(self, claims: Sequence[PastClaim], policy: UtilizationPolicy) -> None:
        self._policy = policy.model_copy(update={"ignore_requests": True})
        self._chains = _chains(claims)
        self._epochs = [_epochs(chain) for chain in self._chains]
        self._idle_at: list[float | None] = [None] * len(self._chains)

    def tracks(self, begin: float, end: float) -> set[Track]:
        """The tracks of which `look` needs the minutes, for the same times."""
        return {claim.track for _, epoch in self._undecided(begin, end) for claim in epoch}

    def look(self, minutes: Mapping[Track, Minutes], begin: float, end: float) -> None:
        """Searches idle verdicts from `begin` to `end`. Parts of the past must come in their order.

        Args:
            minutes: of the `tracks`, from `reach_s` before `begin` on.
            begin: inclusive.
            end: inclusive; the end of a minute.
        """
        for n, epoch in self._undecided(begin, end):
            if self._idle_at[n] is None:
                self._idle_at[n] = _first_idle(epoch, minutes, self._policy, begin, end)

    def freed_gpu_s(self) -> dict[str, float]:
        """GPU seconds that the policy would have freed, in the parts so far, by the GPUs' model."""
        freed: dict[str, float] = defaultdict(float)
        for chain, idle_at in zip(self._chains, self._idle_at, strict=True):
            if idle_at is not None:
                for claim in chain:
                    freed[claim.model] += claim.share * max(0.0, claim.ended - max(claim.started, idle_at))
        return freed

    def _undecided(self, begin: float, end: float) -> list[tuple[int, list[PastClaim]]]:
        """Epochs that held GPUs then, in order, each with the number of its chain."""
        return [
            (n, epoch.claims)
            for n, epochs in enumerate(self._epochs)
            if self._idle_at[n] is None
            for epoch in epochs
            if epoch.ended >= begin and epoch.started_at <= end
        ]


def reach_s(policy: UtilizationPolicy) -> float:
    """Seconds before a verdict whose minutes it depends on."""
    return policy.time_window + _BEFORE_S


def _chains(claims: Sequence[PastClaim]) -> list[list[PastClaim]]:
    """Claims that follow one another without a gap."""
    chains: list[list[PastClaim]] = []
    end = 0.0
    for claim in sorted(claims, key=lambda c: c.started):
        if chains and claim.started <= end + _GAP_S:
            chains[-1].append(claim)
        else:
            chains.append([claim])
            end = 0.0
        end = max(end, claim.ended)
    return chains


class _Epoch(NamedTuple):
    """Claims of one epoch in one chain. `started_at` and `ended`: of the first claim."""

    claims: list[PastClaim]
    started_at: float
    ended: float


def _epochs(chain: Sequence[PastClaim]) -> list[_Epoch]:
    by_number: dict[int, list[PastClaim]] = defaultdict(list)
    for claim in chain:
        by_number[claim.epoch].append(claim)
    return [
        _Epoch(claims, min(claim.started for claim in claims), min(claim.ended for claim in claims))
        for _, claims in sorted(by_number.items())
    ]


def _first_idle(
    claims: Sequence[PastClaim], minutes: Mapping[Track, Minutes], policy: UtilizationPolicy, begin: float, end: float
) -> float | None:
    """The end of the first minute after which one epoch is idle."""
    started = claims[0].running_since
    if started is None:
        return None
    ended = min(claim.ended for claim in claims)
    tracks = [minutes.get(claim.track, NO_MINUTES).between(started, ended) for claim in claims]
    not_before = max(begin, started + policy.grace_period + policy.time_window)
    times = tracks[0].at if len(tracks) == 1 else np.unique(np.concatenate([track.at for track in tracks]))
    times = times[(times >= not_before) & (times <= end)]
    if policy.gpus == "all":
        for track in tracks:
            times = times[_may_be_idle(track, policy, times)]
    for now in times.tolist():
        if now < not_before:
            continue
        gpus = tuple(
            GpuUse(claim.track.device, claim.worker, _window(track, now, policy), own=claim.track.own)
            for claim, track in zip(claims, tracks, strict=True)
        )
        verdict = judge(policy, InstanceUse(phase="running", running_since=started, gpus=gpus), now)
        if verdict.verdict == "idle":
            return float(now)
        not_before = max(not_before, verdict.due_at or 0.0)
    return None


def _may_be_idle(track: Minutes, policy: UtilizationPolicy, times: Times) -> NDArray[np.bool_]:
    """Whether no minute in the window before each of the times was in use, and enough of it can have been read."""
    first = np.searchsorted(track.at, times - policy.time_window, side="right")
    last = np.searchsorted(track.at, times, side="right")
    in_use = np.concatenate([[0], np.cumsum(track.high >= policy.min_gpu_utilization)])
    most_s = np.minimum(track.covered_s.astype(np.float64), MINUTE_S) + _JOINED_S
    read_s = np.concatenate([[0.0], np.cumsum(most_s)])
    enough = read_s[last] - read_s[first] >= policy.needed_coverage * policy.time_window - _JOINED_S
    may_be_idle: NDArray[np.bool_] = (in_use[last] == in_use[first]) & enough
    return may_be_idle


def _window(track: Minutes, now: float, policy: UtilizationPolicy) -> Series:
    """The minutes that a verdict at that time depends on."""
    series = Series()
    first, last = np.searchsorted(track.at, (now - reach_s(policy), now), side="right")
    at = track.at[first:last]
    if len(at):
        since = at - np.minimum(track.covered_s[first:last].astype(np.float64), MINUTE_S)
        high = track.high[first:last]
        series.append(at, since, MINUTE_S, high, high)
    return series
