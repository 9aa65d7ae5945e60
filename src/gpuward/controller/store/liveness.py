"""Who was heard when, and the latest readings: narrow tables, written set-based about once a second by the hub."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from asyncpg.pool import PoolConnectionProxy

Connection: TypeAlias = "PoolConnectionProxy[Any]"

# Rows in key order: two flushes that met in another order would wait for each other in a circle.
_SEEN: Final = """
    insert into worker_liveness (worker_id, session, connected, clean, last_seen)
    select s.id, s.session, s.connected, s.clean, clock_timestamp() - s.age_s * interval '1 second'
      from unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::boolean[], $5::double precision[])
           as s(id, session, connected, clean, age_s)
      join workers w on w.id = s.id and w.session = s.session and w.deleted_at is null
     order by s.id
        on conflict (worker_id) do update
       set session = excluded.session, connected = excluded.connected, clean = excluded.clean,
           last_seen = excluded.last_seen
     where excluded.session >= worker_liveness.session
    returning worker_id"""
_READINGS: Final = """
    insert into device_readings (device, used_mib, utilization, read_at)
    select d.uuid, r.used_mib, r.utilization, clock_timestamp() - r.age_s * interval '1 second'
      from unnest($1::uuid[], $2::text[], $3::bigint[], $4::real[], $5::double precision[])
           as r(worker_id, device, used_mib, utilization, age_s)
      join devices d on d.uuid = r.device and d.worker_id = r.worker_id
     order by d.uuid
        on conflict (device) do update
       set used_mib = excluded.used_mib, utilization = excluded.utilization, read_at = excluded.read_at
     where excluded.read_at >= device_readings.read_at"""


@dataclass(frozen=True, slots=True)
class Seen:
    """How one connection stands. Its newest message came `age_s` seconds ago."""

    worker_id: str
    session: int
    connected: bool
    clean: bool
    age_s: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU's reading, `age_s` seconds old. MiB and percent; None is unknown."""

    worker_id: str
    device: str
    used_mib: int | None
    utilization: float | None
    age_s: float


async def write_seen(connection: Connection, seen: Sequence[Seen]) -> set[str]:
    """Writes how connections stand; each worker at most once.

    Returns:
        The workers for which it was written. For the others the session is no longer the newest, or they are deleted.
    """
    rows = await connection.fetch(
        _SEEN,
        [s.worker_id for s in seen],
        [s.session for s in seen],
        [s.connected for s in seen],
        [s.clean for s in seen],
        [s.age_s for s in seen],
    )
    return {str(row["worker_id"]) for row in rows}


async def write_readings(connection: Connection, readings: Sequence[Reading]) -> None:
    """Writes the latest reading of each device; each device at most once for a worker."""
    if not readings:
        return
    await connection.execute(
        _READINGS,
        [r.worker_id for r in readings],
        [r.device for r in readings],
        [r.used_mib for r in readings],
        [r.utilization for r in readings],
        [r.age_s for r in readings],
    )
