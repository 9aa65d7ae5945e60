"""What agents read of GPUs for operators and metrics: one narrow row for each GPU. Nothing is decided by it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.store.core.database import Connection

_WRITE: Final = """
    insert into device_details (device, details, read_at)
    select d.uuid, r.details::jsonb, clock_timestamp()
      from unnest($1::uuid[], $2::text[], $3::text[]) as r(worker_id, device, details)
      join devices d on d.uuid = r.device and d.worker_id = r.worker_id
     order by d.uuid
        on conflict (device) do update set details = excluded.details, read_at = excluded.read_at"""


@dataclass(frozen=True, slots=True)
class DetailsRow:
    """One GPU's details as JSON, from this worker."""

    worker_id: str
    device: str
    details: str


async def write_details(connection: Connection, rows: Sequence[DetailsRow]) -> None:
    """Writes the details of these GPUs; each at most once for a worker. Those of another worker's GPU are left out."""
    if rows:
        columns = [r.worker_id for r in rows], [r.device for r in rows], [r.details for r in rows]
        await connection.execute(_WRITE, *columns)
