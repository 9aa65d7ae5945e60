"""Workers: whose a credential is and what a hello says (the hub's columns), and their phases (the reconciler's)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from asyncpg.pool import PoolConnectionProxy

from controller.domain.phases import WorkerPhase
from controller.domain.workers import WorkerChange, WorkersSnapshot, WorkerState
from controller.store.core.errors import LostGuardError
from schemas.wire import Hello, HostFacts

Connection: TypeAlias = "PoolConnectionProxy[Any]"

_BY_CREDENTIAL: Final = "select id, name, proxy_secret, deleted_at from workers where credential_hash = $1"
_HELLO: Final = """
    update workers w
       set session = w.session + 1, boot_id = $2, agent_version = $3, highest_term = $4, proxy_address = $5,
           reported_at = clock_timestamp()
      from (select id, boot_id, highest_term from workers where id = $1 and deleted_at is null for no key update) before
     where w.id = before.id
    returning w.session, before.boot_id as boot_before, before.highest_term as term_before,
              clock_timestamp() as at,
              (select term from lease where id = 1) as term"""
_CONNECTED: Final = """
    insert into worker_liveness (worker_id, session, connected, last_seen) values ($1, $2, true, clock_timestamp())
        on conflict (worker_id) do update
       set session = excluded.session, connected = true, clean = false, last_seen = excluded.last_seen"""
_HOST: Final = """
    update workers
       set hostname = $2, os = $3, arch = $4, driver = $5, simulated = $6, labels = $7, gpus_known = $8, engines = $9,
           reported_at = clock_timestamp()
     where id = $1"""
_GPUS_KNOWN: Final = "update workers set gpus_known = $2 where id = $1 and gpus_known <> $2"
# What holds claims on a silent worker ends by itself only where each revision there has said so.
_STATES: Final = """
    select w.id, w.name, w.phase, w.reason, w.session, w.reported_at, w.confirmed_dead, w.highest_term,
           coalesce(l.connected and l.session = w.session, false) as connected,
           coalesce(l.clean, false) as clean, l.last_seen, held.stops_within_s
      from workers w
      left join worker_liveness l on l.worker_id = w.id
     cross join lateral (
           select case when count(*) = 0 then 0 when bool_and(x.stop_after_s is not null)
                       then max(x.stop_after_s + x.drain_s) end as stops_within_s
             from (select nullif(coalesce(r.spec ->> 'stop_on_disconnect_after', 'none'), 'none')::double precision
                              as stop_after_s,
                          coalesce((r.spec ->> 'drain_time')::double precision, 30) as drain_s
                     from devices d
                     join claims c on c.device = d.uuid
                     join instances i on i.id = c.instance_id
                     join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
                    where d.worker_id = w.id and w.phase = 'unreachable') x) held
     where w.deleted_at is null
     order by w.id"""
_LOCK: Final = "select 1 from workers where id = any($1::uuid[]) order by id for no key update"
# Nobody is given up who was heard of since. A second's grace: each flush reckons the same moment anew.
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


class WorkerGoneError(Exception):
    """The worker was deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a credential belongs to."""

    id: str
    name: str
    proxy_secret: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class NewSession:
    """A hello's session. `at` is the database's time of the hello."""

    session: int
    term: int
    at: datetime
    rebooted: bool
    term_ahead: bool  # the agent has newly obeyed a later term than the one that leads


async def find_by_credential(connection: Connection, credential_hash: bytes) -> Identity | None:
    """The worker, deleted or not, whose credential has this SHA-256; None where there is none."""
    row = await connection.fetchrow(_BY_CREDENTIAL, credential_hash)
    if row is None:
        return None
    return Identity(str(row["id"]), row["name"], row["proxy_secret"], row["deleted_at"] is not None)


async def begin_session(connection: Connection, worker_id: str, hello: Hello, proxy_address: str) -> NewSession:
    """Raises the session number and holds the worker's row: from here on no older connection writes anything.

    Raises:
        WorkerGoneError: the worker is deleted.
    """
    row = await connection.fetchrow(
        _HELLO, worker_id, hello.boot_id, hello.agent_version, hello.highest_term, proxy_address
    )
    if row is None:
        raise WorkerGoneError(worker_id)
    await connection.execute(_CONNECTED, worker_id, row["session"])
    rebooted = row["boot_before"] not in ("", hello.boot_id)
    term_ahead = hello.highest_term > max(row["term"], row["term_before"])
    return NewSession(row["session"], row["term"], row["at"], rebooted, term_ahead)


async def write_host(connection: Connection, worker_id: str, host: HostFacts, *, gpus_known: bool) -> None:
    """Stores what a full report says of the host itself."""
    await connection.execute(
        _HOST, worker_id, host.hostname, host.os, host.arch, host.driver, host.simulated, host.labels, gpus_known,
        None if host.engines is None else list(host.engines),
    )  # fmt: skip


async def write_gpus_known(connection: Connection, worker_id: str, *, gpus_known: bool) -> None:
    """Stores whether the GPUs could be read, where that has changed."""
    await connection.execute(_GPUS_KNOWN, worker_id, gpus_known)


async def read_workers(connection: Connection) -> WorkersSnapshot:
    """All undeleted workers; the connection must be in one REPEATABLE READ transaction."""
    lease = await connection.fetchrow("select term, acquired_at, clock_timestamp() as now from lease where id = 1")
    if lease is None:
        raise LostGuardError("the lease row is missing")
    rows = await connection.fetch(_STATES)
    workers = tuple(
        WorkerState(
            id=str(row["id"]),
            name=row["name"],
            phase=WorkerPhase(row["phase"]),
            reason=row["reason"],
            session=row["session"],
            reported=row["reported_at"] is not None,
            connected=row["connected"],
            clean=row["clean"],
            last_seen=row["last_seen"],
            confirmed_dead=row["confirmed_dead"] is not None,
            highest_term=row["highest_term"],
            stops_within_s=row["stops_within_s"],
        )
        for row in rows
    )
    return WorkersSnapshot(lease["now"], lease["term"], lease["acquired_at"], workers)


async def write_phases(connection: Connection, changes: Sequence[WorkerChange]) -> None:
    """Writes phases where the workers still are as the decision saw them.

    Raises:
        LostGuardError: one of them is not; the transaction must be given up.
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
    if len(rows) != len(changes):
        raise LostGuardError(f"{len(changes) - len(rows)} workers changed since they were read")


async def deployments_on(connection: Connection, workers: Sequence[str]) -> set[str]:
    """The deployments that hold claims on any of the workers."""
    return {str(row["deployment_uid"]) for row in await connection.fetch(_DEPLOYMENTS_ON, list(workers))}
