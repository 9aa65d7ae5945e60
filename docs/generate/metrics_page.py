"""docs/metrics.md: what `/metrics` exports, from the two places that make metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import to_builtins
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from controller.api.resources.metrics import figures_text
from controller.runtime.metrics import HubMetrics, Metrics, ServingMetrics
from controller.store.access.key_expiry import KeyExpiry
from controller.store.views.metrics import (
    Amount,
    Capacity,
    Figures,
    FleetFigures,
    GpuFigures,
    Idle,
    Replicas,
    RolloutFigures,
)
from gateway.queueing.queue_metrics import QueueMetrics
from gateway.reporting.metrics import GatewayMetrics
from gateway.reporting.request_metrics import RequestMetrics
from schemas.process_metrics import ProcessMetrics
from schemas.wire import GpuDetails
from tables import code, sentence, table, words

HEAD: Final = """\
# Metrics

<!-- Written by `make reference` from the modules `metrics.py` of controller and gateway. -->

A gateway exports its own metrics and those of the controller at `/metrics`, in Prometheus's text format. A key of the
role `viewer` is enough:

<!-- not a manifest -->
```yaml
scrape_configs:
  - job_name: gpuward
    authorization: {credentials_file: /etc/prometheus/gpuward.key}
    static_configs: [{targets: ["gpuward.example:8420"]}]
```

Units are base units: seconds, bytes, and ratios from 0 to 1. A histogram has `_bucket`, `_sum` and `_count`.

While the database is away, a controller serves its own counters, `gpuward_leader`, and 0 for `gpuward_database_up`.
What it reads from the database is absent then, not zero: instances, workers, GPUs, and what policies freed.

`gpuward_controller_*` are of the controller that answers, `gpuward_gateway_*` of the gateway, and `gpuward_agent_*` of
the agents that are connected to that controller. With several controllers, scrape each: what is read from the database
is the same on all.

Of GPUs a claimed one is `claimed` in any state. Of the others one is `free` if an instance could be placed on it, and
`unusable` if not: it is unhealthy or missing, in MIG mode, cordoned, or its worker is. Idle GPU hours over a day are
`avg_over_time(gpuward_idle_gpus[1d]) * 24`. [Monitoring](monitoring.md) says what a scrape costs.

"""
# Values of labels that a fixed set has; other labels hold names.
LABELS: Final[Mapping[str, str]] = {
    "bound": "`key` or `all`",
    "code": "code of the error",
    "deployment": "name of the deployment; empty where requests name none that exists",
    "dry_run": "`true` where the number is only shown",
    "endpoint": "path of the request; empty for unknown paths",
    "gpu_uuid": "UUID of the GPU",
    "invariant": "name of the invariant, as `gpuward audit` prints it",
    "kind": "reconciler whose keys these are; of tokens: `prompt`, `cached` or `completion`; of backlogs: `commands`, "
    "`webhooks`, `relocations`, `wakes` or `deletions`",
    "model": "name of the GPU's model",
    "outcome": "how it ended, see below",
    "phase": "phase, see [States](states.md); of starts also `fetching`, `pulling` and `total`",
    "policy": "name of the policy; `(inline)` for inline policies",
    "purpose": "what is computed",
    "reason": "what was done at a bound or deadline, see [Operations](operations.md#connections-and-open-files); of "
    "retries: `not_connected`, `agent_refused` or `engine_busy`; of waiting instances a "
    "[reason code](reason-codes.md), or the phase where there is none",
    "role": "role of the keys",
    "revision": "number of the revision; empty where no replica got the request",
    "state": "how far the request was: `receiving`, `admitted`, `waiting`, `connecting`, `sent` or `answering`; of "
    "GPUs: `claimed`, `free` or `unusable`; of keys: `lasting`, `expiring` or `expired`",
    "status": "`2xx`, `3xx`, `4xx`, `5xx`, or `499` where the client left before the end",
    "verdict": "`idle`, `busy` or `unknown`",
    "version": "version of Gpuward",
    "worker": "name of the worker",
    "xid": "code of the event, see [GPUs](gpus.md)",
}
OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpuward_reconcile_seconds": ("done", "again", "retry", "terminal", "stale"),
    "gpuward_computations_total": ("started", "completed", "cancelled", "failed"),
    "gpuward_placements_total": ("placed", "unplaced", "lost"),
}
_UNITS: Final = (("_seconds_freed", "GPU seconds"), ("_seconds", "seconds"), ("_bytes", "bytes"), ("_ratio", "ratio"))


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """One metric as a scrape names it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def metrics() -> list[MetricFacts]:
    """Every metric that the controller exports, by name."""
    return sorted([*_counted(), *_read_from_rows()], key=lambda metric: metric.name)


