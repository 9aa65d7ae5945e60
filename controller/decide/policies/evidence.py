"""The evidence of a verdict, as events, webhooks and `describe` show it. Pure. Plain JSON values."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from controller.decide.policies.windows import end_of, window_of
from controller.domain.policies import EffectivePolicy
from controller.domain.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

_SLOTS: Final = 60
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
        "min_coverage": spec.min_coverage,
        "grace_period_s": spec.grace_period,
        "instances": list(uses),
        "requests_seen": _requests_seen(uses.values()),
        "gpus": [_of_gpu(spec, gpu, now) for gpu in gpus[:_MAX_GPUS]],
        "gpus_left_out": max(len(gpus) - _MAX_GPUS, 0),
    }


def _requests_seen(uses: Any) -> int | None:
    """The most requests that any rank had at once in its newest period; None: unknown."""
    known = [r.requests for use in uses for r in use.requests if r.requests is not None]
    return max(known, default=None)


def _of_gpu(policy: UtilizationPolicy, gpu: GpuUse, now: float) -> dict[str, Any]:
    found: dict[str, Any] = {"uuid": gpu.uuid, "worker": gpu.worker, "own_processes": gpu.own}
    if not len(gpu.series):
        return found | {"highest": None, "mean": None, "samples": 0, "coverage": 0.0, "series": []}
    window = window_of(gpu.series, end_of([gpu.series], now), policy.time_window)
    known = ~np.isnan(window.high)
    slots = min(_SLOTS, max(int(policy.time_window / gpu.series.period[-1]), 1))
    return found | {
        "highest": round(float(window.high[known].max()), 1) if known.any() else None,
        "mean": round(float(window.mean[known].mean()), 1) if known.any() else None,
        "samples": int(known.sum()),
        "coverage": round(min(window.covered_s / policy.time_window, 1.0), 3),
        "series": _drawn(window.since[known], window.at[known], window.high[known], window.start, window.end, slots),
    }


def _drawn(since: Any, at: Any, high: Any, start: float, end: float, slots: int) -> Sequence[float | None]:
    """The highest value in each slot of the window; None where no sample covers any of it."""
    slot_s = (end - start) / slots
    first = np.clip(np.floor((since - start) / slot_s + 1e-6), 0, slots - 1).astype(int)
    last = np.clip(np.ceil((at - start) / slot_s - 1e-6), 1, slots).astype(int)
    drawn: list[float | None] = [None] * slots
    for a, b, value in zip(first, last, high, strict=True):
        for n in range(a, b):
            drawn[n] = max(round(float(value), 1), drawn[n] or 0.0)
    return drawn
