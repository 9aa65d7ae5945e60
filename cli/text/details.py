"""An object as text for `describe`: its fields, conditions, claims, graphs of utilization, and latest events. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import yaml

from cli.objects.kinds import EVENTS, GPUS, INSTANCES, why
from cli.printing.table import Table
from cli.text.events import folded
from cli.text.explanations import explain_lines, layout_line, need_lines
from cli.text.formatting import age, duration, gib, hours, name_of_gpu, or_dash, percent, printable, span, when
from cli.text.gpus import detail_lines
from cli.text.page import PLAIN, Exact, Field, Graph, Inner, Page, Part
from cli.text.policies import effective_policy, rule_of, verdict_fields
from cli.text.rollouts import rollout_fields
from cli.text.runtimes import runtime_line
from cli.text.scaling import scaling_fields
from cli.text.sparkline import Values
from cli.text.workers import worker_why
from schemas.api.deployments import DeploymentView, ModelHead
from schemas.api.envelopes import Condition
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.history import UtilizationView
from schemas.api.instances import InstanceView
from schemas.api.policies import PolicyView
from schemas.api.view import View
from schemas.api.workers import WorkerStatus, WorkerView

Fields = Sequence[tuple[str, str]]
_UUID: Final = "UUID"  # of a GPU, which has its name above
_MAX_CHARTS: Final = 8  # if there are more, each has one row
_MAX_LINES: Final = 32


def describe(
    view: View,
    *,
    instances: Sequence[InstanceView],
    gpus: Sequence[GpuView],
    events: Sequence[EventView],
    graphs: Sequence[Part],
    now: datetime,
    heads: Sequence[ModelHead] = (),
    page: Page = PLAIN,
) -> str:
    match view:
        case DeploymentView():
            lines = list(_deployment(view, now, heads))
        case InstanceView():
            lines = list(_instance(view, now))
        case WorkerView():
            lines = list(_worker(view, now))
        case GpuView():
            lines = list(_gpu(view))
        case PolicyView():
            lines = list(_policy(view, now))
        case _:
            raise TypeError(f"cannot describe a {type(view).__name__}")
    if isinstance(view, DeploymentView):
        lines += _instance_summary(instances)
    lines += _section("Instances", _aligned(page.table_of(INSTANCES, instances, now)))
    lines += _section("GPUs", _aligned(page.table_of(GPUS, gpus, now)))
    lines += graphs
    lines += _section("Events (newest last)", _aligned(page.table_of(EVENTS, folded(events, now), now)))
    return "\n".join(page.lines(lines))


def _deployment(view: DeploymentView, now: datetime, heads: Sequence[ModelHead]) -> Iterator[Part]:
    status = view.status
    yield from _fields(
        [
            ("Deployment", view.name),
            ("UID", view.uid),
            ("Phase", status.phase),
            ("Reason", or_dash(status.reason)),
            ("Message", or_dash(status.message)),
            ("Ready", f"{status.ready} of {status.wanted}"),
            ("Generation", f"{view.generation} (observed: {status.observed_generation}, revision {status.revision})"),
            *([("Image digest", status.image_digest)] if status.image_digest else []),
            ("Policy", effective_policy(status.policy)),
            ("Created", when(view.created_at, now)),
            *([("Deleted", when(view.deleted_at, now))] if view.deleted_at else []),
        ]
    )
    yield from _section("Models on the hub", list(_commits(view, heads)))
    spec = view.spec.model_dump(mode="json", exclude_defaults=True)
    spec = {"engine": view.spec.engine, "replicas": 1, **spec}  # shown also where they are the defaults
    dumped = yaml.safe_dump(spec, sort_keys=False).splitlines()
    yield from _section("Spec (without defaults)", [Exact(line) for line in dumped])
    intents = [
        f"{i.source}: at most {i.max_replicas} replicas, for {age(i.created_at, now)}  {i.message or i.reason}".rstrip()
        for i in status.intents
        if i.source != "autoscaler"  # its number has a section of its own
    ]
    yield from _section("Limits on the replicas", intents)
    yield from _section("Replicas by demand", _fields(fields) if (fields := scaling_fields(view, now)) else [])
    yield from _section("Rollout", _fields(fields) if (fields := rollout_fields(view, now)) else [])
    yield from _conditions(status.conditions, now)


def _commits(view: DeploymentView, heads: Sequence[ModelHead]) -> Iterator[Part]:
    """The commit of each model, and its branch's present commit where that differs."""
    moved = {head.model: head.head for head in heads if head.moved}
    for model, commit in sorted(view.status.model_commits.items()):
        note = f"; the hub has {moved[model]} now: gpuward restart {view.name} --pull" if model in moved else ""
        yield f"{model}: {commit}{note}"


