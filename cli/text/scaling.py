"""The scaling of a deployment as text. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from cli.text.formatting import DASH, age, duration, when
from cli.text.sparkline import sparkline

if TYPE_CHECKING:  # slow to import
    from schemas.api.deployments import DeploymentView, ScalingStatus

Fields = Sequence[tuple[str, str]]
_SOURCES: Final = {"policy": "its utilization policy", "user": "its user"}


def scale_cell(view: "DeploymentView") -> str:
    """The wanted number within its bounds; `-` where the number of replicas is fixed."""
    low, high = _bounds(view.spec.replicas)
    if low == high:
        return DASH
    scaling = view.status.scaling
    wanted = "?" if scaling is None else str(scaling.number)
    return f"{wanted} of {low}-{high}" + (" (dry run)" if scaling is not None and scaling.dry_run else "")


def _bounds(replicas: Any) -> tuple[int, int]:
    if isinstance(replicas, int):
        return replicas, replicas
    low_high = replicas if isinstance(replicas, dict) else dict(replicas)
    return low_high["min"], low_high["max"]


def notes(views: Iterable["DeploymentView"]) -> list[str]:
    """A line for each deployment that sleeps, is stopped, or is capped by a limit."""
    lines: list[str] = []
    for view in views:
        scaling = view.status.scaling
        if view.status.phase == "asleep":
            lines.append(f"{view.name}: asleep; a request wakes it")
        elif view.status.phase == "stopped":
            lines.append(f"{view.name}: {_stopped_text(view)}")
        elif scaling is not None and (cap := cap_text(view, scaling)):
            lines.append(f"{view.name}: {scaling.number} replicas wanted by demand, {cap}")
    return lines


def _stopped_text(view: "DeploymentView") -> str:
    limits = [intent for intent in view.status.intents if intent.max_replicas == 0 and intent.source != "autoscaler"]
    if not limits:
        return f"stopped, since its replicas are 0; gpuward scale {view.name} 1 starts it"
    by = " and ".join(_SOURCES[intent.source] for intent in limits)
    return f"stopped by {by}; gpuward start {view.name} starts it"


def cap_text(view: "DeploymentView", scaling: "ScalingStatus") -> str:
    """The limit below the number by demand; empty without such a limit."""
    cap = next((i for i in view.status.intents if i.source == scaling.capped_by), None)
    if cap is None:
        return ""
    return (
        f"capped at {cap.max_replicas} by {_SOURCES.get(cap.source, cap.source)}; gpuward start {view.name} lifts that"
    )


def scaling_fields(view: "DeploymentView", now: datetime) -> Fields:
    """Titles and values: the number, its reason, and the demand behind it."""
    scaling = view.status.scaling
    if scaling is None:
        return ()
    evidence = scaling.evidence
    dry_run = ", dry run: only shown" if scaling.dry_run else ""
    fields = [
        (
            "Wanted",
            f"{scaling.number}, between {scaling.min} and {scaling.max}, for {age(scaling.since, now)}{dry_run}",
        ),
        ("Reason", f"{scaling.reason}: {scaling.message}"),
        ("Demand", _demand(evidence)),
        ("Replicas", f"{evidence.get('running', 0)} running, {evidence.get('starting', 0)} starting"),
    ]
    if engines := evidence.get("engines"):
        fields.append(("Engines", ", ".join(_engine(engine) for engine in engines)))
    if cap := cap_text(view, scaling):
        fields.append(("Limit", cap))
    if scaling.awake_until is not None:
        fields.append(("Awake until", when(scaling.awake_until, now)))
    if graph := _graph(evidence):
        fields.append(("Last minutes", graph))
    fields.append(("Seen", f"{age(scaling.at, now)} ago"))
    return fields


def _demand(evidence: dict[str, Any]) -> str:
    mean, window_s = evidence.get("demand_mean"), float(evidence.get("window_s", 0))
    known = "unknown" if mean is None else f"{mean:g}"
    return (
        f"{known} requests in flight and waiting as the mean of {duration(window_s)}, "
        f"{evidence.get('waiting', 0)} waiting now, target {float(evidence.get('target', 0)):g} per replica"
    )


def _engine(engine: dict[str, Any]) -> str:
    queued, kv_use = engine.get("queued"), engine.get("kv_use")
    cache = "cache unknown" if kv_use is None else f"cache {100 * float(kv_use):.0f} %"
    return f"{'queue unknown' if queued is None else f'{queued} queued'}, {cache}"


def _graph(evidence: dict[str, Any]) -> str:
    points = [None if value is None else float(value) for value in evidence.get("graph", ())]
    most = max((value for value in points if value is not None), default=0.0)
    if not most:
        return ""
    drawn = sparkline([None if value is None else 100 * value / most for value in points])
    return f"│{drawn}│ at most {most:g}, {duration(len(points) * float(evidence.get('graph_step_s', 0)))}"
