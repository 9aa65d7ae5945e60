"""Figures of the whole fleet for metrics: capacity, what waits, waste, replicas, backlogs, and the last audit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.instances import IntentFacts
from controller.domain.wanted import ReplicaRule
from controller.store.access.key_expiry import KeyExpiry, read_key_expiry
from controller.store.core.audit import read_audit_result
from controller.store.core.database import Reader
from controller.store.views.gpus import FREE_MIB, SHOWN
from schemas.manifest.resources import bounds_of

_MIB: Final = 2**20
# A claimed GPU is claimed, whatever its state: what would be unusable without the claim is so once it is released.
_CAPACITY: Final = f"""
    select model, count(*) filter (where claims > 0) as claimed, count(*) filter (where claims = 0 and usable) as free,
           count(*) filter (where claims = 0 and not usable) as unusable, sum(memory_mib)::bigint as total_mib,
           sum(claimed_mib)::bigint as claimed_mib, coalesce(sum(free_mib) filter (where usable), 0)::bigint as free_mib
      from (select d.model, d.claims, d.memory_mib, d.claimed_mib, {FREE_MIB} as free_mib,
                   w.phase = 'ready' and not w.cordoned and not d.cordoned and d.present and d.health = 'ok'
                   and not d.mig_mode as usable
              from devices d join workers w on w.id = d.worker_id
             where {SHOWN}) x
     group by model"""  # noqa: S608 - constants, no input
_WAITING: Final = """
    select coalesce(nullif(reason, ''), phase) as reason, count(*) as n,
           max(extract(epoch from now() - phase_since))::float8 as oldest_s
      from instances where phase in ('pending', 'analyzing') group by 1"""
_IDLE: Final = """
    select p.name, sum(x.share)::float8 as gpus,
           sum(x.share * extract(epoch from now() - coalesce(v.low_since, v.since)))::float8 as gpu_s
      from policy_verdicts v
      join instances i on i.id = v.instance_id and i.epoch = v.epoch and i.phase in ('running', 'unhealthy')
      join deployments p on p.uid = i.deployment_uid and p.deleted_at is null
      join lateral (select sum(case when c.exclusive then 1.0
                                    else c.memory_mib / greatest(d.memory_mib, 1)::float8 end) as share
                      from claims c join devices d on d.uuid = c.device and d.kind = 'gpu'
                     where c.instance_id = i.id and c.epoch = i.epoch) x on x.share is not null
     where v.verdict = 'idle' group by p.name"""
_REPLICAS: Final = """
    select d.name, d.phase, d.ready, d.spec -> 'replicas' as replicas,
           coalesce((d.spec -> 'scaling' ->> 'dry_run')::boolean, false) as dry_run,
           (select jsonb_agg(jsonb_build_array(n.source, n.min_replicas, n.max_replicas))
              from intents n where n.deployment_uid = d.uid) as intents
      from deployments d where d.deleted_at is null"""
_BACKLOG: Final = """
    select kind, count(*) as n, coalesce(max(extract(epoch from now() - since)), 0)::float8 as oldest_s
      from (select 'commands' as kind, m.created_at as since
              from commands m join workers w on w.id = m.worker_id and w.deleted_at is null
             where m.state = 'open' and m.sent_at is null
             union all select 'webhooks', created_at from webhook_deliveries where finished_at is null
             union all select 'relocations', created_at from relocations where state in ('waiting', 'moving')
             union all select 'wakes', created_at from wakes where expires_at > now()
             union all select 'deletions', deleted_at from deployments where deleted_at is not null) x
     group by kind"""
BACKLOGS: Final = ("commands", "webhooks", "relocations", "wakes", "deletions")
_STATE: Final = """
    select (select count(*) from worker_liveness l join workers w on w.id = l.worker_id and w.deleted_at is null
             where l.connected) as agents,
           (select extract(epoch from clock_timestamp() - at)::float8 from rollup_progress) as history_age_s,
           coalesce((select holder <> '' and clock_timestamp() < renewed_at + ttl_s * interval '1 s' from lease), false)
               as led,
           pg_database_size(current_database()) as database_bytes"""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of GPUs of one model: numbers and bytes, by state."""

    gpus: Mapping[str, int]
    memory_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of things, and the age of the oldest in seconds."""

    number: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """GPUs that idle instances of a deployment hold, and the GPU seconds since they became idle."""

    gpus: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Replicas:
    """Of one deployment."""

    wanted: int
    ready: int


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """All figures. Ages are in seconds; None: unknown."""

    capacity: Mapping[str, Capacity] = field(default_factory=dict)  # by model
    waiting: Mapping[str, Amount] = field(default_factory=dict)  # by reason
    idle: Mapping[str, Idle] = field(default_factory=dict)  # by deployment
    replicas: Mapping[str, Replicas] = field(default_factory=dict)  # by deployment
    deployments: Mapping[str, int] = field(default_factory=dict)  # by phase
    backlog: Mapping[str, Amount] = field(default_factory=dict)  # by kind
    violations: Mapping[str, int] = field(default_factory=dict)  # by invariant
    audit_age_s: float | None = None
    history_age_s: float | None = None
    agents: int = 0
    led: bool = False
    keys: KeyExpiry = field(default_factory=KeyExpiry)
    database_bytes: int = 0


async def read_fleet(connection: Reader) -> FleetFigures:
    """Reads all figures; the connection must be in one REPEATABLE READ transaction."""
    audit = await read_audit_result(connection)
    deployments = await connection.fetch(_REPLICAS)
    (state,) = await connection.fetch(_STATE)
    phases: dict[str, int] = {}
    for row in deployments:
        phases[row["phase"]] = phases.get(row["phase"], 0) + 1
    backlog = {row["kind"]: Amount(row["n"], row["oldest_s"]) for row in await connection.fetch(_BACKLOG)}
    return FleetFigures(
        capacity={row["model"]: _capacity(row) for row in await connection.fetch(_CAPACITY)},
        waiting={row["reason"]: Amount(row["n"], row["oldest_s"]) for row in await connection.fetch(_WAITING)},
        idle={row["name"]: Idle(row["gpus"], row["gpu_s"]) for row in await connection.fetch(_IDLE)},
        replicas={row["name"]: Replicas(_wanted(row), row["ready"]) for row in deployments},
        deployments=phases,
        backlog={kind: backlog.get(kind, Amount(0, 0.0)) for kind in BACKLOGS},
        violations=audit.violations,
        audit_age_s=audit.age_s,
        history_age_s=state["history_age_s"],
        agents=state["agents"],
        led=state["led"],
        keys=await read_key_expiry(connection),
        database_bytes=state["database_bytes"],
    )


def _capacity(row: Any) -> Capacity:
    unusable = max(row["total_mib"] - row["claimed_mib"] - row["free_mib"], 0)
    memory = {"claimed": row["claimed_mib"], "free": row["free_mib"], "unusable": unusable}
    return Capacity(
        {state: row[state] for state in ("claimed", "free", "unusable")},
        {state: mib * _MIB for state, mib in memory.items()},
    )


def _wanted(row: Any) -> int:
    low, high = bounds_of(row["replicas"])
    intents = [IntentFacts(source, most, "", min_replicas=least) for source, least, most in row["intents"] or ()]
    return ReplicaRule(low, high, row["dry_run"]).wanted(intents)
