"""Simulated telemetry for verdicts: samples by age, as the cases write them. `NOW` is 12:30:00 UTC."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from controller.domain.telemetry.series import Series
from controller.domain.telemetry.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC).timestamp()
PERIOD_S = 10.0


def policy(window: Any = 600, minimum: int = 80, **fields: Any) -> UtilizationPolicy:
    return UtilizationPolicy.model_validate({"min_gpu_utilization": minimum, "time_window": window, **fields})


def series(
    samples: Mapping[float, float] | Iterable[tuple[float, float]],
    *,
    period_s: float = PERIOD_S,
    read_s: float | None = None,
) -> Series:
    """Samples as age in seconds → highest utilization; NaN: the driver reported no figure."""
    made = Series()
    for age, value in samples.items() if isinstance(samples, Mapping) else samples:
        made.put(NOW - age, period_s, value, value, read_s)
    return made


def requests(seen: Mapping[float, float] | None = None, *, to: float = 700, newest: float = 0) -> Series:
    """The requests of one rank: age → how many were answered in that period; none in all other periods."""
    return series(steady(0, to=to, newest=newest) | dict(seen or {}))


def steady(
    value: float, *, every: float = PERIOD_S, to: float = 600, newest: float = 0, **others: float
) -> dict[float, float]:
    """A sample every `every` seconds, from age `newest` back to at least `to`; `at_300=80` sets the one of age 300."""
    samples, age = {}, float(newest)
    while age < to + every:
        samples[age] = value
        age += every
    return samples | {float(k.removeprefix("at_")): v for k, v in others.items()}


def gpu(
    uuid: str,
    samples: Any,
    *,
    worker: str = "gpu-1",
    own: bool = False,
    period_s: float = PERIOD_S,
    read_s: float | None = None,
) -> GpuUse:
    made = samples if isinstance(samples, Series) else series(samples, period_s=period_s, read_s=read_s)
    return GpuUse(uuid, worker, made, own)


_NO_REQUESTS = series(steady(0, to=3 * 3600))


def use(*gpus: GpuUse, ran_for_s: float | None = 7200, phase: str = "running", **fields: Any) -> InstanceUse:
    since = None if ran_for_s is None else NOW - ran_for_s
    ranks = {g.worker: None for g in gpus}
    if "requests" not in fields:
        fields["requests"] = (_NO_REQUESTS,) * len(ranks)
    return InstanceUse(phase, since, gpus, **fields)
