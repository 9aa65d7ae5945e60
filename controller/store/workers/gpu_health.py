"""What is wrong with a worker's GPUs, and which instances and deployments hold them."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.store.core.database import Connection

_SICK: Final = """
    select uuid, health_reason from devices
     where worker_id = $1 and kind = 'gpu' and health = 'unhealthy'
       and (present or not starts_with(uuid, 'GPU-unreadable-'))
     order by index, uuid"""
_HOLDERS: Final = """
    select distinct c.device, c.instance_id, i.deployment_uid::text as deployment
      from claims c join instances i on i.id = c.instance_id join devices d on d.uuid = c.device
     where d.kind = 'gpu' and d.worker_id = $1 and ($2::text[] is null or d.uuid = any($2))
     order by c.device, c.instance_id"""


@dataclass(frozen=True, slots=True)
class GpuHolders:
    """Instances by the UUID of a GPU that they hold, and all their deployments."""

    instances: dict[str, list[str]]
    deployments: frozenset[str]

    def all(self) -> list[str]:
        """All instances, by name."""
        return sorted({instance for held in self.instances.values() for instance in held})


async def sick_gpus(connection: Connection, worker_id: str) -> list[tuple[str, str]]:
    """The worker's unhealthy GPUs, each with its reason."""
    return [(row["uuid"], row["health_reason"]) for row in await connection.fetch(_SICK, worker_id)]


async def gpu_holders(connection: Connection, worker_id: str, uuids: Iterable[str] | None = None) -> GpuHolders:
    """What holds these GPUs of the worker, or all of them."""
    rows = await connection.fetch(_HOLDERS, worker_id, None if uuids is None else list(uuids))
    held: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        held[row["device"]].append(row["instance_id"])
    return GpuHolders(dict(held), frozenset(row["deployment"] for row in rows))
