"""The logs of instances: for each rank the worker on which its newest start runs or ran."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.store.access.proxy_secrets import JOIN_PROXY_SECRET, PROXY_SECRET
from controller.store.core.database import Reader, Row
from controller.store.core.refusals import NotFoundError
from controller.store.views.instances import LogSource, log_source_of

# Of each rank the newest start. A claim comes before a report, since its process may not be reported yet.
_LOGS: Final = f"""
    select i.id, at.rank, at.epoch, w.name, w.phase, w.proxy_address, {PROXY_SECRET},
           w.proxy_certificate
      from instances i
      join deployments d on d.uid = i.deployment_uid
     cross join lateral (
           select distinct on (rank) rank, epoch, worker_id
             from (select p.rank, p.epoch, p.worker_id, 0 as claimed from processes p where p.instance_id = i.id
                   union all
                   select c.rank, c.epoch, v.worker_id, 1 from claims c join devices v on v.uuid = c.device
                    where c.instance_id = i.id) known
            order by rank, epoch desc, claimed) at
      join workers w on w.id = at.worker_id {JOIN_PROXY_SECRET}
     where ($1::text is null or d.name = $1) and ($2::text[] is null or i.id = any($2))
       and ($3::int is null or at.rank = $3)
     order by i.created_at, i.id, at.rank"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class InstanceLog:
    """The log of one process."""

    instance: str
    rank: int
    epoch: int
    source: LogSource


@dataclass(frozen=True, slots=True)
class DeploymentLogs:
    """The logs of a deployment."""

    logs: tuple[InstanceLog, ...]  # one for each instance and rank that has started
    lives: bool  # an instance may start, or start again, and add logs
    exists: bool = False  # the deployment is not deleted, so that it may get other instances


async def deployment_logs(
    connection: Reader, deployment: str, *, instances: list[str] | None = None, rank: int | None = None
) -> DeploymentLogs:
    """`instances` and `rank` None: all. Raises NotFoundError if there is no such deployment."""
    known = await connection.fetch("select bool_or(deleted_at is null) from deployments where name = $1", deployment)
    if (exists := known[0][0]) is None:
        raise NotFoundError(f"no deployment is named {deployment!r}; `gpuward get deployments` lists them")
    rows = await connection.fetch(_LOGS, deployment, instances, rank)
    living = await connection.fetch(
        """select 1 from instances i join deployments d on d.uid = i.deployment_uid
            where d.name = $1 and ($2::text[] is null or i.id = any($2))
              and i.phase not in ('succeeded', 'failed') limit 1""",
        deployment,
        instances,
    )
    return DeploymentLogs(_logs(rows), lives=bool(living), exists=exists)


async def earlier_logs(
    connection: Reader, deployment: str, starts: Iterable[tuple[str, int, int]]
) -> tuple[InstanceLog, ...]:
    """The known logs of these starts, which are given as instance, rank and epoch."""
    instances, ranks, epochs = zip(*starts, strict=True)
    rows = await connection.fetch(
        f"""select p.instance_id as id, p.rank, p.epoch, w.name, w.phase, w.proxy_address, {PROXY_SECRET},
                  w.proxy_certificate
             from unnest($2::text[], $3::bigint[], $4::bigint[]) as start (instance, rank, epoch)
             join processes p on p.instance_id = start.instance and p.rank = start.rank and p.epoch = start.epoch
             join instances i on i.id = p.instance_id
             join deployments d on d.uid = i.deployment_uid and d.name = $1
             join workers w on w.id = p.worker_id {JOIN_PROXY_SECRET}
            order by 1, 2, 3""",  # noqa: S608 - constants
        deployment,
        list(instances),
        list(ranks),
        list(epochs),
    )
    return _logs(rows)


async def check_instances(connection: Reader, deployment: str, instances: Sequence[str]) -> None:
    """Raises NotFoundError if the deployment does not have all of these instances."""
    rows = await connection.fetch(
        """select i.id from instances i join deployments d on d.uid = i.deployment_uid
            where d.name = $1 and i.id = any($2)""",
        deployment,
        list(instances),
    )
    known = {row["id"] for row in rows}
    if missing := [name for name in instances if name not in known]:
        raise NotFoundError(
            f"deployment {deployment!r} has no instance {missing[0]!r}; `gpuward ps {deployment}` lists its instances"
        )


def _logs(rows: Iterable[Row]) -> tuple[InstanceLog, ...]:
    return tuple(InstanceLog(row["id"], row["rank"], row["epoch"], log_source_of(row)) for row in rows)
