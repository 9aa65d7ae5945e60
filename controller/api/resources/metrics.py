"""Metrics (/metrics): this process's own, and gauges read from the rows at each scrape.

A series ends with its rows, since nothing is kept between scrapes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.api.context import CONTEXT
from controller.api.route import Access, Route
from controller.domain.phases import InstancePhase, WorkerPhase
from controller.store.views.metrics import Figures, read_figures


async def get(request: web.Request) -> web.Response:
    """`GET /metrics`."""
    context = request.app[CONTEXT]
    async with context.database.snapshot() as connection:
        figures = await read_figures(connection)
    leading, _ = context.leadership()
    text = generate_latest(context.registry) + figures_text(figures, leading=leading, version=context.version)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


def figures_text(figures: Figures, *, leading: bool, version: str) -> bytes:
    """The figures in Prometheus' text format. Every phase is listed, also at zero."""
    registry = CollectorRegistry()
    registry.register(_Once(_families(figures, leading=leading, version=version)))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(figures: Figures, *, leading: bool, version: str) -> list[Metric]:
    leader = GaugeMetricFamily("gpuward_leader", "1 if this controller is the leader, else 0.")
    leader.add_metric([], float(leading))
    return [
        leader,
        InfoMetricFamily("gpuward_build", "Version of this controller.", {"version": version}),
        _by_phase("gpuward_instances", "Instances by phase.", [p.value for p in InstancePhase], figures.instances),
        _by_phase("gpuward_workers", "Workers by phase.", [p.value for p in WorkerPhase], figures.workers),
        _labelled(
            "gpuward_gpu_memory_claimed_bytes",
            "GPU memory claimed by a deployment, per GPU.",
            ["worker", "gpu_uuid", "deployment"],
            figures.claimed_bytes.items(),
        ),
        _labelled(
            "gpuward_gpu_utilization_ratio",
            "GPU utilization, 0 to 1; absent while unknown.",
            ["worker", "gpu_uuid"],
            figures.utilization.items(),
        ),
        _freed(figures.freed_gpu_s),
    ]


def _freed(gpu_s: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(
        "gpuward_policy_gpu_seconds_freed",
        "GPU seconds freed by a utilization policy; a share of a GPU counts as that share.",
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


ROUTES: Final = (Route("GET", "/metrics", get, Access.READ, "Prometheus metrics", "health", media="text/plain"),)
