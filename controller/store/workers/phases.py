"""Workers' phases: the snapshot that the workers reconciler decides on, and the guarded write of its decision."""

from collections.abc import Sequence
from typing import Final

from controller.domain.phases import WorkerPhase
from controller.domain.workers import WorkerChange, WorkersSnapshot, WorkerState
from controller.store.core.database import Connection

# Instances on a silent worker end by themselves only if all of their revisions set stop_on_disconnect_after.
_STATES: Final = """
    select w.id, w.name, w.phase, w.reason, w.session, w.reported_at, w.confirmed_dead, w.highest_term,
           coalesce(l.connected and l.session = w.session, false) as connected,
           coalesce(l.clean, false) as clean, l.last_seen, held.stops_within_s,
           case when w.quarantined_until > clock_timestamp() then w.quarantine_reason else '' end as quarantine,
           coalesce(extract(epoch from w.quarantined_until - clock_timestamp()), 0)::float8 as quarantined_for_s
      from workers w
      left join worker_liveness l on l.worker_id = w.id
     cross join lateral (
           select case when count(*) = 0 then 0 when bool_and(x.stop_after_s is not null)
                       then max(x.stop_after_s + x.drain_s) end as stops_within_s
             from (select nullif(coalesce(r.spec ->> 'stop_on_disconnect_after', 'none'), 'none')::double precision
                              as stop_after_s,
                          case r.spec ->> 'drain_time'
                              when 'auto' then 600  -- at most: the agent knows which one it is
                              else coalesce((r.spec ->> 'drain_time')::double precision, 30) end as drain_s
                     from devices d
                     join claims c on c.device = d.uuid
                     join instances i on i.id = c.instance_id
                     join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
                    where d.worker_id = w.id and w.phase = 'unreachable') x) held
     where w.deleted_at is null
     order by w.id"""
_LEASE: Final = """
    select term, acquired_at, clock_timestamp() as now,
           case when settled_at >= cut_at then null else cut_at end as cut_at
      from lease where id = 1"""
_LOCK: Final = "select 1 from workers where id = any($1::uuid[]) order by id for no key update"
# A worker with a later heartbeat is not lost. One second of grace, because each flush computes the same time again.
_PHASES: Final = """
    update workers w
       set phase = c.new, reason = c.reason, fence_until = c.fence_until,
           phase_since = case when c.new = c.old then w.phase_since else clock_timestamp() end
      from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[])
           as c(id, session, old, new, reason, fence_until, last_seen)
     where w.id = c.id and w.session = c.session and w.phase = c.old and w.deleted_at is null
       and (c.new not in ('unreachable', 'lost')
            or not exists (select 1 from worker_liveness l
                            where l.worker_id = c.id
                              and l.last_seen > coalesce(c.last_seen + interval '1 second', '-infinity')))
    returning w.id"""
_DEPLOYMENTS_ON: Final = """
    select distinct i.deployment_uid from devices d
      join claims c on c.device = d.uuid join instances i on i.id = c.instance_id
     where d.worker_id = any($1::uuid[])"""


async def read_workers(connection: Connection) -> WorkersSnapshot:
    """All undeleted workers; the connection must be in one REPEATABLE READ transaction."""
    lease = await connection.fetchrow(_LEASE)
    if lease is None:
        raise RuntimeError("the lease row is missing")
    rows = await connection.fetch(_STATES)
    workers = tuple(
        WorkerState(
            id=str(row["id"]),
            name=row["name"],
            phase=WorkerPhase(row["phase"]),
            reason=row["reason"],
            session=row["session"],
            reported=row["reported_at"] is not None,
            reported_at=row["reported_at"],
            connected=row["connected"],
            clean=row["clean"],
            last_seen=row["last_seen"],
            confirmed_dead=row["confirmed_dead"] is not None,
            highest_term=row["highest_term"],
            stops_within_s=row["stops_within_s"],
            quarantine=row["quarantine"],
            quarantined_for_s=max(0.05, row["quarantined_for_s"]),
        )
        for row in rows
    )
    return WorkersSnapshot(lease["now"], lease["term"], lease["acquired_at"], workers, lease["cut_at"])


async def write_phases(connection: Connection, changes: Sequence[WorkerChange]) -> set[str]:
    """Writes the phases of the workers that have not changed since the decision's snapshot; returns their ids.

    The rest waits for the next decision: while thousands of agents return, some have always changed.
    """
    await connection.execute(_LOCK, [c.id for c in changes])
    rows = await connection.fetch(
        _PHASES,
        [c.id for c in changes],
        [c.session for c in changes],
        [c.old for c in changes],
        [c.new for c in changes],
        [c.reason for c in changes],
        [c.fence_until for c in changes],
        [c.last_seen for c in changes],
    )
    return {str(row["id"]) for row in rows}


async def deployments_on(connection: Connection, workers: Sequence[str]) -> set[str]:
    """Returns the uids of deployments that hold claims on any of the workers."""
    return {str(row["deployment_uid"]) for row in await connection.fetch(_DEPLOYMENTS_ON, list(workers))}
