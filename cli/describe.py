"""All facts of one object as text: its fields, conditions, claims, and what lately happened to it. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import yaml

from cli.explained import explain_lines, layout_line, need_lines
from cli.figures import age, clock, gib, hours, or_nothing, percent, printable, when
from cli.idleness import applying, judged, rule_of
from cli.kinds import EVENTS, GPUS, INSTANCES, outlook, table_of
from schemas.api.deployments import DeploymentView
from schemas.api.envelopes import Condition
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.instances import InstanceView
from schemas.api.policies import PolicyView
from schemas.api.workers import WorkerView
from schemas.base import View

Fields = Sequence[tuple[str, str]]
_INDENT: Final = "  "


def describe(
    view: View,
    *,
    instances: Sequence[InstanceView],
    gpus: Sequence[GpuView],
    events: Sequence[EventView],
    drawn: Sequence[str],
    now: datetime,
) -> str:
    """Everything about `view`, followed by its instances, GPUs, graphs and events, where there are any."""
    match view:
        case DeploymentView():
            lines = list(_deployment(view, now))
        case InstanceView():
            lines = list(_instance(view, now))
        case WorkerView():
            lines = list(_worker(view, now))
        case GpuView():
            lines = list(_gpu(view))
        case PolicyView():
            lines = list(_policy(view, now))
        case _:
            raise TypeError(f"no description of a {type(view).__name__}")
    if isinstance(view, DeploymentView):
        lines += _of_one(instances)
    lines += _section("Instances", _aligned(*table_of(INSTANCES, instances, now)))
    lines += _section("GPUs", _aligned(*table_of(GPUS, gpus, now)))
    lines += drawn
    lines += _section("Events (newest last)", _aligned(*table_of(EVENTS, events, now)))
    return "\n".join(lines)


def _deployment(view: DeploymentView, now: datetime) -> Iterator[str]:
    status = view.status
    yield from _fields(
        [
            ("Deployment", view.name),
            ("UID", view.uid),
            ("Phase", status.phase),
            ("Reason", or_nothing(status.reason)),
            ("Message", or_nothing(status.message)),
            ("Ready", f"{status.ready} of {status.wanted}"),
            ("Generation", f"{view.generation} (acted on: {status.observed_generation}, revision {status.revision})"),
            ("Policy", applying(status.policy)),
            ("Created", when(view.created_at, now)),
            *([("Deleted", when(view.deleted_at, now))] if view.deleted_at else []),
        ]
    )
    spec = view.spec.model_dump(mode="json", exclude_defaults=True)
    spec = {"engine": view.spec.engine, "replicas": view.spec.replicas, **spec}
    yield from _section("Spec (defaults left out)", yaml.safe_dump(spec, sort_keys=False).splitlines())
    intents = [
        f"{i.source}: at most {i.max_replicas} replicas, for {age(i.created_at, now)}  {i.message or i.reason}".rstrip()
        for i in status.intents
    ]
    yield from _section("Limits on the replicas", intents)
    yield from _conditions(status.conditions, now)


def _instance(view: InstanceView, now: datetime) -> Iterator[str]:
    status = view.status
    yield from _fields(
        [
            ("Instance", view.name),
            ("Deployment", f"{view.spec.deployment} (uid {view.spec.deployment_uid}, revision {view.spec.revision})"),
            ("Engine", status.engine or view.spec.engine),
            *([("Layout", layout_line(status.layout))] if status.layout else []),
            ("Model", or_nothing(view.spec.model)),
            ("Phase", f"{status.phase}, for {age(status.phase_since, now)}"),
            ("Reason", or_nothing(status.reason)),
            ("Message", or_nothing(outlook(status))),
            ("Worker", or_nothing(", ".join(status.workers) or status.worker)),
            ("Restarts", f"{status.restarts} (epoch {status.epoch})"),
            *([("Not before", when(status.not_before, now))] if status.not_before else []),
            ("Created", when(view.created_at, now)),
        ]
    )
    if status.explain is not None:
        yield from _section("Why it waits", explain_lines(status.explain))
    if status.need is not None:
        yield from _section("What it needs", need_lines(status.need))
    if status.utilization is not None:
        yield from _section("Utilization policy", _fields(judged(status.utilization, now)))
    claims = [
        [c.kind, c.device, c.worker, gib(c.memory_mib), "yes" if c.exclusive else "no", str(c.epoch), str(c.rank)]
        for c in status.claims
    ]
    titles = ["KIND", "DEVICE", "WORKER", "MEMORY", "EXCLUSIVE", "EPOCH", "RANK"]
    yield from _section("Claims", _aligned(titles, claims))


def _of_one(instances: Sequence[InstanceView]) -> Iterator[str]:
    """What its newest instance needs, and why the first that waits does so: the others are alike."""
    newest = max(instances, key=lambda i: (i.generation, i.created_at), default=None)
    if newest is not None and newest.status.need is not None:
        yield from _section("What an instance needs", need_lines(newest.status.need))
    waiting = next((i for i in instances if i.status.phase == "pending" and i.status.explain is not None), None)
    if waiting is not None and waiting.status.explain is not None:
        yield from _section(f"Why {waiting.name} waits", explain_lines(waiting.status.explain))


def _worker(view: WorkerView, now: datetime) -> Iterator[str]:
    status = view.status
    yield from _fields(
        [
            ("Worker", view.name),
            ("UID", view.uid),
            ("State", f"{status.state} (phase {status.phase})"),
            ("Reason", or_nothing(status.reason)),
            ("Connected", "yes" if status.connected else "no"),
            ("Last seen", when(status.last_seen, now)),
            ("Host", f"{or_nothing(status.hostname)}, {status.os}/{status.arch}"),
            ("Simulated", "yes" if status.simulated else "no"),
            ("Driver", or_nothing(status.driver)),
            ("Agent", or_nothing(status.agent_version)),
            ("Address", or_nothing(status.proxy_address)),
            ("Labels", or_nothing(", ".join(f"{k}={v}" for k, v in sorted(status.labels.items())))),
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


def _gpu(view: GpuView) -> Iterator[str]:
    status = view.status
    yield from _fields(
        [
            ("GPU", view.name),
            ("Worker", f"{status.worker}, index {status.index}"),
            ("Model", status.model),
            ("Capability", or_nothing(status.compute_capability)),
            ("Health", f"{status.health} {status.health_reason}".rstrip()),
            ("Present", "yes" if status.present else "no"),
            ("MIG mode", "on" if status.mig_mode else "off"),
            ("Memory", f"{gib(status.free_mib)} of {gib(status.memory_mib)} free, {gib(status.claimed_mib)} claimed"),
            *([("Reserved", gib(status.reserved_mib))] if status.reserved_mib else []),
            *([("Foreign", f"{gib(status.foreign_mib)} in use that no claim explains")] if status.foreign_mib else []),
            ("In use", gib(status.used_mib)),
            ("Utilization", percent(status.utilization)),
        ]
    )
    claims = [
        [c.instance, c.deployment, gib(c.memory_mib), "yes" if c.exclusive else "no", str(c.epoch)]
        for c in status.claims
    ]
    yield from _section("Claims", _aligned(["INSTANCE", "DEPLOYMENT", "MEMORY", "EXCLUSIVE", "EPOCH"], claims))


def _policy(view: PolicyView, now: datetime) -> Iterator[str]:
    spec, status = view.spec, view.status
    watched, found = status.watches, status.verdicts
    hook = f"{spec.webhook.url} (signed with secret {spec.webhook.secret})" if spec.webhook else ""
    yield from _fields(
        [
            ("Policy", view.name),
            ("UID", view.uid),
            ("Generation", str(view.generation)),
            ("Rule", rule_of(spec)),
            ("Default", "yes: for every deployment without its own" if spec.default else "no"),
            ("Grace period", clock(spec.grace_period)),
            ("Min coverage", percent(100 * spec.min_coverage)),
            ("Requests", "ignored" if spec.ignore_requests else "keep an instance"),
            ("Webhook", or_nothing(hook)),
            ("Watches", f"{watched.deployments} deployments, {watched.instances} instances"),
            ("Verdicts", f"{found.idle} idle, {found.busy} busy, {found.unknown} unknown"),
            ("Actions", f"{status.actions} taken, {status.would_have_acted} that a dry run only told"),
            ("Freed", f"{hours(status.gpu_seconds_freed / 3600)} GPU hours"),
            ("Created", when(view.created_at, now)),
        ]
    )


def _conditions(conditions: Sequence[Condition], now: datetime) -> list[str]:
    rows = [[c.type, c.status, age(c.since, now), or_nothing(c.reason), c.message] for c in conditions]
    return _section("Conditions", _aligned(["TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"], rows))


def _fields(fields: Fields) -> list[str]:
    width = max(len(name) for name, _ in fields) + 1
    return [f"{name + ':':<{width}} {printable(value)}" for name, value in fields]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(_INDENT + line for line in lines)] if lines else []


def _aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines, cells padded to their column; no lines where there are no rows."""
    if not rows:
        return []
    cells = [[printable(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
