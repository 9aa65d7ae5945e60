"""What `defrag` reads: movable instances with their claims and needs, pending instances, and relocations."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from controller.domain.need_json import need_from_json
from controller.domain.pending import Destination
from controller.domain.placement import Need, PlannedClaim
from controller.store.core.database import Reader
from controller.store.deployments.specs import spec_from_json
from controller.store.placement.inventory import planned_claim
from controller.store.placement.pending import destination_from_json
from schemas.manifest.deployment import DeploymentSpec

_SHOWN: Final = 100
# Only of deployments at rest: all of their instances run the newest revision. A task that never restarts would run
# twice, and an instance that is being preempted frees its capacity anyway.
_MOVABLE: Final = """
    select i.id, i.epoch, i.deployment_uid, i.revision, d.name, (d.spec ->> 'priority')::int as priority, r.spec,
           r.need, c.device, c.rank, c.memory_mib,
           c.cpu_milli, c.exclusive, c.position, v.worker_id
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
      join claims c on c.instance_id = i.id and c.epoch = i.epoch
      join devices v on v.uuid = c.device
     where i.phase = 'running' and i.pushed_out_for is null and r.need is not null
       and d.deleted_at is null and d.observed_generation = d.generation and d.phase = 'running'
       and (d.spec ->> 'movable')::boolean
       and clock_timestamp() - c.created_at >= coalesce((d.spec ->> 'minimum_runtime')::float8, 0) * interval '1 s'
       and r.spec ->> 'restart' = 'always'
       and not exists (select 1 from relocations m
                        where m.deployment_uid = d.uid and m.state in ('waiting', 'moving'))
     order by i.id, c.rank, c.position"""


@dataclass(frozen=True, slots=True)
class MovableRow:
    """A running instance that may be relocated."""

    instance: str
    epoch: int
    deployment: str
    deployment_uid: str
    spec: DeploymentSpec
    need: Need
    workers: tuple[str, ...]  # ids by rank
    claims: tuple[PlannedClaim, ...]
    priority: int = 0


@dataclass(frozen=True, slots=True)
class RelocationRow:
    """A relocation and its progress."""

    instance: str
    deployment: str
    to: tuple[str, ...]
    gpus: tuple[str, ...]
    demand: str
    state: Literal["waiting", "moving", "moved", "abandoned"]
    copy: str | None
    message: str
    created_at: datetime
    ended_at: datetime | None


async def read_movable(connection: Reader) -> list[MovableRow]:
    """All instances that may be relocated now."""
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    for row in await connection.fetch(_MOVABLE):
        rows[row["id"]].append(row)
    needs: dict[tuple[Any, int], Need] = {}
    found = []
    for instance, claims in rows.items():
        first = claims[0]
        key = first["deployment_uid"], first["revision"]
        if key not in needs:
            needs[key] = need_from_json(first["need"])
        found.append(
            MovableRow(
                instance=instance,
                epoch=first["epoch"],
                deployment=first["name"],
                deployment_uid=str(first["deployment_uid"]),
                spec=spec_from_json(first["spec"]),
                need=needs[key],
                workers=tuple(dict.fromkeys(str(c["worker_id"]) for c in claims)),
                claims=tuple(planned_claim(c) for c in claims),
                priority=first["priority"],
            )
        )
    return found


async def read_relocations(connection: Reader) -> list[RelocationRow]:
    """The latest planned relocations, newest first: waiting, in progress, done or abandoned."""
    rows = await connection.fetch(
        """select r.*, d.name from relocations r join deployments d on d.uid = r.deployment_uid
            where r.purpose = 'plan' order by r.id desc limit $1""",
        _SHOWN,
    )
    return [
        RelocationRow(
            instance=row["instance_id"],
            deployment=row["name"],
            to=tuple(row["workers"]),
            gpus=tuple(row["gpus"]),
            demand=row["demand"],
            state=row["state"],
            copy=row["copy_id"],
            message=row["message"],
            created_at=row["created_at"],
            ended_at=row["ended_at"],
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class DemandRow:
    """A pending instance whose need is known."""

    instance: str
    deployment_uid: str
    spec: DeploymentSpec
    need: Need
    priority: int = 0
    promised: Destination | None = None  # the place that the instances which it preempted leave for it


async def read_demands(connection: Reader, limit: int) -> list[DemandRow]:
    """Pending instances in admission order, without the replacements of relocations in progress."""
    rows = await connection.fetch(
        """select i.id, i.deployment_uid, r.spec, r.need, (d.spec ->> 'priority')::int as priority,
                  i.promised
             from instances i
             join deployments d on d.uid = i.deployment_uid
             join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
            where i.phase in ('pending', 'analyzing') and d.deleted_at is null and r.need is not null
              and i.revision = d.revision
              and not exists (select 1 from relocations m
                               where m.copy_id = i.id and m.state = 'moving' and m.purpose = 'plan')
            order by (d.spec ->> 'priority')::int desc, i.created_at, i.id limit $1""",
        limit,
    )
    return [
        DemandRow(
            instance=row["id"],
            deployment_uid=str(row["deployment_uid"]),
            spec=spec_from_json(row["spec"]),
            need=need_from_json(row["need"]),
            priority=row["priority"],
            promised=destination_from_json(row["promised"]),
        )
        for row in rows
    ]
