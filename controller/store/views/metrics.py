"""Figures about objects and the fleet, which each scrape reads from rows of one snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.instances import Intent
from controller.domain.wanted import ReplicaRule
from controller.store.access.key_expiry import KeyExpiry, read_key_expiry
from controller.store.core.database import Reader
from controller.store.core.ledger_audit import read_audit_result
from controller.store.views.gpus import DETAILS_GOOD_FOR_S, FREE_MIB, READING_GOOD_FOR_S, SHOWN
from schemas.manifest.resources import bounds_of

_MIB: Final = 2**20
# A claimed GPU counts as claimed in each state; it may count as unusable once the claim is released.
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
    """Numbers and memory of GPUs of one model, by state."""

    gpus: Mapping[str, int]
    memory_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of objects."""

    number: int
    oldest_s: float  # age


@dataclass(frozen=True, slots=True)
class Idle:
    """GPUs that idle instances of a deployment hold, and the GPU seconds since they became idle."""

    gpus: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of one deployment."""

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
    intents = [Intent(source, most, "", min_replicas=least) for source, least, most in row["intents"] or ()]
    return ReplicaRule(low, high, row["dry_run"]).wanted(intents)


INLINE = "(inline)"  # no policy object can have this name


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """A rollout that is not complete."""

    available: int
    weight: float | None  # share of the requests, from 0 to 1; None: not set
    halted: bool


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU's health (None: unknown), and its known details by name."""

    healthy: bool | None
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figures:
    """Memory in bytes, utilization from 0 to 1; unknown readings are left out."""

    instances: dict[str, int]  # by phase
    workers: dict[str, int]  # by phase
    claimed_bytes: dict[tuple[str, str, str], int]  # by worker, GPU and deployment
    utilization: dict[tuple[str, str], float]  # by worker and GPU
    freed_gpu_s: dict[str, float]  # by policy, of all deployments
    wanted: dict[tuple[str, str], int] = field(default_factory=dict)  # the autoscaler's, by deployment and dry run
    withheld: dict[str, int] = field(default_factory=dict)  # the part of these that caps withhold, by deployment
    silent_gateways: int = 0
    rollouts: dict[tuple[str, str], RolloutFigures] = field(default_factory=dict)  # by deployment and new revision
    gpus: dict[tuple[str, str], GpuFigures] = field(default_factory=dict)  # by worker and UUID
    fleet: FleetFigures = field(default_factory=FleetFigures)


async def read_figures(connection: Reader) -> Figures:
    """Reads in one REPEATABLE READ transaction."""
    instances = await connection.fetch("select phase, count(*) as n from instances group by phase")
    workers = await connection.fetch("select phase, count(*) as n from workers where deleted_at is null group by phase")
    claimed = await connection.fetch(
        """select w.name as worker, d.uuid, p.name as deployment, sum(c.memory_mib)::bigint as mib
             from claims c
             join devices d on d.uuid = c.device and d.kind = 'gpu'
             join workers w on w.id = d.worker_id
             join instances i on i.id = c.instance_id
             join deployments p on p.uid = i.deployment_uid
            group by w.name, d.uuid, p.name"""
    )
    readings = await connection.fetch(
        """select w.name as worker, d.uuid, r.utilization
             from device_readings r
             join devices d on d.uuid = r.device and d.kind = 'gpu'
             join workers w on w.id = d.worker_id and w.deleted_at is null
            where r.utilization is not null and r.read_at > now() - $1 * interval '1 s'""",
        READING_GOOD_FOR_S,
    )
    gpus = await connection.fetch(
        """select w.name as worker, d.uuid, case d.health when 'unknown' then null else d.health = 'ok' end as healthy,
                  case when d.present and d.health <> 'unknown' then x.details end as details
             from devices d
             join workers w on w.id = d.worker_id and w.deleted_at is null
             left join device_details x on x.device = d.uuid and x.read_at > now() - $1 * interval '1 s'
            where d.kind = 'gpu' and (d.present or not starts_with(d.uuid, 'GPU-unreadable-'))""",
        DETAILS_GOOD_FOR_S,
    )
    freed = await connection.fetch(
        """select coalesce(nullif(policy, ''), $1) as policy, sum(gpu_s)::float8 as gpu_s
             from (select policy, gpus * greatest(extract(epoch from coalesce(ended_at, now()) - at), 0) as gpu_s
                     from policy_actions where action <> 'notify' and not dry_run
                   union all select policy, gpu_s from policy_totals) a
            group by 1""",
        INLINE,
    )
    scaled = await connection.fetch(
        """select d.name, s.number, s.dry_run, s.silent,
                  (select min(max_replicas) from intents
                    where deployment_uid = d.uid and source <> 'autoscaler') as cap
             from scaling_status s join deployments d on d.uid = s.deployment_uid and d.deleted_at is null"""
    )
    rollouts = await connection.fetch(
        """select d.name, o.revision, o.available, o.weight, o.paused or o.state in ('failed', 'aborted') as halted
             from rollouts o join deployments d on d.uid = o.deployment_uid and d.deleted_at is null
            where o.state <> 'complete' and o.stable <> o.revision"""
    )
    fleet = await read_fleet(connection)
    return Figures(
        instances={row["phase"]: row["n"] for row in instances},
        workers={row["phase"]: row["n"] for row in workers},
        claimed_bytes={(row["worker"], row["uuid"], row["deployment"]): row["mib"] * _MIB for row in claimed},
        utilization={(row["worker"], row["uuid"]): row["utilization"] / 100 for row in readings},
        freed_gpu_s={row["policy"]: row["gpu_s"] for row in freed},
        wanted={(row["name"], str(row["dry_run"]).lower()): row["number"] for row in scaled},
        withheld={
            row["name"]: max(row["number"] - row["cap"], 0) if row["cap"] is not None else 0
            for row in scaled
            if not row["dry_run"]
        },
        fleet=fleet,
        silent_gateways=len({name for row in scaled for name in row["silent"]}),
        gpus={(row["worker"], row["uuid"]): GpuFigures(row["healthy"], row["details"] or {}) for row in gpus},
        rollouts={
            (row["name"], str(row["revision"])): RolloutFigures(
                row["available"], None if row["weight"] is None else row["weight"] / 100, row["halted"]
            )
            for row in rollouts
        },
    )
