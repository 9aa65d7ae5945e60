"""Where the logs of instances are: for each rank the worker on which its newest start runs or ran."""

from dataclasses import dataclass
from typing import Final

from controller.store.core.database import Reader
from controller.store.core.refusals import NotFoundError
from controller.store.views.instances import LogSource

# Of each rank the newest start. A claim goes before a report: its process may not be reported yet.
_LOGS: Final = """
    select i.id, at.rank, at.epoch, w.name, w.phase, w.proxy_address, w.proxy_secret
      from instances i
      join deployments d on d.uid = i.deployment_uid
     cross join lateral (
           select distinct on (rank) rank, epoch, worker_id
             from (select p.rank, p.epoch, p.worker_id, 0 as claimed from processes p where p.instance_id = i.id
                   union all
                   select c.rank, c.epoch, v.worker_id, 1 from claims c join devices v on v.uuid = c.device
                    where c.instance_id = i.id) known
            order by rank, epoch desc, claimed) at
      join workers w on w.id = at.worker_id
     where ($1::text is null or d.name = $1) and ($2::text[] is null or i.id = any($2))
       and ($3::int is null or at.rank = $3)
     order by i.created_at, i.id, at.rank"""


@dataclass(frozen=True, slots=True)
class InstanceLog:
    """The log of one process."""

    instance: str
    rank: int
    epoch: int
    source: LogSource


@dataclass(frozen=True, slots=True)
class DeploymentLogs:
    """The logs of a deployment.

    Attributes:
        logs: of each instance and rank that has started.
        lives: whether more may come: an instance exists that may start, or start again.
        exists: whether the deployment is not deleted, so that it may get other instances.
    """

    logs: tuple[InstanceLog, ...]
    lives: bool
    exists: bool = False


async def deployment_logs(
    connection: Reader, deployment: str, *, instances: list[str] | None = None, rank: int | None = None
) -> DeploymentLogs:
    """The logs of a deployment, or of some of its instances, or of one rank of each.

    Raises:
        NotFoundError: there is no such deployment.
    """
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
    logs = tuple(
        InstanceLog(
            row["id"],
            row["rank"],
            row["epoch"],
            LogSource(row["name"], row["phase"], row["proxy_address"], row["proxy_secret"]),
        )
        for row in rows
    )
    return DeploymentLogs(logs, lives=bool(living), exists=exists)
