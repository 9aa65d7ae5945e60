"""The verdict of a utilization policy on an instance: idle, busy or unknown. Pure.

Missing data is unknown, never idle. A verdict is about one instance; `actions.py` decides on the actions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.decide.policies.texts import clock_text, duration_text, gaps_text, name_of
from controller.decide.policies.windows import (
    GAP_S,
    Window,
    covered_since,
    end_of,
    newest_known,
    silent_since,
    window_of,
)
from controller.domain.telemetry.series import MeanSeries, Series
from controller.domain.telemetry.utilization import ClockLeaps, GpuUse, InstanceUse, Judgement, Verdict
from schemas.manifest.policy import UtilizationPolicy

_AHEAD_S: Final = 5.0  # a sample ahead of the database's clock by more: the clock was set back
_TINY_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _GpuVerdict:
    """The verdict on one GPU, or on the mean of several. `quiet_from`: the last use, or the end of the grace period."""

    verdict: Judgement
    reason: str
    text: str
    low_since: float | None = None
    quiet_from: float | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """The measure of all GPUs of an instance. `judged_from`: when its grace period ended."""

    policy: UtilizationPolicy
    now: float
    judged_from: float
    low_before: float | None
    leaps: ClockLeaps

    def use_counts_since(self, end: float) -> float:
        """Use after that time is use in the window: a complete window must have been lived through since then."""
        return self.leaps.lived_since(end, self.policy.time_window)

    def full_at(self, quiet_from: float) -> float:
        """When a window is full that starts there."""
        return self.leaps.lived_until(quiet_from, self.policy.time_window)


@dataclass(frozen=True, slots=True)
class _Subject:
    """One GPU, or the mean of several."""

    name: str  # in messages
    series: Series  # its samples; of a mean only the covered times
    sources: Sequence[Series]  # of its GPUs
    own: bool  # a GPU is shared, so that its samples may be of unknown value
    low_after: float  # not all was low before, by samples that are no longer in `series`


def judge(
    policy: UtilizationPolicy,
    use: InstanceUse,
    now: float,
    low_before: float | None = None,
    resumed_at: float | None = None,
) -> Verdict:
    """The verdict of `policy` on an instance.

    Args:
        policy: the measure.
        use: the instance's telemetry.
        now: the database's clock, in seconds.
        low_before: since when everything was low by the previous verdict of the same epoch and policy.
        resumed_at: no window begins before that time.
    """
    if use.phase != "running" or use.running_since is None:
        return Verdict("unknown", "not_running", f"it is {use.phase}")
    if not use.gpus:
        return Verdict("unknown", "no_telemetry", "it claims no GPU")
    judged_from = use.leaps.lived_until(use.running_since, policy.grace_period)
    judged_from = judged_from if resumed_at is None else max(judged_from, resumed_at)
    case = _Case(policy, now, judged_from, low_before, use.leaps)
    return _with_requests(case, use, {"all": _all, "any": _any, "mean": _mean}[policy.gpus](case, use))


def _verdict(
    verdict: Judgement, reason: str, text: str, low_since: float | None, due_at: float | None = None
) -> Verdict:
    """Rounds times to milliseconds, so that a stored verdict equals a new one."""
    low, due = (None if at is None else round(at, 3) for at in (low_since, due_at))
    return Verdict(verdict, reason, text, low, due)


def _with_requests(case: _Case, use: InstanceUse, of_gpus: _GpuVerdict) -> Verdict:
    """An instance with requests in its window is busy; with unknown requests it is unknown instead of idle."""
    window_s = case.policy.time_window
    due_at = None
    if of_gpus.quiet_from is not None and (of_gpus.verdict == "busy" or of_gpus.reason == "window_not_full"):
        due_at = case.full_at(of_gpus.quiet_from)
    text = of_gpus.text
    if case.policy.ignore_requests:
        text += "; requests are ignored" if of_gpus.verdict == "idle" else ""
    elif of_gpus.verdict != "busy":
        last_at = _last_request(case, use.requests)
        if last_at is not None:
            if any(len(s) and s.high[-1] > 0 for s in use.requests):
                return _verdict("busy", "requests", "requests are in flight or waiting", of_gpus.low_since)
            text = f"the last request was seen at {clock_text(last_at)}, within its window of {duration_text(window_s)}"
            due_at = case.full_at(max(last_at, of_gpus.quiet_from or last_at))
            return _verdict("busy", "requests", text, of_gpus.low_since, due_at)
        unknown = _requests_unknown(case, use) if of_gpus.verdict == "idle" else None
        if unknown is not None:
            return _verdict("unknown", "requests_unknown", unknown, of_gpus.low_since)
        text += f"; no request seen in {duration_text(window_s)}" if of_gpus.verdict == "idle" else ""
    return _verdict(of_gpus.verdict, of_gpus.reason, text, of_gpus.low_since, due_at)


def _last_request(case: _Case, requests: Sequence[Series]) -> float | None:
    """The time of the last request in the window; None without requests."""
    latest: list[float] = []
    for series in requests:
        if len(series):
            start = max(case.use_counts_since(end_of([series], case.now)), case.judged_from)
            first = int(np.searchsorted(series.at, start, side="right"))
            active = np.flatnonzero(series.high[first:] > 0)
            latest += [float(series.at[first + active[-1]])] if len(active) else []
    return max(latest, default=None)


def _requests_unknown(case: _Case, use: InstanceUse) -> str | None:
    """Why the requests in the window are unknown; None if it is known that there were none."""
    ranks = [series for series in use.requests if len(series)]
    if len(ranks) < len({gpu.worker for gpu in use.gpus}):
        return "not every process reports its requests"
    silent = silent_since(ranks, case.now)
    if silent is not None and any(newest_known(s) != s.at[-1] for s in ranks):
        return "its engine does not report its requests"
    if silent is not None:
        return f"no report of its requests since {clock_text(silent)}"
    window_s, needed = case.policy.time_window, case.policy.needed_coverage
    windows = [window_of(s, end_of([s], case.now), window_s) for s in ranks]
    if not all(window.covers(needed * window_s) for window in windows):
        share = int(100 * min(window.covered_s for window in windows) / window_s)
        return f"its requests are known for {share} % of {duration_text(window_s)}, {100 * needed:g} % needed"
    return None


def _all(case: _Case, use: InstanceUse) -> _GpuVerdict:
    """Busy if any GPU is, idle if all are, else unknown."""
    verdicts: list[_GpuVerdict] = []
    for gpu in use.gpus:
        verdict = _judge_gpu(case, gpu)
        if verdict.verdict == "busy" and verdict.low_since is None:
            return verdict  # in use now, which decides it
        verdicts.append(verdict)
    low_since, quiet_from = _latest(f.low_since for f in verdicts), _latest(f.quiet_from for f in verdicts)
    return _first(("busy", "unknown", "idle"), verdicts, low_since, quiet_from)


def _any(case: _Case, use: InstanceUse) -> _GpuVerdict:
    """Idle if any GPU is, else unknown if any is, else busy."""
    verdicts = [_judge_gpu(case, gpu) for gpu in use.gpus]
    low_since = min((f.low_since for f in verdicts if f.low_since is not None), default=None)
    quiet_from = min((f.quiet_from for f in verdicts if f.quiet_from is not None), default=None)
    if any(f.verdict == "unknown" and f.reason != "window_not_full" for f in verdicts):
        quiet_from = None  # its next sample may show that this GPU is idle, so no later time is due
    if quiet_from is not None:  # a GPU that is in use may be idle a window after its last sample, which may be older
        used = (
            g.series.at[-1]
            for g, f in zip(use.gpus, verdicts, strict=True)
            if f.verdict == "busy" and f.quiet_from is None
        )
        quiet_from = min([quiet_from, *map(float, used)])
    return _first(("idle", "unknown", "busy"), verdicts, low_since, quiet_from)


def _latest(times: Iterable[float | None]) -> float | None:
    """The latest time; None if any is None."""
    known = list(times)
    return None if None in known else max(at for at in known if at is not None)


def _first(
    order: Sequence[Judgement], verdicts: Sequence[_GpuVerdict], low_since: float | None, quiet_from: float | None
) -> _GpuVerdict:
    decisive = min(verdicts, key=lambda f: order.index(f.verdict))
    return _GpuVerdict(decisive.verdict, decisive.reason, decisive.text, low_since, quiet_from)


def _unusable(gpu: GpuUse, now: float) -> _GpuVerdict | None:
    """The verdict on a GPU without usable samples; None for all other GPUs."""
    if not len(gpu.series):
        return _GpuVerdict("unknown", "no_telemetry", f"{name_of(gpu)}: no GPU telemetry")
    if gpu.series.at[-1] > now + _AHEAD_S:
        text = f"{name_of(gpu)}: its samples are in the future of the database's clock, which was set back"
        return _GpuVerdict("unknown", "coverage", text)
    return None


def _judge_gpu(case: _Case, gpu: GpuUse) -> _GpuVerdict:
    unusable = _unusable(gpu, case.now)
    return unusable or _judge(case, _Subject(name_of(gpu), gpu.series, [gpu.series], gpu.own, gpu.low_after))


def _mean(case: _Case, use: InstanceUse) -> _GpuVerdict:
    """The verdict on the mean of all GPUs, which is uncovered wherever any of them is."""
    for gpu in use.gpus:
        unusable = _unusable(gpu, case.now)
        if unusable is not None:
            return unusable
    sources = [gpu.series for gpu in use.gpus]
    mean = use.mean if use.mean is not None else MeanSeries(sources)
    name = f"mean of {len(sources)} GPUs" if len(sources) > 1 else name_of(use.gpus[0])
    own, low_after = any(gpu.own for gpu in use.gpus), max(gpu.low_after for gpu in use.gpus)
    return _judge(case, _Subject(name, mean.read(), sources, own, low_after))


def _judge(case: _Case, subject: _Subject) -> _GpuVerdict:
    series, minimum = subject.series, case.policy.min_gpu_utilization
    end = end_of(subject.sources, case.now)
    start = end - case.policy.time_window
    first = int(np.searchsorted(series.at, case.judged_from, side="right"))
    highs = np.flatnonzero(series.high[first:] >= minimum)
    quiet_from = case.judged_from
    if len(highs):
        last = first + int(highs[-1])
        quiet_from = float(series.at[last])
        if quiet_from > case.use_counts_since(end):
            if quiet_from >= min(float(s.at[-1]) for s in subject.sources):
                return _GpuVerdict("busy", "busy", f"{subject.name}: in use, at or above {minimum} %")
            used = f"{series.high[last]:.0f} % at {clock_text(quiet_from)}, {minimum} % is in use"
            low = covered_since(series, quiet_from)
            return _GpuVerdict("busy", "busy", f"{subject.name}: {used}", low, quiet_from)
    low_since = _low_since(case, subject, start, quiet_from if len(highs) else None)
    return _judge_low(case, subject, window_of(series, end, case.policy.time_window), low_since, quiet_from)


def _low_since(case: _Case, subject: _Subject, start: float, high_at: float | None) -> float | None:
    """Since when everything was read and low. An earlier verdict counts while the window shows no gap."""
    series = subject.series
    if not len(series):
        return None
    known_since = float(series.since[0])
    if high_at is not None:
        return covered_since(series, high_at)
    if case.low_before is not None and (case.low_before >= known_since or known_since <= start + GAP_S):
        return covered_since(series, max(case.low_before, subject.low_after))
    return covered_since(series, max(case.judged_from, known_since))


def _judge_low(
    case: _Case, subject: _Subject, window: Window, low_since: float | None, quiet_from: float
) -> _GpuVerdict:
    """The verdict on a GPU with no high sample in the window: idle if it was read for enough of it, until now."""
    window_s, needed = case.policy.time_window, case.policy.needed_coverage
    silent = silent_since(subject.sources, case.now)
    twice_s = case.leaps.twice_s(window.start, window.end)
    lacking = not window.covers(needed * window_s + twice_s)
    if case.judged_from > case.use_counts_since(window.end) + _TINY_S:
        full_at = clock_text(case.full_at(case.judged_from))
        reason, text = "window_not_full", f"its window of {duration_text(window_s)} is full at {full_at}"
    elif lacking:
        share = int(100 * max(window.covered_s - twice_s, 0.0) / window_s)
        reason, text = "coverage", f"covered {share} % of {duration_text(window_s)}, {100 * needed:g} % needed"
    elif silent is not None:
        reason, text = "stale", f"no data since {clock_text(silent)}"
    else:
        gaps = window.gaps()
        low = f"below {case.policy.min_gpu_utilization} %"
        low += f" since {clock_text(low_since)}" if low_since is not None and not gaps else ""
        low += f" where it was read in {duration_text(window_s)}; {gaps_text(gaps)}" if gaps else ""
        return _GpuVerdict("idle", "idle", f"{subject.name}: {low}", low_since, quiet_from)
    if reason == "coverage" and silent is not None:
        text += f"; no data since {clock_text(silent)}"
    if reason != "window_not_full" and subject.own and _has_unknown(subject, window):
        reason, text = "no_process_utilization", f"shared, and the driver reports no utilization by process; {text}"
    return _GpuVerdict("unknown", reason, f"{subject.name}: {text}", low_since, quiet_from)


def _has_unknown(subject: _Subject, window: Window) -> bool:
    return any(window_of(s, window.end, window.end - window.start).unknown for s in subject.sources)
