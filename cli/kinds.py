"""The kinds of objects: their names, API paths, views and table columns. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cli.errors import UsageError
from cli.explanations import layout_line, one_line
from cli.formatting import DASH, age, gib, hours, or_dash, percent, short_gpus, span
from cli.gpu_text import foreign, measure, throttle
from cli.policy_text import action_of, idle_for, stops_in
from cli.runtime_text import CONTAINERS, runtimes
from cli.scaling_text import scale_cell
from schemas.api.access import KeyView, TokenView
from schemas.api.deployments import DeploymentView
from schemas.api.events import EventView
from schemas.api.gateways import GatewayView
from schemas.api.gpus import GpuView
from schemas.api.instances import InstanceStatus, InstanceView
from schemas.api.model_cache import CachedModelView
from schemas.api.policies import PolicyView
from schemas.api.workers import WorkerView
from schemas.base import View
from schemas.quantities import format_bytes

Cell = Callable[[Any, datetime], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, and its cell for an object at a time. `wide`: only with `-o wide`."""

    title: str
    cell: Cell
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object.

    Attributes:
        singular: its name for one object, such as `worker`.
        plural: its name for several; also its path in the API.
        model: the view of one object.
        columns: of its table.
        by_name: whether the API can return one object by name; if not, it is searched in the list.
    """

    singular: str
    plural: str
    model: type[View]
    columns: tuple[Column, ...]
    by_name: bool = True


def why(status: InstanceStatus) -> str:
    """Why an instance has its phase, in one line; for a pending one why it is pending."""
    if status.explain is not None and status.phase == "pending" and (line := one_line(status.explain)):
        return line
    sick = next((claim for claim in status.claims if claim.kind == "gpu" and claim.health != "ok"), None)
    of_gpu = "" if sick is None else f"{sick.device} is {sick.health}: {sick.health_reason}"
    return status.message or status.reason or of_gpu


def _verdicts(view: PolicyView) -> str:
    found = view.status.verdicts
    return f"{found.idle}/{found.busy}/{found.unknown}"


def _deployment_why(view: DeploymentView) -> str:
    return view.status.message or view.status.reason


def _ready(view: DeploymentView) -> str:
    return f"{view.status.ready}/{view.status.wanted}"


def _worker_memory(view: WorkerView) -> str:
    return f"{gib(view.status.free_mib)}/{gib(view.status.memory_mib)}"


def _worker_why(view: WorkerView) -> str:
    """The reason of its state, else the first condition that does not hold. Most hosts need no containers."""
    false = (c for c in view.status.conditions if c.status == "false" and c.type != CONTAINERS)
    return view.status.reason or next((f"{c.reason}: {c.message}" if c.message else c.reason for c in false), "")


def _gpu_state(view: GpuView) -> str:
    """Its health; `cordoned` where that alone keeps new instances away."""
    return "cordoned" if view.spec.cordoned and view.status.health == "ok" else view.status.health


def _gpu_why(view: GpuView) -> str:
    cordoned = "cordoned by an operator" if view.spec.cordoned else ""
    return "; ".join(text for text in (view.status.health_reason, cordoned) if text)


def _gpu_holders(view: GpuView) -> str:
    return ", ".join(
        f"{claim.deployment} ({'exclusive' if claim.exclusive else gib(claim.memory_mib)})"
        for claim in view.status.claims
    )


def _token_state(view: TokenView, now: datetime) -> str:
    if view.revoked_at is not None:
        return "revoked"
    if view.used_at is not None:
        return f"used by {view.used_by}" if view.used_by else "used"
    return "expired" if view.expires_at <= now else "open"


DEPLOYMENTS: Final = Kind(
    "deployment",
    "deployments",
    DeploymentView,
    (
        Column("NAME", lambda d, _: d.name),
        Column("PHASE", lambda d, _: d.status.phase),
        Column("READY", lambda d, _: _ready(d)),
        Column("SCALE", lambda d, _: scale_cell(d)),
        Column("ENGINE", lambda d, _: d.spec.engine),
        Column("AGE", lambda d, now: age(d.created_at, now)),
        Column("MODEL", lambda d, _: or_dash(d.spec.model), wide=True),
        Column("GENERATION", lambda d, _: str(d.generation), wide=True),
        Column("UID", lambda d, _: d.uid, wide=True),
        Column("WHY", lambda d, _: or_dash(_deployment_why(d))),
    ),
)
INSTANCES: Final = Kind(
    "instance",
    "instances",
    InstanceView,
    (
        Column("NAME", lambda i, _: i.name),
        Column("DEPLOYMENT", lambda i, _: i.spec.deployment),
        Column("PHASE", lambda i, _: i.status.phase),
        Column("WORKER", lambda i, _: or_dash(",".join(i.status.workers) or i.status.worker)),
        Column("GPUS", lambda i, _: short_gpus(i.status.gpus)),
        Column("RESTARTS", lambda i, _: str(i.status.restarts)),
        Column("AGE", lambda i, now: age(i.created_at, now)),
        Column("IDLE", lambda i, now: idle_for(i.status, now)),
        Column("STOPS IN", lambda i, now: stops_in(i.status, now)),
        Column("REVISION", lambda i, _: str(i.spec.revision), wide=True),
        Column("VERDICT", lambda i, _: i.status.utilization.verdict if i.status.utilization else DASH, wide=True),
        Column("ENGINE", lambda i, _: i.status.engine or i.spec.engine, wide=True),
        Column("RUNTIME", lambda i, _: i.spec.runtime, wide=True),
        Column("LAYOUT", lambda i, _: layout_line(i.status.layout) if i.status.layout else DASH, wide=True),
        Column("EPOCH", lambda i, _: str(i.status.epoch), wide=True),
        Column("REVISION", lambda i, _: str(i.spec.revision), wide=True),
        Column("GPU UUIDS", lambda i, _: or_dash(",".join(i.status.gpus)), wide=True),
        Column("WHY", lambda i, _: or_dash(why(i.status))),
    ),
)
WORKERS: Final = Kind(
    "worker",
    "workers",
    WorkerView,
    (
        Column("NAME", lambda w, _: w.name),
        Column("STATE", lambda w, _: w.status.state),
        Column("GPUS", lambda w, _: str(w.status.gpus) if w.status.gpus_known else "unknown"),
        Column("INSTANCES", lambda w, _: str(w.status.instances)),
        Column("FREE MEMORY", lambda w, _: _worker_memory(w)),
        Column("SEEN", lambda w, now: age(w.status.last_seen, now)),
        Column("AGE", lambda w, now: age(w.created_at, now)),
        Column("PLATFORM", lambda w, _: f"{w.status.os}/{w.status.arch}", wide=True),
        Column("DRIVER", lambda w, _: or_dash(w.status.driver), wide=True),
        Column("AGENT", lambda w, _: or_dash(w.status.agent_version), wide=True),
        Column("RUNTIMES", lambda w, _: runtimes(w.status.runtimes), wide=True),
        Column("ADDRESS", lambda w, _: or_dash(w.status.proxy_address), wide=True),
        Column("LABELS", lambda w, _: or_dash(_labels(w.status.labels)), wide=True),
        Column("WHY", lambda w, _: or_dash(_worker_why(w))),
    ),
)
GPUS: Final = Kind(
    "gpu",
    "gpus",
    GpuView,
    (
        Column("NAME", lambda g, _: g.name),
        Column("WORKER", lambda g, _: g.status.worker),
        Column("INDEX", lambda g, _: str(g.status.index)),
        Column("MODEL", lambda g, _: g.status.model),
        Column("FREE", lambda g, _: gib(g.status.free_mib)),
        Column("MEMORY", lambda g, _: gib(g.status.memory_mib)),
        Column("UTIL", lambda g, _: percent(g.status.utilization)),
        Column("HEALTH", lambda g, _: _gpu_state(g)),
        Column("IN USE", lambda g, _: gib(g.status.used_mib), wide=True),
        Column("MIG", lambda g, _: "slice" if g.status.parent else "yes" if g.status.mig_mode else "no", wide=True),
        Column("TEMP", lambda g, _: measure(g.status.details, "temperature_c", "C"), wide=True),
        Column("POWER", lambda g, _: measure(g.status.details, "power_w", "W"), wide=True),
        Column("ECC", lambda g, _: measure(g.status.details, "ecc_uncorrected"), wide=True),
        Column("XID", lambda g, _: measure(g.status.details, "last_xid"), wide=True),
        Column("THROTTLED", lambda g, _: throttle(g.status.details), wide=True),
        Column("NOT OURS", lambda g, _: foreign(g.status.details), wide=True),
        Column("CAPABILITY", lambda g, _: or_dash(g.status.compute_capability), wide=True),
        Column("WHY", lambda g, _: or_dash(_gpu_why(g))),
        Column("HELD BY", lambda g, _: or_dash(_gpu_holders(g))),
    ),
)


def _key_state(key: KeyView, now: datetime) -> str:
    if key.revoked_at:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "open"


def _key_limits(key: KeyView) -> str:
    limits = {"rpm": key.rpm, "tpm": key.tpm, "tokens/day": key.tokens_per_day, "parallel": key.parallel}
    return ", ".join(f"{value} {name}" for name, value in limits.items() if value is not None)


def _key_expires(key: KeyView, now: datetime) -> str:
    if key.expires_at is None:
        return "never"
    return f"in {age(now, key.expires_at)}" if key.expires_at > now else "over"


POLICIES: Final = Kind(
    "policy",
    "policies",
    PolicyView,
    (
        Column("NAME", lambda p, _: p.name),
        Column("DEFAULT", lambda p, _: "yes" if p.spec.default else "no"),
        Column("BELOW", lambda p, _: percent(p.spec.min_gpu_utilization)),
        Column("FOR", lambda p, _: span(p.spec.time_window)),
        Column("ACTION", lambda p, _: action_of(p.spec)),
        Column("DEPLOYMENTS", lambda p, _: str(p.status.watches.deployments)),
        Column("INSTANCES", lambda p, _: str(p.status.watches.instances)),
        Column("IDLE/BUSY/UNKNOWN", lambda p, _: _verdicts(p)),
        Column("ACTIONS", lambda p, _: str(p.status.actions)),
        Column("GPU HOURS FREED", lambda p, _: hours(p.status.gpu_seconds_freed / 3600)),
        Column("WOULD HAVE ACTED", lambda p, _: str(p.status.would_have_acted), wide=True),
        Column("GPUS", lambda p, _: p.spec.gpus, wide=True),
        Column("GENERATION", lambda p, _: str(p.generation), wide=True),
        Column("AGE", lambda p, now: age(p.created_at, now), wide=True),
    ),
)
EVENTS: Final = Kind(
    "event",
    "events",
    EventView,
    (
        Column("AGE", lambda e, now: age(e.at, now)),
        Column("REASON", lambda e, _: e.reason),
        Column("ACTOR", lambda e, _: or_dash(e.actor)),
        Column("REQUEST", lambda e, _: or_dash(e.request_id), wide=True),
        Column("ID", lambda e, _: str(e.id), wide=True),
        Column("OBJECTS", lambda e, _: or_dash(", ".join(e.objects)), wide=True),
        Column("MESSAGE", lambda e, _: e.message),
    ),
    by_name=False,
)
KEYS: Final = Kind(
    "key",
    "keys",
    KeyView,
    (
        Column("ID", lambda k, _: k.id),
        Column("NAME", lambda k, _: or_dash(k.name)),
        Column("ROLE", lambda k, _: k.role),
        Column("AGE", lambda k, now: age(k.created_at, now)),
        Column("STATE", _key_state),
        Column("MODELS", lambda k, _: ",".join(k.models) or "all"),
        Column("LIMITS", lambda k, _: or_dash(_key_limits(k))),
        Column("EXPIRES", _key_expires),
    ),
    by_name=False,
)
TOKENS: Final = Kind(
    "token",
    "tokens",
    TokenView,
    (
        Column("ID", lambda t, _: t.id),
        Column("STATE", _token_state),
        Column("AGE", lambda t, now: age(t.created_at, now)),
        Column("EXPIRES", lambda t, now: f"in {age(now, t.expires_at)}" if t.expires_at > now else "over"),
    ),
    by_name=False,
)
GATEWAYS: Final = Kind(
    "gateway",
    "gateways",
    GatewayView,
    (
        Column("NAME", lambda g, _: g.name),
        Column("STATE", lambda g, _: g.state),
        Column("IN FLIGHT", lambda g, _: str(g.in_flight)),
        Column("WAITING", lambda g, _: str(g.waiting)),
        Column("REPORTED", lambda g, now: age(g.seen_at, now)),
    ),
    by_name=False,
)
CACHED_MODELS: Final = Kind(
    "cached model",
    "cached models",
    CachedModelView,
    (
        Column("MODEL", lambda m, _: m.name),
        Column("REVISION", lambda m, _: ", ".join(_revision(m))),
        Column("SIZE", lambda m, _: format_bytes(m.size_bytes)),
        Column("USED", lambda m, now: age(m.used_at, now)),
        Column("IN USE", lambda m, _: "yes" if m.in_use else "no"),
        Column("COMMIT", lambda m, _: ", ".join(one.commit for one in m.snapshots), wide=True),
    ),
    by_name=False,
)


def _revision(model: CachedModelView) -> list[str]:
    """Of a row that shows one revision; the names of all where the agent is too old to tell them apart."""
    if not model.snapshots:
        return sorted(set(model.revisions) - set(model.revisions.values()))
    return [", ".join(one.names) or one.commit[:12] or "unfinished" for one in model.snapshots]


KINDS: Final = (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES, EVENTS, KEYS, TOKENS)


def kind_named(word: str, among: Sequence[Kind] = KINDS) -> Kind:
    """The kind with this singular or plural name.

    Raises:
        UsageError: unknown kind; the message lists the known ones.
    """
    for kind in among:
        if word.lower() in (kind.singular, kind.plural):
            return kind
    known = ", ".join(kind.plural for kind in among)
    raise UsageError(f"unknown kind {word!r}; use one of: {known}")


def object_key(kind: Kind, raw: Mapping[str, Any]) -> str:
    """An object as events refer to it: by uid, since names can be reused."""
    return f"{kind.singular}:{raw['uid']}"


def table_of(
    kind: Kind, objects: Sequence[View], now: datetime, *, wide: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Titles and rows."""
    columns = [column for column in kind.columns if wide or not column.wide]
    return [c.title for c in columns], [[c.cell(view, now) for c in columns] for view in objects]


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
