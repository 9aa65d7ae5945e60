"""The kinds of objects: their names, API paths, views and table columns. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.errors import UsageError
from cli.objects.kind import Column, Kind
from cli.text.explanations import layout_line
from cli.text.formatting import DASH, age, first_gpus, gib, hours, local_time, name_of_gpu, or_dash, percent, span
from cli.text.gpus import foreign, measure, throttle
from cli.text.policies import action_of, idle_for, stops_in
from cli.text.runtimes import runtimes
from cli.text.scaling import scale_cell
from cli.text.workers import worker_reason, worker_why
from cli.transport.near_names import did_you_mean, near
from schemas.units import format_bytes

if TYPE_CHECKING:  # slow to import
    from schemas.api.access import KeyView, SecretView, TokenView
    from schemas.api.deployments import DeploymentView
    from schemas.api.events import EventView
    from schemas.api.gpus import GpuView
    from schemas.api.instances import InstanceStatus
    from schemas.api.model_cache import CachedModelView
    from schemas.api.policies import PolicyView
    from schemas.api.workers import WorkerView


def why(status: "InstanceStatus") -> str:
    """Why an instance has its phase, in one line; empty for an instance that runs on healthy GPUs."""
    if status.explain is not None and status.phase == "pending" and status.explain.message:
        return status.explain.message
    sick = next((claim for claim in status.claims if claim.kind == "gpu" and claim.health != "ok"), None)
    of_gpu = "" if sick is None else f"{sick.device} is {sick.health}: {sick.health_reason}"
    return of_gpu if status.phase == "running" else status.message or status.reason or of_gpu


def _verdicts(view: "PolicyView") -> str:
    verdicts = view.status.verdicts
    return f"{verdicts.idle}/{verdicts.busy}/{verdicts.unknown}"


def _engine(view: "DeploymentView") -> str:
    """The engines that were chosen for its instances; before that, the engine of its spec, such as `auto`."""
    return ",".join(view.status.engines) or view.spec.engine


def _deployment_why(view: "DeploymentView") -> str:
    return "" if view.status.phase == "running" else view.status.message or view.status.reason


def _ready(view: "DeploymentView") -> str:
    return f"{view.status.ready}/{view.status.wanted}"


def _worker_memory(view: "WorkerView") -> str:
    return f"{gib(view.status.free_mib)}/{gib(view.status.memory_mib)}"


def _gpu_state(view: "GpuView") -> str:
    """Its health; `cordoned` where only the cordon keeps new instances away."""
    return "cordoned" if view.spec.cordoned and view.status.health == "ok" else view.status.health


def _gpu_why(view: "GpuView") -> str:
    cordoned = "cordoned by an operator" if view.spec.cordoned else ""
    return "; ".join(text for text in (view.status.health_reason, cordoned) if text)


def _gpu_holders(view: "GpuView") -> str:
    return ", ".join(
        f"{claim.deployment} ({'exclusive' if claim.exclusive else gib(claim.memory_mib)})"
        for claim in view.status.claims
    )


DEPLOYMENTS: Final = Kind(
    "deployment",
    "deployments",
    "DeploymentView",
    (
        Column("NAME", lambda d, _: d.name),
        Column("PHASE", lambda d, _: d.status.phase),
        Column("READY", lambda d, _: _ready(d)),
        Column("SCALE", lambda d, _: scale_cell(d), rank=2),
        Column("ENGINE", lambda d, _: _engine(d), rank=3),
        Column("AGE", lambda d, now: age(d.created_at, now), rank=1),
        Column("MODEL", lambda d, _: or_dash(d.spec.model), wide=True, rank=4),
        Column("GENERATION", lambda d, _: str(d.generation), wide=True, rank=5),
        Column("UID", lambda d, _: d.uid, wide=True, rank=6),
        Column("CREATED", lambda d, _: local_time(d.created_at), wide=True, rank=7),
        Column("WHY", lambda d, _: or_dash(_deployment_why(d))),
    ),
)
INSTANCES: Final = Kind(
    "instance",
    "instances",
    "InstanceView",
    (
        Column("NAME", lambda i, _: i.name),
        Column("DEPLOYMENT", lambda i, _: i.spec.deployment, rank=5),
        Column("PHASE", lambda i, _: i.status.phase),
        Column("WORKER", lambda i, _: or_dash(",".join(i.status.workers) or i.status.worker), rank=1),
        Column("GPUS", lambda i, _: first_gpus(i.status.gpus), rank=3),
        Column("RESTARTS", lambda i, _: str(i.status.restarts), rank=7),
        Column("AGE", lambda i, now: age(i.created_at, now), rank=2),
        Column("IDLE", lambda i, now: idle_for(i.status, now), rank=4),
        Column("STOPS IN", lambda i, now: stops_in(i.status, now), rank=6),
        Column(
            "VERDICT", lambda i, _: i.status.utilization.verdict if i.status.utilization else DASH, wide=True, rank=10
        ),
        Column("ENGINE", lambda i, _: i.status.engine or i.spec.engine, wide=True, rank=8),
        Column("RUNTIME", lambda i, _: i.spec.runtime, wide=True, rank=11),
        Column("LAYOUT", lambda i, _: layout_line(i.status.layout) if i.status.layout else DASH, wide=True, rank=12),
        Column("EPOCH", lambda i, _: str(i.status.epoch), wide=True, rank=13),
        Column("REVISION", lambda i, _: str(i.spec.revision), wide=True, rank=9),
        Column("GPU UUIDS", lambda i, _: or_dash(",".join(i.status.gpus)), wide=True, uuids=True, rank=14),
        Column("CREATED", lambda i, _: local_time(i.created_at), wide=True, rank=15),
        Column("PHASE SINCE", lambda i, _: local_time(i.status.phase_since), wide=True, rank=16),
        Column("WHY", lambda i, _: or_dash(why(i.status))),
    ),
)
WORKERS: Final = Kind(
    "worker",
    "workers",
    "WorkerView",
    (
        Column("NAME", lambda w, _: w.name),
        Column("STATE", lambda w, _: w.status.state),
        Column("GPUS", lambda w, _: str(w.status.gpus) if w.status.gpus_known else "unknown", rank=1),
        Column("INSTANCES", lambda w, _: str(w.status.instances), rank=4),
        Column("FREE MEMORY", lambda w, _: _worker_memory(w), rank=2),
        Column("SEEN", lambda w, now: age(w.status.last_seen, now), rank=3),
        Column("AGE", lambda w, now: age(w.created_at, now), rank=5),
        Column("PLATFORM", lambda w, _: f"{w.status.os}/{w.status.arch}", wide=True, rank=9),
        Column("DRIVER", lambda w, _: or_dash(w.status.driver), wide=True, rank=6),
        Column("AGENT", lambda w, _: or_dash(w.status.agent_version), wide=True, rank=8),
        Column("RUNTIMES", lambda w, _: runtimes(w.status.runtimes), wide=True, rank=7),
        Column("ADDRESS", lambda w, _: or_dash(w.status.proxy_address), wide=True, rank=10),
        Column("LABELS", lambda w, _: or_dash(_labels(w.status.labels)), wide=True, rank=11),
        Column("REASON", lambda w, _: or_dash(worker_reason(w)), wide=True, rank=12),
        Column("LAST SEEN", lambda w, _: local_time(w.status.last_seen), wide=True, rank=13),
        Column("JOINED", lambda w, _: local_time(w.created_at), wide=True, rank=14),
        Column("WHY", lambda w, _: or_dash(worker_why(w))),
    ),
)
GPUS: Final = Kind(
    "gpu",
    "gpus",
    "GpuView",
    (
        Column("NAME", lambda g, _: name_of_gpu(g)),
        Column("WORKER", lambda g, _: g.status.worker, rank=16),
        Column("INDEX", lambda g, _: str(g.status.index), rank=17),
        Column("MODEL", lambda g, _: g.status.model, rank=5),
        Column("FREE", lambda g, _: gib(g.status.free_mib), rank=1),
        Column("MEMORY", lambda g, _: gib(g.status.memory_mib), rank=3),
        Column("UTIL", lambda g, _: percent(g.status.utilization), rank=4),
        Column("HEALTH", lambda g, _: _gpu_state(g)),
        Column("IN USE", lambda g, _: gib(g.status.used_mib), wide=True, rank=6),
        Column(
            "MIG", lambda g, _: "slice" if g.status.parent else "yes" if g.status.mig_mode else "no", wide=True, rank=11
        ),
        Column("TEMP", lambda g, _: measure(g.status.details, "temperature_c", "C"), wide=True, rank=7),
        Column("POWER", lambda g, _: measure(g.status.details, "power_w", "W"), wide=True, rank=8),
        Column("ECC", lambda g, _: measure(g.status.details, "ecc_uncorrected"), wide=True, rank=9),
        Column("XID", lambda g, _: measure(g.status.details, "last_xid"), wide=True, rank=10),
        Column("THROTTLED", lambda g, _: throttle(g.status.details), wide=True, rank=12),
        Column("NOT OURS", lambda g, _: foreign(g.status.details), wide=True, rank=13),
        Column("CAPABILITY", lambda g, _: or_dash(g.status.compute_capability), wide=True, rank=14),
        Column("UUID", lambda g, _: g.name, wide=True, uuids=True, rank=15),
        Column("WHY", lambda g, _: or_dash(_gpu_why(g))),
        Column("HELD BY", lambda g, _: or_dash(_gpu_holders(g))),
    ),
)


POLICIES: Final = Kind(
    "policy",
    "policies",
    "PolicyView",
    (
        Column("NAME", lambda p, _: p.name),
        Column("DEFAULT", lambda p, _: "yes" if p.spec.default else "no", rank=2),
        Column("BELOW", lambda p, _: percent(p.spec.min_gpu_utilization)),
        Column("FOR", lambda p, _: span(p.spec.time_window)),
        Column("ACTION", lambda p, _: action_of(p.spec)),
        Column("DEPLOYMENTS", lambda p, _: str(p.status.watches.deployments), rank=4),
        Column("INSTANCES", lambda p, _: str(p.status.watches.instances), rank=3),
        Column("IDLE/BUSY/UNKNOWN", lambda p, _: _verdicts(p), rank=1),
        Column("ACTIONS", lambda p, _: str(p.status.actions), rank=5),
        Column("GPU HOURS FREED", lambda p, _: hours(p.status.gpu_seconds_freed / 3600), rank=6),
        Column("WOULD HAVE ACTED", lambda p, _: str(p.status.would_have_acted), wide=True, rank=7),
        Column("GPUS", lambda p, _: p.spec.gpus, wide=True, rank=8),
        Column("GENERATION", lambda p, _: str(p.generation), wide=True, rank=9),
        Column("AGE", lambda p, now: age(p.created_at, now), wide=True, rank=10),
        Column("CREATED", lambda p, _: local_time(p.created_at), wide=True, rank=11),
    ),
)


def main_subject(view: "EventView") -> str:
    """The subject of an event as KIND/NAME: its instance, else its first object."""
    subjects = sorted(view.subjects, key=lambda subject: subject.kind != "instance")
    return f"{subjects[0].kind}/{subjects[0].name or subjects[0].uid}" if subjects else DASH


EVENTS: Final = Kind(
    "event",
    "events",
    "EventView",
    (
        Column("AGE", lambda e, now: age(e.at, now)),
        Column("REASON", lambda e, _: e.reason),
        Column("OBJECT", lambda e, _: main_subject(e), rank=1),
        Column("ACTOR", lambda e, _: or_dash(e.actor), rank=2),
        Column("REQUEST", lambda e, _: or_dash(e.request_id), wide=True, rank=3),
        Column("ID", lambda e, _: str(e.id), wide=True, rank=4),
        Column("TIME", lambda e, _: local_time(e.at), wide=True, rank=6),
        Column("OBJECTS", lambda e, _: or_dash(", ".join(e.objects)), wide=True, uuids=True, rank=5),
        Column("MESSAGE", lambda e, _: e.message),
    ),
    by_name=False,
)
CACHED_MODELS: Final = Kind(
    "cached model",
    "cached models",
    "CachedModelView",
    (
        Column("MODEL", lambda m, _: m.name),
        Column("REVISION", lambda m, _: ", ".join(_revision(m))),
        Column("SIZE", lambda m, _: format_bytes(m.size_bytes)),
        Column("USED", lambda m, now: age(m.used_at, now)),
        Column("IN USE", lambda m, _: "yes" if m.in_use else "no"),
        Column("COMMIT", lambda m, _: ", ".join(snapshot.commit for snapshot in m.snapshots), wide=True),
        Column("LAST USED", lambda m, _: local_time(m.used_at), wide=True),
    ),
    by_name=False,
)


def _revision(model: "CachedModelView") -> list[str]:
    if not model.snapshots:  # of an agent that is too old to report them
        return sorted(set(model.revisions) - set(model.revisions.values()))
    return [", ".join(snapshot.names) or snapshot.commit[:12] or "unfinished" for snapshot in model.snapshots]


def _key_state(key: "KeyView", now: datetime) -> str:
    if key.revoked_at:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    return "rotated" if key.rotated_to else "open"


def _key_limits(key: "KeyView") -> str:
    limits = {"rpm": key.rpm, "tpm": key.tpm, "tokens/day": key.tokens_per_day, "parallel": key.parallel}
    return ", ".join(f"{value} {name}" for name, value in limits.items() if value is not None)


def _expires(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "never"
    return f"in {age(now, at)}" if at > now else "over"


def _token_state(view: "TokenView", now: datetime) -> str:
    if view.revoked_at is not None:
        return "revoked"
    if view.max_uses == 1 and view.uses:
        return f"used by {view.used_by}" if view.used_by else "used"
    state = "used up" if view.uses >= view.max_uses else "expired" if view.expires_at <= now else "open"
    return state if view.max_uses == 1 else f"{state}, {view.uses} of {view.max_uses} hosts joined"


def _secret_scope(secret: "SecretView", _now: datetime) -> str:
    return ",".join([*(secret.deployments or ["all"]), *(["role:admin"] if secret.admins_only else [])])


def _secret_state(secret: "SecretView", _now: datetime) -> str:
    if not secret.readable:
        return "unreadable: no key"
    return "encrypted" if secret.encrypted else "not encrypted"


KEYS: Final = Kind(
    "key",
    "keys",
    "KeyView",
    (
        Column("ID", lambda k, _: k.id),
        Column("NAME", lambda k, _: or_dash(k.name)),
        Column("ROLE", lambda k, _: k.role),
        Column("AGE", lambda k, now: age(k.created_at, now), rank=2),
        Column("STATE", _key_state),
        Column("MODELS", lambda k, _: ",".join(k.models) or "all", rank=3),
        Column("LIMITS", lambda k, _: or_dash(_key_limits(k)), rank=4),
        Column("EXPIRES", lambda k, now: _expires(k.expires_at, now), rank=1),
        Column("USED", lambda k, now: f"{age(k.used_at, now)} ago" if k.used_at else "never", rank=5),
        Column("CREATED", lambda k, _: local_time(k.created_at), wide=True, rank=6),
        Column("EXPIRES AT", lambda k, _: local_time(k.expires_at), wide=True, rank=7),
        Column("LAST USED", lambda k, _: local_time(k.used_at), wide=True, rank=8),
    ),
    by_name=False,
)
TOKENS: Final = Kind(
    "token",
    "tokens",
    "TokenView",
    (
        Column("ID", lambda t, _: t.id),
        Column("STATE", _token_state),
        Column("AGE", lambda t, now: age(t.created_at, now)),
        Column("EXPIRES", lambda t, now: _expires(t.expires_at, now)),
        Column("FOR", lambda t, _: t.name or "any", rank=1),
        Column("LABELS", lambda t, _: or_dash(_labels(t.labels)), rank=2),
        Column("CREATED", lambda t, _: local_time(t.created_at), wide=True, rank=3),
        Column("EXPIRES AT", lambda t, _: local_time(t.expires_at), wide=True, rank=4),
    ),
    by_name=False,
)
SECRETS: Final = Kind(
    "secret",
    "secrets",
    "SecretView",
    (
        Column("NAME", lambda s, _: s.name),
        Column("FOR", _secret_scope),
        Column("STATE", _secret_state),
        Column("KEY", lambda s, _: or_dash(s.key_id), rank=2),
        Column("SET", lambda s, now: age(s.updated_at, now), rank=1),
        Column("USED", lambda s, now: age(s.used_at, now) if s.used_at else "-", rank=3),
        Column("SET AT", lambda s, _: local_time(s.updated_at), wide=True, rank=4),
        Column("LAST USED", lambda s, _: local_time(s.used_at), wide=True, rank=5),
    ),
    by_name=False,
)
GATEWAYS: Final = Kind(
    "gateway",
    "gateways",
    "GatewayView",
    (
        Column("NAME", lambda g, _: g.name),
        Column("STATE", lambda g, _: g.state),
        Column("IN FLIGHT", lambda g, _: str(g.in_flight)),
        Column("WAITING", lambda g, _: str(g.waiting)),
        Column("REPORTED", lambda g, now: age(g.seen_at, now)),
        Column("LAST REPORT", lambda g, _: local_time(g.seen_at), wide=True),
    ),
    by_name=False,
)


KINDS: Final = (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES, EVENTS, KEYS, TOKENS)


def kind_named(word: str, among: Sequence[Kind] = KINDS) -> Kind:
    """The kind of this singular or plural. Raises `UsageError` for an unknown kind."""
    for kind in among:
        if word.lower() in kind.words:
            return kind
    known = ", ".join(kind.plural for kind in among)
    meant = did_you_mean(near(word, [kind.plural for kind in among])[:1])
    raise UsageError(f"unknown kind {word!r}{meant or f'; use one of: {known}'}")


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
