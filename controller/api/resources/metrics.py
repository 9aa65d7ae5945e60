"""What rows say as Prometheus text, made anew at each scrape, so that what is gone from the rows is gone here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.domain.phases import InstancePhase, WorkerPhase
from controller.store.views.metrics import Figures

__all__ = ["figures_text"]

_BUILD: Final = "gpuward_build"


def figures_text(figures: Figures, *, leading: bool, version: str) -> bytes:
    """The figures in the text format, every phase included, also those that nothing is in."""
    registry = CollectorRegistry()
    registry.register(_Once(_families(figures, leading=leading, version=version)))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(figures: Figures, *, leading: bool, version: str) -> list[Metric]:
    leader = GaugeMetricFamily("gpuward_leader", "1 where this controller leads.")
    leader.add_metric([], float(leading))
    return [
        leader,
        InfoMetricFamily(_BUILD, "What runs here.", {"version": version}),
        _by_phase("gpuward_instances", "Instances by phase.", [p.value for p in InstancePhase], figures.instances),
        _by_phase("gpuward_workers", "Workers by phase.", [p.value for p in WorkerPhase], figures.workers),
        _labelled(
            "gpuward_gpu_memory_claimed_bytes",
            "Memory of a GPU that a deployment's claims hold.",
            ["worker", "gpu_uuid", "deployment"],
            figures.claimed_bytes.items(),
        ),
        _labelled(
            "gpuward_gpu_utilization_ratio",
            "Utilization of a GPU, 0 to 1; left out where it is unknown.",
            ["worker", "gpu_uuid"],
            figures.utilization.items(),
        ),
        _freed(figures.freed_gpu_s),
    ]


def _freed(gpu_s: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(
        "gpuward_policy_gpu_seconds_freed",
        "GPU seconds for which a utilization policy kept idle GPUs free; a share of a GPU counts as that share.",
        labels=["policy"],
    )
    for policy, seconds in gpu_s.items():
        family.add_metric([policy], seconds)
    return family


def _by_phase(name: str, text: str, phases: Sequence[str], counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["phase"])
    for phase in phases:
        family.add_metric([phase], counts.get(phase, 0))
    return family


def _labelled(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
