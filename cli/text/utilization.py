"""What `describe` draws: the utilization of GPUs over the window, and the evidence of a policy's last action."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from cli.text.formatting import percent, printable, span, when
from cli.text.sparkline import Values, chart, sparkline
from cli.transport.client import Api
from cli.transport.paths import Json, parse, path_of
from schemas.api.events import EventView
from schemas.api.history import UtilizationView

_MAX_CHARTS: Final = 8  # if there are more, each has one row
_MAX_LINES: Final = 32
_ACTIONS: Final = ("stop", "scale_down", "notify")
POLICY_REASONS: Final = ",".join([f"policy_{a}" for a in _ACTIONS] + [f"policy_would_{a}" for a in _ACTIONS])


def draw_utilization(api: Api, kind: str, name: str, key: str, now: datetime) -> list[str]:
    """The lines to draw for a deployment or an instance.

    Args:
        api: the client to read with.
        kind: `deployment` or `instance`.
        name: of the object.
        key: the object as events refer to it.
        now: the present time.
    """
    view = parse(UtilizationView, api.get(path_of("utilization"), **{kind: name}))
    found = api.items(path_of("events"), limit=1, object=key, reason=POLICY_REASONS)
    return [*draw_window(view), *(line for raw in found for line in draw_action(raw, now))]


def draw_window(view: UtilizationView) -> list[str]:
    """A graph of the window for each GPU; no lines if there is no GPU."""
    if not view.series:
        return []
    lines = ["", f"Utilization, the last {span(view.window_s)}{_policy_text(view)}:"]
    threshold = view.policy.min_gpu_utilization if view.policy else None
    small = len(view.series) > _MAX_CHARTS
    for series in view.series[:_MAX_LINES]:
        own = f" (only {series.instance})" if series.instance else ""
        lines += _graph(f"{series.gpu} on {series.worker}{own}", series.values, threshold, small=small)
    if len(view.series) > _MAX_LINES:
        lines.append(f"  and {len(view.series) - _MAX_LINES} more GPUs")
    return lines


def draw_action(raw: Json, now: datetime) -> Iterator[str]:
    """The last action of a policy and its evidence."""
    event = parse(EventView, raw)
    evidence = event.evidence
    threshold, window_s = evidence.get("min_gpu_utilization"), evidence.get("window_s")
    yield ""
    yield f"Last action of a policy: {event.reason}, {when(event.at, now)}"
    yield "  " + printable(event.message)
    rule = [f"below {threshold} % for {span(float(window_s))}"] if threshold is not None and window_s else []
    rule += [f"gpus: {evidence['gpus_mode']}"] if "gpus_mode" in evidence else []
    if "requests_seen" in evidence:
        requests = evidence["requests_seen"]
        rule.append("requests unknown" if requests is None else f"requests seen: {requests}")
    if rule:
        yield "  " + printable(", ".join(rule))
    gpus = evidence.get("gpus")
    gpus = gpus if isinstance(gpus, list) else []
    for gpu in gpus[:_MAX_LINES]:
        yield from _draw_evidence(gpu, threshold, small=len(gpus) > _MAX_CHARTS)


def _draw_evidence(gpu: Mapping[str, Any], threshold: Any, *, small: bool) -> list[str]:
    values = [v if isinstance(v, int | float) else None for v in gpu.get("series") or ()]
    where = f"{gpu.get('uuid', '?')} on {gpu.get('worker', '?')}"
    coverage = gpu.get("coverage")
    known = f", {100 * coverage:.0f} % covered" if isinstance(coverage, int | float) else ""
    limit = float(threshold) if isinstance(threshold, int | float) else None
    return _graph(f"{where}: {gpu.get('samples', '?')} samples{known}", values, limit, small=small)


def _graph(title: str, values: Values, threshold: float | None, *, small: bool) -> list[str]:
    highest = max((v for v in values if v is not None), default=None)
    title = printable(f"{title}: highest {percent(highest)}")
    if not any(v is not None for v in values):
        return [f"  {printable(title)}, no data"]
    drawn: Sequence[str] = [f"│{sparkline(values)}│"] if small else chart(values, threshold)
    return [f"  {title}", *("    " + line for line in drawn)]


def _policy_text(view: UtilizationView) -> str:
    watch = view.policy
    if watch is None:
        return "; no policy applies"
    name = f"policy {watch.name}" if watch.name else "the inline policy"
    return f"; {name} acts below {watch.min_gpu_utilization} % for {span(watch.time_window)}"
