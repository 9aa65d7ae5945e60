"""What agents read of GPUs, as metrics in base units. What is unknown is absent."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from controller.store.views.metrics import GpuFigures

_HERTZ_PER_MHZ: Final = 1e6
_LABELS: Final = ["worker", "gpu_uuid"]
# Name, text, field of the details, factor to base units.
_GAUGES: Final = (
    ("gpuward_gpu_power_watts", "Power that a GPU draws.", "power_w", 1.0),
    ("gpuward_gpu_temperature_celsius", "Temperature of a GPU.", "temperature_c", 1.0),
    ("gpuward_gpu_sm_clock_hertz", "Clock of a GPU's multiprocessors.", "sm_clock_mhz", _HERTZ_PER_MHZ),
    ("gpuward_gpu_memory_clock_hertz", "Clock of a GPU's memory.", "memory_clock_mhz", _HERTZ_PER_MHZ),
    ("gpuward_gpu_nvlinks_up", "NVLinks of a GPU that are up.", "nvlinks", 1.0),
)
_COUNTERS: Final = (
    ("gpuward_gpu_energy_joules", "Energy that a GPU has used since its driver was loaded.", "energy_j"),
    (
        "gpuward_gpu_ecc_corrected_errors",
        "Corrected memory errors of a GPU since its driver was loaded.",
        "ecc_corrected",
    ),
    (
        "gpuward_gpu_ecc_uncorrected_errors",
        "Memory errors of a GPU that were not corrected, since its driver was loaded.",
        "ecc_uncorrected",
    ),
)


def gpu_families(figures: Mapping[tuple[str, str], GpuFigures]) -> list[Metric]:
    """The families, by worker and UUID."""
    families: list[Metric] = [_health(figures)]
    for name, text, field, factor in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for key, value in _values(figures, field):
            gauge.add_metric(key, value * factor)
        families.append(gauge)
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        for key, value in _values(figures, field):
            counter.add_metric(key, value)
        families.append(counter)
    xids = CounterMetricFamily(
        "gpuward_gpu_xids", "Error events (Xids) of a GPU since its agent started, by code.", labels=[*_LABELS, "xid"]
    )
    for (worker, uuid), gpu in figures.items():
        for code, number in gpu.details.get("xids", {}).items():
            xids.add_metric([worker, uuid, code], number)
    return [*families, xids]


def _health(figures: Mapping[tuple[str, str], GpuFigures]) -> Metric:
    family = GaugeMetricFamily(
        "gpuward_gpu_healthy",
        "1 if a GPU is healthy, 0 if it is unhealthy or missing; absent if unknown.",
        labels=_LABELS,
    )
    for key, gpu in figures.items():
        if gpu.healthy is not None:
            family.add_metric(key, float(gpu.healthy))
    return family


def _values(figures: Mapping[tuple[str, str], GpuFigures], field: str) -> Iterable[tuple[list[str], Any]]:
    return ((list(key), value) for key, gpu in figures.items() if (value := gpu.details.get(field)) is not None)
