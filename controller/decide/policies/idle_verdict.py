"""What marks an instance idle: the verdict of its utilization policy, idle, busy or unknown. Pure.

Missing data is unknown, never idle. A verdict is about one instance; `actions.py` decides what follows from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from controller.decide.policies.windows import Window, end_of, is_fresh, mean_steps, window_of
from controller.domain.utilization import GpuUse, InstanceUse, Judgement, Verdict
from schemas.manifest.policy import UtilizationPolicy

_AHEAD_S: Final = 5.0  # a sample ahead of the database's clock by more: the clock was set back
_TINY_S: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _GpuVerdict:
    """The verdict on one GPU, or on the mean of several."""

    verdict: Judgement
    reason: str
    text: str
    low_since: float | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """What all GPUs of an instance are judged by. `judged_from`: when its grace period ended."""

    policy: UtilizationPolicy
    now: float
    judged_from: float
    low_before: float | None


def judge(policy: UtilizationPolicy, use: InstanceUse, now: float, low_before: float | None = None) -> Verdict:
    """The verdict of `policy` on an instance.

    Args:
        policy: what counts as idle.
        use: the instance's telemetry.
        now: the database's clock, in seconds.
        low_before: since when everything was low by the previous verdict of the same epoch and policy.
    """
    if use.phase != "running" or use.running_since is None:
        return Verdict("unknown", "not_running", f"it is {use.phase}")
    if not use.gpus:
        return Verdict("unknown", "no_telemetry", "it claims no GPU")
    case = _Case(policy, now, use.running_since + policy.grace_period, low_before)
    for gpu in use.gpus:
        unusable = _unusable(gpu, now)
        if unusable is not None and policy.gpus == "mean":
            return Verdict(unusable.verdict, unusable.reason, unusable.text)
    return _with_requests(case, use, {"all": _all, "any": _any, "mean": _mean}[policy.gpus](case, use.gpus))


def _verdict(
    verdict: Judgement, reason: str, text: str, low_since: float | None, due_at: float | None = None
) -> Verdict:
    """Rounds times to milliseconds, so that a stored verdict equals a newly made one."""
    low, due = (None if at is None else round(at, 3) for at in (low_since, due_at))
    return Verdict(verdict, reason, text, low, due)


def _with_requests(case: _Case, use: InstanceUse, found: _GpuVerdict) -> Verdict:
    """An instance with requests is busy; one whose requests are unknown is unknown instead of idle."""
    due_at = None
    if found.low_since is not None and (found.verdict == "busy" or found.reason == "window_not_full"):
        due_at = found.low_since + case.policy.time_window
    if found.verdict != "busy" and not case.policy.ignore_requests:
        fresh = [r for r in use.requests if is_fresh(r.at, r.period_s, case.now)]
        if any(r.requests for r in fresh):
            return _verdict("busy", "requests", "requests are in flight or waiting", found.low_since)
        if found.verdict == "idle" and (not use.requests or any(r.requests is None for r in fresh)):
            return _verdict("unknown", "requests_unknown", "its engine does not report its requests", found.low_since)
        if found.verdict == "idle" and len(fresh) < len(use.requests):
            oldest = clock_text(min(r.at for r in use.requests))
            text = f"no report of its requests since {oldest}"
            return _verdict("unknown", "requests_unknown", text, found.low_since)
    return _verdict(found.verdict, found.reason, found.text, found.low_since, due_at)


def _all(case: _Case, gpus: Sequence[GpuUse]) -> _GpuVerdict:
    """Busy if any GPU is, idle if all are, else unknown."""
    found: list[_GpuVerdict] = []
    for gpu in gpus:
        one = _judge_gpu(case, gpu)
        if one.verdict == "busy" and one.low_since is None:
            return one  # in use now, which decides it
        found.append(one)
    lows = [f.low_since for f in found]
    low_since = None if None in lows else max(low for low in lows if low is not None)
    order: tuple[Judgement, ...] = ("busy", "unknown", "idle")
    return _first(order, found, low_since)


def _any(case: _Case, gpus: Sequence[GpuUse]) -> _GpuVerdict:
    """Idle if any GPU is, else unknown if any is, else busy."""
    found = [_judge_gpu(case, gpu) for gpu in gpus]
    low_since = min((f.low_since for f in found if f.low_since is not None), default=None)
    order: tuple[Judgement, ...] = ("idle", "unknown", "busy")
    return _first(order, found, low_since)


def _first(order: Sequence[Judgement], found: Sequence[_GpuVerdict], low_since: float | None) -> _GpuVerdict:
    decisive = min(found, key=lambda f: order.index(f.verdict))
    return _GpuVerdict(decisive.verdict, decisive.reason, decisive.text, low_since)


def _unusable(gpu: GpuUse, now: float) -> _GpuVerdict | None:
    """The verdict on a GPU without usable samples; None: it has some."""
    if not len(gpu.series):
        return _GpuVerdict("unknown", "no_telemetry", f"{name_of(gpu)}: no GPU telemetry")
    if gpu.series.at[-1] > now + _AHEAD_S:
        text = f"{name_of(gpu)}: its samples are in the future of the database's clock, which was set back"
        return _GpuVerdict("unknown", "coverage", text)
    return None


def _judge_gpu(case: _Case, gpu: GpuUse) -> _GpuVerdict:
    unusable = _unusable(gpu, case.now)
    if unusable is not None:
        return unusable
    series, policy = gpu.series, case.policy
    end = end_of([series], case.now)
    start = end - policy.time_window
    newest = series.at[-1]
    if newest > max(start, case.judged_from) and series.high[-1] >= policy.min_gpu_utilization:
        return _GpuVerdict("busy", "busy", f"{name_of(gpu)}: in use, at or above {policy.min_gpu_utilization} %")
    first = int(np.searchsorted(series.at, case.judged_from, side="right"))
    highs = np.flatnonzero(series.high[first:] >= policy.min_gpu_utilization)
    if not len(highs):
        low_since = _low_since(case, float(series.at[0] - series.period[0]))
        return _judge_low(case, gpu, window_of(series, end, policy.time_window), low_since)
    last = first + int(highs[-1])
    high_at = float(series.at[last])
    if high_at > start:
        seen = f"{series.high[last]:.0f} % at {clock_text(high_at)}, {policy.min_gpu_utilization} % is in use"
        return _GpuVerdict("busy", "busy", f"{name_of(gpu)}: {seen}", high_at)
    return _judge_low(case, gpu, window_of(series, end, policy.time_window), high_at)


def _low_since(case: _Case, known_since: float) -> float:
    if case.low_before is not None:
        return case.low_before
    return max(case.judged_from, known_since)


def _judge_low(case: _Case, gpu: GpuUse, window: Window, low_since: float) -> _GpuVerdict:
    """The verdict on a GPU with no high sample in the window: idle if the samples cover enough of it."""
    unknown = _too_little(case, window.start, window.covered_s)
    if unknown is None:
        return _GpuVerdict("idle", "idle", f"{name_of(gpu)}: {_idle_text(case, low_since)}", low_since)
    reason, text = unknown
    newest, period = float(gpu.series.at[-1]), float(gpu.series.period[-1])
    if reason == "coverage" and not is_fresh(newest, period, case.now):
        text += f"; no data since {clock_text(newest)}"
    if reason == "coverage" and gpu.own and bool(np.isnan(window.high).any()):
        reason, text = "no_process_utilization", f"shared, and the driver reports no utilization by process; {text}"
    return _GpuVerdict("unknown", reason, f"{name_of(gpu)}: {text}", low_since)


def _too_little(case: _Case, start: float, covered_s: float) -> tuple[str, str] | None:
    """Why the samples of the window are not enough evidence: reason and text; None: they are."""
    window_s, needed = case.policy.time_window, case.policy.min_coverage
    if case.judged_from > start + _TINY_S:
        return (
            "window_not_full",
            f"its window of {duration_text(window_s)} is full at {clock_text(case.judged_from + window_s)}",
        )
    if covered_s + _TINY_S < needed * window_s:
        share = int(100 * covered_s / window_s)
        return "coverage", f"covered {share} % of {duration_text(window_s)}, {100 * needed:g} % needed"
    return None


def _mean(case: _Case, gpus: Sequence[GpuUse]) -> _GpuVerdict:
    """The verdict on the mean of all GPUs, which is uncovered wherever one of them is."""
    policy, series = case.policy, [gpu.series for gpu in gpus]
    end = end_of(series, case.now)
    steps = mean_steps(series, end, policy.time_window)
    what = f"mean of {len(gpus)} GPUs" if len(gpus) > 1 else name_of(gpus[0])
    high = np.flatnonzero((steps.value >= policy.min_gpu_utilization) & (steps.until > case.judged_from))
    if len(high):
        high_at = float(steps.until[high[-1]])
        if high_at >= end:
            return _GpuVerdict("busy", "busy", f"{what}: in use, at or above {policy.min_gpu_utilization} %")
        seen = f"{steps.value[high[-1]]:.0f} % at {clock_text(high_at)}, {policy.min_gpu_utilization} % is in use"
        return _GpuVerdict("busy", "busy", f"{what}: {seen}", high_at)
    low_since = _low_since(case, max(float(s.at[0] - s.period[0]) for s in series))
    unknown = _too_little(case, end - policy.time_window, steps.covered_s)
    if unknown is None:
        return _GpuVerdict("idle", "idle", f"{what}: {_idle_text(case, low_since)}", low_since)
    reason, text = unknown
    silent = [float(s.at[-1]) for s in series if not is_fresh(float(s.at[-1]), float(s.period[-1]), case.now)]
    if reason == "coverage" and silent:
        text += f"; no data since {clock_text(min(silent))}"
    if reason == "coverage" and any(_own_is_unknown(case, gpu, end) for gpu in gpus):
        reason, text = "no_process_utilization", f"shared, and the driver reports no utilization by process; {text}"
    return _GpuVerdict("unknown", reason, f"{what}: {text}", low_since)


def _own_is_unknown(case: _Case, gpu: GpuUse, end: float) -> bool:
    return gpu.own and bool(np.isnan(window_of(gpu.series, end, case.policy.time_window).high).any())


def _idle_text(case: _Case, low_since: float) -> str:
    return f"below {case.policy.min_gpu_utilization} % since {clock_text(low_since)}"


def name_of(gpu: GpuUse) -> str:
    """A GPU's name in messages."""
    return f"{gpu.uuid} on {gpu.worker}"


def clock_text(at: float) -> str:
    """A time in messages: UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def duration_text(seconds: float) -> str:
    """A duration as in manifests."""
    for unit_s, unit in ((3600, "h"), (60, "m")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g}{unit}"
    return f"{seconds:g}s"