def _instance(view: InstanceView, now: datetime) -> Iterator[Part]:
    status = view.status
    yield from _fields(
        [
            ("Instance", view.name),
            ("Deployment", f"{view.spec.deployment} (uid {view.spec.deployment_uid}, revision {view.spec.revision})"),
            ("Engine", status.engine or view.spec.engine),
            *([("Layout", layout_line(status.layout))] if status.layout else []),
            *([("Runtime", view.spec.runtime)] if view.spec.runtime != "process" else []),
            *([("Image digest", status.image_digest)] if status.image_digest else []),
            ("Model", or_dash(view.spec.model)),
            ("Phase", f"{status.phase}, for {age(status.phase_since, now)}"),
            ("Reason", or_dash(status.reason)),
            ("Message", or_dash(why(status))),
            ("Worker", or_dash(", ".join(status.workers) or status.worker)),
            ("Restarts", f"{status.restarts} (epoch {status.epoch})"),
            *([("Not before", when(status.not_before, now))] if status.not_before else []),
            ("Created", when(view.created_at, now)),
        ]
    )
    if status.explain is not None:
        yield from _section("Why it is pending", explain_lines(status.explain))
    if status.need is not None:
        yield from _section("Need", need_lines(status.need))
    if status.utilization is not None:
        yield from _section("Utilization policy", _fields(verdict_fields(status.utilization, now)))
    claims = [
        [c.kind, c.device, c.worker, gib(c.memory_mib), "yes" if c.exclusive else "no", str(c.epoch), str(c.rank)]
        for c in status.claims
    ]
    titles = ["KIND", "DEVICE", "WORKER", "MEMORY", "EXCLUSIVE", "EPOCH", "RANK"]
    yield from _section("Claims", _aligned(Table(titles, claims)))


def _instance_summary(instances: Sequence[InstanceView]) -> Iterator[Part]:
    """The need of the newest instance, and why the first pending one is pending. Other instances are alike."""
    newest = max(instances, key=lambda i: (i.generation, i.created_at), default=None)
    if newest is not None and newest.status.need is not None:
        yield from _section("Need of an instance", need_lines(newest.status.need))
    pending = next((i for i in instances if i.status.phase == "pending" and i.status.explain is not None), None)
    if pending is not None and pending.status.explain is not None:
        yield from _section(f"Why {pending.name} is pending", explain_lines(pending.status.explain))


def _worker(view: WorkerView, now: datetime) -> Iterator[Part]:
    status = view.status
    yield from _fields(
        [
            ("Worker", view.name),
            ("UID", view.uid),
            ("State", f"{status.state} (phase {status.phase})"),
            ("Reason", or_dash(status.reason)),
            *([("Message", words)] if (words := worker_why(view)) else []),
            ("Connected", "yes" if status.connected else "no"),
            ("Last seen", when(status.last_seen, now)),
            ("Host", f"{or_dash(status.hostname)}, {status.os}/{status.arch}"),
            ("Simulated", "yes" if status.simulated else "no"),
            ("Driver", or_dash(status.driver)),
            ("Agent", _agent(status)),
            ("Engines", _engines(status)),
            *((runtime.name.capitalize(), runtime_line(runtime)) for runtime in status.runtimes),
            ("Address", or_dash(status.proxy_address)),
            ("Labels", or_dash(", ".join(f"{k}={v}" for k, v in sorted(status.labels.items())))),
            ("GPUs", str(status.gpus) if status.gpus_known else "unknown"),
            ("GPU memory", f"{gib(status.free_mib)} of {gib(status.memory_mib)} free"),
            ("Host memory", f"{gib(status.free_host_memory_mib)} of {gib(status.host_memory_mib)} free"),
            ("CPUs", f"{status.free_cpu_milli / 1000:g} of {status.cpu_milli / 1000:g} free"),
            ("Instances", str(status.instances)),
            *([("Fenced until", when(status.fence_until, now))] if status.fence_until else []),
            ("Joined", when(view.created_at, now)),
        ]
    )
    yield from _conditions(status.conditions, now)


def _engines(status: WorkerStatus) -> str:
    """The installed engines. Commands and the simulated engine need no program."""
    if status.engines is None:
        return "unknown"
    return ", ".join(f"{engine.name} {engine.version or ''}".rstrip() for engine in status.engines) or "none installed"


def _agent(status: WorkerStatus) -> str:
    protocol = "" if status.protocol is None else f", protocol {status.protocol}"
    return or_dash(status.agent_version + protocol)


