"""Liveness of connections and the latest readings: narrow tables that the hub writes set-based once a second."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.store.core.database import Connection

# Rows in key order, so that two flushes never deadlock.
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
_NEWEST: Final = """
    select w.id, w.session from unnest($1::uuid[], $2::bigint[]) as s(id, session)
      join workers w on w.id = s.id and w.session = s.session and w.deleted_at is null"""
# Foreign memory is used memory beyond the claims, by this reading and by the one before: a reading may be older than
# the release of a claim, and contain its memory. An unknown reading leaves the last known value. Device rows change
# only if foreign memory appears, disappears or changes by much, since placement reads every change of them. It needs no
# age: once readings stop, the worker is silent or its GPUs are unknown, and nothing is placed there anyway.
_READINGS: Final = """
    with reported as (
        select d.uuid, r.used_mib, r.utilization, r.read_at, d.memory_mib, d.claimed_mib,
               greatest(coalesce(r.used_mib - d.claimed_mib, b.foreign_mib), 0) as foreign_mib,
               greatest(coalesce(b.foreign_mib, r.used_mib - d.claimed_mib), 0) as foreign_before
          from (select *, clock_timestamp() - age_s * interval '1 second' as read_at
                  from unnest($1::uuid[], $2::text[], $3::bigint[], $4::real[], $5::double precision[])
                       as r(worker_id, device, used_mib, utilization, age_s)) r
          join devices d on d.uuid = r.device and d.worker_id = r.worker_id
          left join device_readings b on b.device = d.uuid
         where b.device is null or r.read_at >= b.read_at
    ), kept as (
        insert into device_readings (device, used_mib, utilization, read_at, foreign_mib)
        select uuid, used_mib, utilization, read_at, foreign_mib from reported order by uuid
            on conflict (device) do update
           set used_mib = excluded.used_mib, utilization = excluded.utilization, read_at = excluded.read_at,
               foreign_mib = excluded.foreign_mib
         where excluded.read_at >= device_readings.read_at
    ), proven as (
        select uuid, case when both_mib >= greatest($6::bigint, memory_mib * $7::float8) then both_mib else 0 end as mib
          from (select *, least(foreign_mib, foreign_before) as both_mib from reported) x
    )
    update devices d
       set foreign_mib = n.mib
      from (select o.uuid, p.mib, o.foreign_mib as before_mib
              from proven p join devices o on o.uuid = p.uuid
             where (p.mib = 0) <> (o.foreign_mib = 0) or abs(p.mib - o.foreign_mib) > $8
             order by o.uuid for no key update of o) n
     where d.uuid = n.uuid
    returning d.uuid, d.worker_id, d.index, d.foreign_mib, n.before_mib"""
# A driver and the contexts of engines use some unclaimed memory; up to this much counts as zero.
FOREIGN_FLOOR_MIB: Final = 512
FOREIGN_FLOOR_SHARE: Final = 0.03
_CHANGED_MIB: Final = 256


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """State of an agent's connection."""

    worker_id: str
    session: int
    connected: bool
    clean: bool
    age_s: float  # its newest message's age


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU's reading. MiB and percent; None is unknown."""

    worker_id: str
    device: str
    used_mib: int | None
    utilization: float | None
    age_s: float


@dataclass(frozen=True, slots=True)
class ForeignUse:
    """Used memory of a GPU beyond its claims, now and before. MiB."""

    worker_id: str
    device: str
    index: int
    foreign_mib: int
    before_mib: int


async def write_liveness(connection: Connection, states: Sequence[ConnectionState]) -> set[str]:
    """Writes the state of connections, each worker at most once; returns the ids of workers that were written.

    Skips outdated sessions and deleted workers.
    """
    rows = await connection.fetch(
        _SEEN,
        [s.worker_id for s in states],
        [s.session for s in states],
        [s.connected for s in states],
        [s.clean for s in states],
        [s.age_s for s in states],
    )
    return {str(row["worker_id"]) for row in rows}


async def newest_sessions(connection: Connection, sessions: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Returns the sessions, with their workers, that are the newest of workers that are not deleted."""
    rows = await connection.fetch(_NEWEST, [worker for worker, _ in sessions], [number for _, number in sessions])
    return {(str(row["id"]), row["session"]) for row in rows}


async def write_readings(connection: Connection, readings: Sequence[Reading]) -> list[ForeignUse]:
    """Writes readings, each device at most once for a worker; returns GPUs whose foreign memory changed by much."""
    if not readings:
        return []
    rows = await connection.fetch(
        _READINGS,
        [r.worker_id for r in readings],
        [r.device for r in readings],
        [r.used_mib for r in readings],
        [r.utilization for r in readings],
        [r.age_s for r in readings],
        FOREIGN_FLOOR_MIB,
        FOREIGN_FLOOR_SHARE,
        _CHANGED_MIB,
    )
    return [
        ForeignUse(str(row["worker_id"]), row["uuid"], row["index"], row["foreign_mib"], row["before_mib"])
        for row in rows
    ]
