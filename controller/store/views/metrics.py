"""Figures that are read from rows at each scrape, all of one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.store.core.database import Reader
from controller.store.views.fleet_figures import FleetFigures, read_fleet
from controller.store.views.gpus import DETAILS_GOOD_FOR_S, READING_GOOD_FOR_S

_MIB = 2**20
INLINE = "(inline)"  # no policy object can have this name


@dataclass(frozen=True, slots=True)
class RolloutFigures:
    """A rollout that is not complete. `weight`: share of the requests, from 0 to 1; None: none is set."""

    available: int
    weight: float | None
    stands: bool


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """A GPU's health (None: unknown), and its details as stored: by name, without unknown ones."""

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
    withheld: dict[str, int] = field(default_factory=dict)  # replicas of these that caps keep away, by deployment
    silent_gateways: int = 0
    rollouts: dict[tuple[str, str], RolloutFigures] = field(default_factory=dict)  # by deployment and new revision
    gpus: dict[tuple[str, str], GpuFigures] = field(default_factory=dict)  # by worker and UUID
    fleet: FleetFigures = field(default_factory=FleetFigures)


async def read_figures(connection: Reader) -> Figures:
    """Reads all figures; the connection must be in one REPEATABLE READ transaction."""
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
        """select d.name, o.revision, o.available, o.weight, o.paused or o.state in ('failed', 'aborted') as stands
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
                row["available"], None if row["weight"] is None else row["weight"] / 100, row["stands"]
            )
            for row in rollouts
        },
    )