def _gpu(view: GpuView) -> Iterator[Part]:
    status = view.status
    yield from _fields(
        [
            ("GPU", name_of_gpu(view)),
            ("UUID", view.name),
            ("Worker", f"{status.worker}, index {status.index}"),
            ("Model", status.model),
            ("Capability", or_dash(status.compute_capability)),
            ("Health", f"{status.health} {status.health_reason}".rstrip()),
            ("Cordoned", "yes" if view.spec.cordoned else "no"),
            ("Present", "yes" if status.present else "no"),
            ("MIG mode", "on" if status.mig_mode else "off"),
            ("Memory", f"{gib(status.free_mib)} of {gib(status.memory_mib)} free, {gib(status.claimed_mib)} claimed"),
            *([("Reserved", gib(status.reserved_mib))] if status.reserved_mib else []),
            *([("Foreign", f"{gib(status.foreign_mib)} in use without a claim")] if status.foreign_mib else []),
            ("In use", gib(status.used_mib)),
            ("Utilization", percent(status.utilization)),
            *([("Slice of", status.parent)] if status.parent else []),
            *(detail_lines(status.details) if status.details is not None else []),
        ]
    )
    claims = [
        [c.instance, c.deployment, gib(c.memory_mib), "yes" if c.exclusive else "no", str(c.epoch)]
        for c in status.claims
    ]
    titles = ["INSTANCE", "DEPLOYMENT", "MEMORY", "EXCLUSIVE", "EPOCH"]
    yield from _section("Claims", _aligned(Table(titles, claims)))


def _policy(view: PolicyView, now: datetime) -> Iterator[Part]:
    spec, status = view.spec, view.status
    watched, verdicts = status.watches, status.verdicts
    hook = f"{spec.webhook.url} (signed with secret {spec.webhook.secret})" if spec.webhook else ""
    yield from _fields(
        [
            ("Policy", view.name),
            ("UID", view.uid),
            ("Generation", str(view.generation)),
            ("Rule", rule_of(spec)),
            ("Default", "yes: for every deployment without its own policy" if spec.default else "no"),
            ("Grace period", duration(spec.grace_period)),
            ("Min coverage", percent(100 * spec.needed_coverage)),
            *((("Warning", spec.coverage_warning),) if spec.coverage_warning else ()),
            ("Requests", "ignored" if spec.ignore_requests else "keep an instance busy"),
            ("Webhook", or_dash(hook)),
            ("Watches", f"{watched.deployments} deployments, {watched.instances} instances"),
            ("Verdicts", f"{verdicts.idle} idle, {verdicts.busy} busy, {verdicts.unknown} unknown"),
            ("Actions", f"{status.actions} taken, {status.would_have_acted} only recorded in dry run"),
            ("Freed", f"{hours(status.gpu_seconds_freed / 3600)} GPU hours"),
            ("Created", when(view.created_at, now)),
        ]
    )


def _conditions(conditions: Sequence[Condition], now: datetime) -> list[Part]:
    rows = [[c.type, c.status, age(c.since, now), or_dash(c.reason), c.message] for c in conditions]
    return _section("Conditions", _aligned(Table(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows)))


def _fields(fields: Fields) -> list[Part]:
    width = max(len(name) for name, _ in fields) + 1
    return [Field(f"{name + ':':<{width}} ", printable(value), exact=name == _UUID) for name, value in fields]


def _section(title: str, parts: Sequence[Part]) -> list[Part]:
    return ["", f"{title}:", *(Inner(part) for part in parts)] if parts else []


def _aligned(table: Table) -> list[Part]:
    return [table] if table.rows else []


def draw_window(view: UtilizationView) -> list[Part]:
    if not view.series:
        return []
    lines: list[Part] = ["", f"Utilization, the last {span(view.window_s)}{_policy_text(view)}:"]
    threshold = view.policy.min_gpu_utilization if view.policy else None
    small = len(view.series) > _MAX_CHARTS
    for series in view.series[:_MAX_LINES]:
        own = f" (only {series.instance})" if series.instance else ""
        lines += _graph(f"{series.gpu} on {series.worker}{own}", series.values, threshold, small=small)
    if len(view.series) > _MAX_LINES:
        lines.append(f"  and {len(view.series) - _MAX_LINES} more GPUs")
    return lines


def draw_action(event: EventView, now: datetime) -> Iterator[Part]:
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


def _draw_evidence(gpu: Mapping[str, Any], threshold: Any, *, small: bool) -> list[Part]:
    values = [v if isinstance(v, int | float) else None for v in gpu.get("series") or ()]
    where = f"{gpu.get('uuid', '?')} on {gpu.get('worker', '?')}"
    coverage = gpu.get("coverage")
    known = f", {100 * coverage:.0f} % covered" if isinstance(coverage, int | float) else ""
    limit = float(threshold) if isinstance(threshold, int | float) else None
    return _graph(f"{where}: {gpu.get('samples', '?')} samples{known}", values, limit, small=small)


def _graph(title: str, values: Values, threshold: float | None, *, small: bool) -> list[Part]:
    highest = max((v for v in values if v is not None), default=None)
    title = printable(f"{title}: highest {percent(highest)}")
    if not any(v is not None for v in values):
        return [f"  {printable(title)}, no data"]
    return [f"  {title}", Graph(values, threshold, small=small)]


def _policy_text(view: UtilizationView) -> str:
    watch = view.policy
    if watch is None:
        return "; no policy applies"
    name = f"policy {watch.name}" if watch.name else "the inline policy"
    return f"; {name} acts below {watch.min_gpu_utilization} % for {span(watch.time_window)}"
