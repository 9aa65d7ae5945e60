"""Since when workers are not ready and GPUs are unhealthy."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controller.store.core.database import Reader

_MOST_GPUS: Final = 1_000  # of more, the moments of the rest stay unknown: each is looked up in the events
_WORKERS: Final = """
    select w.name, coalesce(case when w.phase in ('unreachable', 'lost') then l.last_seen end, w.phase_since) as since
      from workers w left join worker_liveness l on l.worker_id = w.id
     where w.deleted_at is null and w.phase <> 'ready'"""
_GPUS: Final = """
    select d.uuid, (select max(e.at) from events e
                     where e.objects @> array['gpu:' || d.uuid] and e.reason in ('gpu_unhealthy', 'gpu_missing')) since
      from devices d
     where d.kind = 'gpu' and (d.health <> 'ok' or not d.present) order by d.uuid limit $1"""


@dataclass(frozen=True, slots=True)
class Absences:
    """Moments by name of workers that are not ready, and by UUID of unhealthy GPUs. A missing key is unknown."""

    workers: dict[str, datetime] = field(default_factory=dict)
    gpus: dict[str, datetime] = field(default_factory=dict)


async def read_absences(connection: Reader) -> Absences:
    """All of this moment."""
    workers = await connection.fetch(_WORKERS)
    gpus = await connection.fetch(_GPUS, _MOST_GPUS)
    return Absences(
        {row["name"]: row["since"] for row in workers if row["since"] is not None},
        {row["uuid"]: row["since"] for row in gpus if row["since"] is not None},
    )
