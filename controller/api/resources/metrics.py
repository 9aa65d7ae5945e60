"""Metrics (/metrics): this process's own, and gauges read from the rows at each scrape.

A series ends with its rows, since no series is kept between scrapes. Concurrent scrapes share one reading, and a thread
writes the text, which takes a second with thousands of GPUs. While the database is away, only the process's own metrics
are served, and `gpuward_database_up` is 0.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from controller.api.context import CONTEXT
from controller.api.middlewares import DATABASE_WAITS, DatabaseWaits
from controller.api.resources.fleet_metrics import fleet_families, gauge, gpu_families
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight, shared_context
from controller.domain.phases import InstancePhase, WorkerPhase
from controller.runtime.database import DATABASE_ERRORS, is_database_trouble
from controller.store.core.database import Database
from controller.store.views.metrics import Figures, read_figures

_ESCAPED_TEXT: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_COUNTER: Final = "counter"
_INFO: Final = "info"
_READ_LIMIT_S: Final = 5.0  # scrapers give up after ten
METRICS: Final = web.AppKey("METRICS", SingleFlight[bytes])


def exposition(families: Iterable[Metric]) -> bytes:
    """The families in the form of `prometheus_client.generate_latest`, faster for many series of the same labels.

    Raises:
        ValueError: a family is of another type.
    """
    lines: list[str] = []
    known: dict[tuple[str, ...], str] = {}
    for family in families:
        name, kind = family.name, family.type
        if kind == _COUNTER:
            name += "_total"
        elif kind == _INFO:
            name, kind = f"{name}_info", "gauge"
        elif kind != "gauge":
            raise ValueError(f"{name}: a {kind} cannot be written here")
        lines.append(f"# HELP {name} {family.documentation.translate(_ESCAPED_TEXT)}\n# TYPE {name} {kind}\n")
        for sample in family.samples:
            key = (*sample.labels, *sample.labels.values())
            labels = known.get(key)
            if labels is None:
                labels = known[key] = _label_text(sample.labels)
            lines.append(f"{sample.name}{labels} {floatToGoString(sample.value)}\n")  # type: ignore[no-untyped-call]
    return "".join(lines).encode()


def _label_text(labels: dict[str, str]) -> str:
    written = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in sorted(labels.items()))
    return f"{{{written}}}" if written else ""


async def get(request: web.Request) -> web.Response:
    return web.Response(body=await request.app[METRICS].get(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _scrape(app: web.Application) -> bytes:
    context = app[CONTEXT]
    figures = await _figures(context.database, app[DATABASE_WAITS])
    leading, _ = context.leadership()
    own = generate_latest(context.registry)  # here: its gauges read what the loop changes
    return own + await asyncio.to_thread(figures_text, figures, leading=leading, version=context.version)


async def _figures(database: Database, waits: DatabaseWaits) -> Figures | None:
    """The figures from the rows; None if the database does not answer in time."""
    if waits.away:
        return None
    try:
        async with asyncio.timeout(_READ_LIMIT_S) as limit:
            with waits.held(limit):
                async with database.snapshot() as connection:
                    return await read_figures(connection)
    except DATABASE_ERRORS as error:
        if not is_database_trouble(error):
            raise
        return None


def figures_text(figures: Figures | None, *, leading: bool, version: str) -> bytes:
    """The figures in Prometheus' text format, with phases at zero. `figures`: None while the database is away."""
    return exposition(_families(figures, leading=leading, version=version))


def _families(figures: Figures | None, *, leading: bool, version: str) -> list[Metric]:
    leader = gauge("gpuward_leader", "1 if this controller is the leader, else 0.", (), [((), float(leading))])
    up = gauge(
        "gpuward_database_up",
        "1 if the database answered this scrape; 0: all that is read from it is absent.",
        (),
        [((), float(figures is not None))],
    )
    build = InfoMetricFamily("gpuward_build", "Version of this controller.", {"version": version})
    return [leader, up, build, *(_read_from_rows(figures) if figures is not None else ())]


def _read_from_rows(figures: Figures) -> list[Metric]:
    return [
        gauge(
            "gpuward_instances",
            "Instances by phase.",
            ["phase"],
            (((p.value,), figures.instances.get(p.value, 0)) for p in InstancePhase),
        ),
        gauge(
            "gpuward_workers",
            "Workers by phase.",
            ["phase"],
            (((p.value,), figures.workers.get(p.value, 0)) for p in WorkerPhase),
        ),
        gauge(
            "gpuward_gpu_memory_claimed_bytes",
            "GPU memory claimed by a deployment, per GPU.",
            ["worker", "gpu_uuid", "deployment"],
            figures.claimed_bytes.items(),
        ),
        gauge(
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
    return [
        gauge(
            "gpuward_autoscaler_wanted_replicas",
            "Replicas that the autoscaler wants.",
            ["deployment", "dry_run"],
            figures.wanted.items(),
        ),
        gauge(
            "gpuward_autoscaler_withheld_replicas",
            "Replicas that the autoscaler wants and that a limit of a user or a policy keeps away.",
            ["deployment"],
            (((name,), number) for name, number in figures.withheld.items()),
        ),
        gauge(
            "gpuward_autoscaler_silent_gateways",
            "Gateways that do not report, so that no replica is removed.",
            (),
            [((), figures.silent_gateways)],
        ),
    ]


def _rollouts(figures: Figures) -> list[Metric]:
    """A series for each rollout that is not complete."""
    labels, rollouts = ("deployment", "revision"), figures.rollouts.items()
    return [
        gauge(
            "gpuward_rollout_available_replicas",
            "Replicas of the new revision that run for `ready_for`; absent once its rollout is complete.",
            labels,
            ((key, rollout.available) for key, rollout in rollouts),
        ),
        gauge(
            "gpuward_rollout_request_ratio",
            "Share of the requests for the new revision, 0 to 1; absent where none is set.",
            labels,
            ((key, rollout.weight) for key, rollout in rollouts if rollout.weight is not None),
        ),
        gauge(
            "gpuward_rollout_stands",
            "1 if a rollout is paused, has failed or was aborted, else 0; absent once it is complete.",
            labels,
            ((key, float(rollout.halted)) for key, rollout in rollouts),
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


metrics_context = shared_context(METRICS, lambda app: partial(_scrape, app))
ROUTES: Final = (
    Route("GET", "/metrics", get, Access.READ, "Prometheus metrics", "health", media="text/plain", from_memory=True),
)  # fmt: skip