def _counted() -> Iterator[MetricFacts]:
    registry = _Listing()
    Metrics(registry)
    serving = ServingMetrics(registry)
    serving.certificate(lambda: 0.0, str)
    serving.authority(0.0)
    HubMetrics(registry)
    GatewayMetrics(registry).certificate(lambda: 0.0, str)
    QueueMetrics(registry)
    RequestMetrics(registry)
    registry.register(ProcessMetrics("controller", dict, disk=True))
    registry.register(ProcessMetrics("gateway", dict))
    registry.register(ProcessMetrics("agent", dict, labels=("worker",), disk=True))
    for collector in registry.collectors:
        for family in collector.describe():
            suffix = "_total" if family.type == "counter" else ""
            # What has labels has no sample yet, so their names are taken from what makes the samples.
            named = collector if hasattr(collector, "_labelnames") else family
            yield MetricFacts(family.name + suffix, family.type, tuple(named._labelnames), family.documentation)  # noqa: SLF001


class _Listing(CollectorRegistry):
    """A registry that remembers what was registered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Any] = []

    def register(self, collector: Any) -> None:
        self.collectors.append(collector)
        super().register(collector)


def _read_from_rows() -> Iterator[MetricFacts]:
    figures = Figures({}, {}, {("w", "g", "d"): 1}, {("w", "g"): 1.0}, {"p": 1.0}, {("d", "false"): 2}, {"d": 1}, 0)
    details = {**to_builtins(GpuDetails(power_w=1)), "xids": {"13": 1}}
    details |= {name: 1 for name, value in details.items() if value is None}
    figures = replace(figures, gpus={("w", "g"): GpuFigures(healthy=True, details=details)})
    figures = replace(figures, fleet=_fleet())
    figures = replace(figures, rollouts={("d", "2"): RolloutFigures(1, 0.1, halted=False)})
    text = figures_text(figures, leading=True, version="0").decode()
    for family in text_string_to_metric_families(text):
        sample = family.samples[0]
        kind = "info" if family.name.endswith("_info") else family.type
        yield MetricFacts(sample.name, kind, tuple(sample.labels), family.documentation)


def _fleet() -> FleetFigures:
    one, states = Amount(1, 1.0), {"claimed": 1, "free": 1, "unusable": 1}
    return FleetFigures(
        capacity={"m": Capacity(states, states)},
        waiting={"r": one},
        idle={"d": Idle(1.0, 1.0)},
        replicas={"d": Replicas(1, 1)},
        backlog={"commands": one},
        violations={"i": 0},
        audit_age_s=1.0,
        history_age_s=1.0,
        keys=KeyExpiry(next_s={"admin": 1.0}),
    )


def page() -> str:
    """The whole page."""
    found = metrics()
    rows = [
        (code(m.name), m.kind, _unit(m.name), ", ".join(code(label) for label in m.labels), sentence(m.text))
        for m in found
    ]
    labels = sorted({label for metric in found for label in metric.labels})
    lines = [
        HEAD + "\n".join(table(("metric", "type", "unit", "labels", "meaning"), rows)),
        "## Labels",
        "",
        "No label holds a key or a request.",
        "",
        *table(("label", "holds"), [(code(label), LABELS[label]) for label in labels]),
        "## Outcomes",
        "",
        *table(("metric", "`outcome` is"), [(code(name), words(values)) for name, values in OUTCOMES.items()]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _unit(name: str) -> str:
    bare = name.removesuffix("_total")
    return next((unit for suffix, unit in _UNITS if bare.endswith(suffix)), "")
