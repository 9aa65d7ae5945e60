"""Metrics (/metrics): this process's own, and gauges read from the rows at each scrape.

A series ends with its rows, since nothing is kept between scrapes. Those who scrape at once share one reading, and the
text is written beside the event loop: with thousands of GPUs it takes a second. While the database is away only the
process's own metrics are served, and `gpuward_database_up` is 0.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from controller.api.context import CONTEXT
from controller.api.middlewares import DATABASE_WAITS, DatabaseWaits
from controller.api.resources.exposition import exposition
from controller.api.resources.fleet_metrics import fleet_families
from controller.api.resources.gpu_metrics import gpu_families
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight
from controller.domain.phases import InstancePhase, WorkerPhase
from controller.runtime.database import is_database_trouble
from controller.store.core.database import Database
from controller.store.views.metrics import Figures, read_figures

_READ_LIMIT_S: Final = 5.0  # scrapers give up after ten
METRICS: Final = web.AppKey("METRICS", SingleFlight[bytes])


async def metrics_context(app: web.Application) -> AsyncIterator[None]:
    """Holds what answers all that scrape at once with one reading, and ends it with the app."""
    shared = app[METRICS] = SingleFlight(partial(_scrape, app))
    try:
        yield
    finally:
        await shared.close()


async def get(request: web.Request) -> web.Response:
    """`GET /metrics`."""
    return web.Response(body=await request.app[METRICS].get(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _scrape(app: web.Application) -> bytes:
    context = app[CONTEXT]
    figures = await _figures(context.database, app[DATABASE_WAITS])
    leading, _ = context.leadership()
    own = generate_latest(context.registry)  # here: its gauges read what the loop changes
    return own + await asyncio.to_thread(figures_text, figures, leading=leading, version=context.version)


async def _figures(database: Database, waits: DatabaseWaits) -> Figures | None:
    """What the rows say; None: the database does not answer in time."""
    if waits.away:
        return None
    try:
        async with asyncio.timeout(_READ_LIMIT_S) as limit:
            with waits.held(limit):
                async with database.snapshot() as connection:
                    return await read_figures(connection)
    except Exception as error:
        if not is_database_trouble(error):
            raise
        return None


def figures_text(figures: Figures | None, *, leading: bool, version: str) -> bytes:
    """The figures in Prometheus' text format. Every phase is listed, also at zero. None: the database is away."""
    return exposition(_families(figures, leading=leading, version=version))


def _families(figures: Figures | None, *, leading: bool, version: str) -> list[Metric]:
    leader = GaugeMetricFamily("gpuward_leader", "1 if this controller is the leader, else 0.")
    leader.add_metric([], float(leading))
    up = GaugeMetricFamily(
        "gpuward_database_up", "1 if the database answered this scrape; 0: all that is read from it is absent."
    )
    up.add_metric([], float(figures is not None))
    build = InfoMetricFamily("gpuward_build", "Version of this controller.", {"version": version})
    return [leader, up, build, *(_read_from_rows(figures) if figures is not None else ())]


def _read_from_rows(figures: Figures) -> list[Metric]:
    return [
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
        *gpu_families(figures.gpus),
        *fleet_families(figures.fleet),
        _freed(figures.freed_gpu_s),
        *_autoscaler(figures),
        *_rollouts(figures),
    ]


def _autoscaler(figures: Figures) -> list[Metric]:
    silent = GaugeMetricFamily(
        "gpuward_autoscaler_silent_gateways", "Gateways that do not report, so that no replica is removed."
    )
    silent.add_metric([], figures.silent_gateways)
    return [
        _labelled(
            "gpuward_autoscaler_wanted_replicas",
            "Replicas that the autoscaler wants.",
            ["deployment", "dry_run"],
            figures.wanted.items(),
        ),
        _labelled(
            "gpuward_autoscaler_withheld_replicas",
            "Replicas that the autoscaler wants and that a limit of a user or a policy keeps away.",
            ["deployment"],
            (((name,), number) for name, number in figures.withheld.items()),
        ),
        silent,
    ]


def _rollouts(figures: Figures) -> list[Metric]:
    """A series for each rollout that is not complete."""
    labels, found = ("deployment", "revision"), figures.rollouts.items()
    return [
        _labelled(
            "gpuward_rollout_available_replicas",
            "Replicas of the new revision that run for `ready_for`; absent once its rollout is complete.",
            labels,
            ((key, one.available) for key, one in found),
        ),
        _labelled(
            "gpuward_rollout_request_ratio",
            "Share of the requests for the new revision, 0 to 1; absent where none is set.",
            labels,
            ((key, one.weight) for key, one in found if one.weight is not None),
        ),
        _labelled(
            "gpuward_rollout_stands",
            "1 if a rollout is paused, has failed or was aborted, else 0; absent once it is complete.",
            labels,
            ((key, float(one.stands)) for key, one in found),
        ),
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


ROUTES: Final = (
    Route("GET", "/metrics", get, Access.READ, "Prometheus metrics", "health", media="text/plain", from_memory=True),
)
