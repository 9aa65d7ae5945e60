"""The evidence of a verdict, as events, webhooks and `describe` show it. Pure. Plain JSON values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from controller.decide.policies.windows import end_of, requests_in, window_of
from controller.domain.policies import EffectivePolicy
from controller.domain.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

_SLOTS: Final = 60
_MAX_GAPS: Final = 16
_MAX_GPUS: Final = 64  # keeps an event small; the others are counted


def evidence_of(policy: EffectivePolicy, uses: Mapping[str, InstanceUse], now: float) -> dict[str, Any]:
    """The evidence of the verdict of `policy` on these instances; durations in seconds, utilization in percent."""
    spec = policy.spec
    gpus = [gpu for use in uses.values() for gpu in use.gpus]
    return {
        "policy": policy.name,
        "policy_generation": policy.generation,
        "action": spec.action,
        "dry_run": spec.dry_run,
        "window_s": spec.time_window,
        "min_gpu_utilization": spec.min_gpu_utilization,
        "gpus_mode": spec.gpus,
        "min_coverage": spec.needed_coverage,
        "grace_period_s": spec.grace_period,
        "instances": list(uses),
        "ignore_requests": spec.ignore_requests,
        **_requests(spec, uses.values(), now),
        "gpus": [_of_gpu(spec, gpu, now) for gpu in gpus[:_MAX_GPUS]],
        "gpus_left_out": max(len(gpus) - _MAX_GPUS, 0),
    }


def _requests(policy: UtilizationPolicy, uses: Iterable[InstanceUse], now: float) -> dict[str, Any]:
    """The number of requests in the window, and when the last one was seen; None: unknown, or none is known."""
    ranks = [series for use in uses for series in use.requests if len(series)]
    windows = [window_of(series, end_of([series], now), policy.time_window) for series in ranks]
    seen = [float(series.at[series.high > 0][-1]) for series in ranks if bool((series.high > 0).any())]
    return {
        "requests_seen": sum(map(requests_in, windows)) if any(len(w.at) for w in windows) else None,
        "last_request_at": time_text(max(seen)) if seen else None,
    }


def _of_gpu(policy: UtilizationPolicy, gpu: GpuUse, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {"uuid": gpu.uuid, "worker": gpu.worker, "own_processes": gpu.own}
    if not len(gpu.series):
        nothing: dict[str, Any] = {
            "highest": None,
            "mean": None,
            "samples": 0,
            "coverage": 0.0,
            "series": [],
            "gaps": [],
        }
        return found | nothing | {"unread_s": float(policy.time_window)}
    window = window_of(gpu.series, end_of([gpu.series], now), policy.time_window)
    slots = min(_SLOTS, max(int(policy.time_window / gpu.series.period[-1]), 1))
    return found | {
        "window_from": time_text(window.start),
        "window_until": time_text(window.end),
        "highest": _shown(float(window.high.max())) if len(window.high) else None,
        "mean": round(float(window.mean.mean()), 1) if len(window.mean) else None,
        "samples": len(window.at),
        "coverage": round(min(window.covered_s / policy.time_window, 1.0), 3),
        "unread_s": round(max(policy.time_window - window.covered_s, 0.0), 1),
        "gaps": [[time_text(begin), time_text(end)] for begin, end in window.gaps()[-_MAX_GAPS:]],
        "series": _drawn(window.since, window.at, window.high, window.start, window.end, slots),
    }


def _shown(percent: float) -> float:
    """Cut to a tenth, not rounded: what is below the minimum must not look like it."""
    return math.floor(10 * percent + 1e-3) / 10


def time_text(at: float) -> str:
    """A time in evidence: ISO 8601 with date and zone."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _drawn(since: Any, at: Any, high: Any, start: float, end: float, slots: int) -> Sequence[float | None]:
    """The highest value in each slot of the window; None where no sample covers any of it."""
    slot_s = (end - start) / slots
    first = np.clip(np.floor((since - start) / slot_s + 1e-6), 0, slots - 1).astype(int)
    last = np.clip(np.ceil((at - start) / slot_s - 1e-6), 1, slots).astype(int)
    drawn: list[float | None] = [None] * slots
    for a, b, value in zip(first, last, high, strict=True):
        for n in range(a, b):
            drawn[n] = max(_shown(float(value)), drawn[n] or 0.0)
    return drawn
