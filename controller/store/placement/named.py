"""The workers and GPUs that names in a manifest mean, as the rows are now."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from controller.store.core.database import Reader

_WORKERS: Final = "select name from workers where name = any($1) and deleted_at is null"
_GPUS: Final = """
    select d.uuid, w.name || ':' || d.index as at, d.vendor
      from devices d join workers w on w.id = d.worker_id and w.deleted_at is null
     where d.kind = 'gpu' and (d.uuid = any($1) or (w.name = any($2) and w.name || ':' || d.index = any($1)))
     order by d.uuid"""


@dataclass(frozen=True, slots=True)
class NamedDevices:
    """What names mean.

    Attributes:
        workers: the given workers that exist.
        gpus: by given name, the UUIDs and vendors of the GPUs that it means; a UUID means itself.
    """

    workers: Collection[str]
    gpus: Mapping[str, tuple[tuple[str, str], ...]]


async def named_devices(connection: Reader, workers: Collection[str], gpus: Collection[str]) -> NamedDevices:
    """Looks the names up."""
    known = await connection.fetch(_WORKERS, list(workers)) if workers else []
    owners = {name.rpartition(":")[0] for name in gpus}
    found = await connection.fetch(_GPUS, list(gpus), list(owners)) if gpus else []
    meant: dict[str, tuple[tuple[str, str], ...]] = {}
    for row in found:
        for name in {row["uuid"], row["at"]}.intersection(gpus):
            meant[name] = (*meant.get(name, ()), (row["uuid"], row["vendor"]))
    return NamedDevices(frozenset(row["name"] for row in known), meant)
