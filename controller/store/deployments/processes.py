"""What agents report of their processes. An exit is final for its epoch; a process that nobody owns is named as stray.

Locks are taken in one order: workers by id, instances by id, then processes, so that batches never wait in a circle.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from asyncpg.pool import PoolConnectionProxy

from schemas.wire import ProcessReport

Connection: TypeAlias = "PoolConnectionProxy[Any]"

_FENCE: Final = """
    select w.id, w.session from workers w join unnest($1::uuid[], $2::bigint[]) as s(id, session) on s.id = w.id
     where w.session = s.session and w.deleted_at is null
     order by w.id for share of w"""
_HOLD_INSTANCES: Final = "select id from instances where id = any($1) order by id for key share"
_STANDING: Final = """
    select r.n, i.deployment_uid, p.state, p.session, p.seq,
           p.worker_id = r.worker_id as recorded,
           exists (select 1 from claims c join devices d on d.uuid = c.device
                    where (c.instance_id, c.epoch, c.rank) = (r.instance_id, r.epoch, r.rank)
                      and d.worker_id = r.worker_id) as claimed,
           exists (select 1 from commands c
                    where (c.instance_id, c.epoch, c.rank) = (r.instance_id, r.epoch, r.rank)
                      and c.worker_id = r.worker_id) as ordered
      from unnest($1::integer[], $2::uuid[], $3::text[], $4::integer[], $5::integer[])
           as r(n, worker_id, instance_id, epoch, rank)
      left join instances i on i.id = r.instance_id
      left join processes p on (p.instance_id, p.epoch, p.rank) = (r.instance_id, r.epoch, r.rank)"""
_UPSERT: Final = """
    insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, message, pid, ready, seq,
                           session, reported_at)
    select r.*, clock_timestamp()
      from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::text[], $6::text[], $7::integer[],
                  $8::text[], $9::integer[], $10::boolean[], $11::bigint[], $12::bigint[]) as r
     order by 1, 2, 3
        on conflict (instance_id, epoch, rank) do update
       set state = excluded.state, reason = excluded.reason, exit_code = excluded.exit_code,
           message = excluded.message, pid = excluded.pid, ready = excluded.ready, seq = excluded.seq,
           session = excluded.session, reported_at = excluded.reported_at
     where processes.worker_id = excluded.worker_id
       and (excluded.session, excluded.seq) > (processes.session, processes.seq)
       and (processes.state <> 'exited' or excluded.state = 'exited')
    returning instance_id"""
_GONE: Final = """
    update processes p
       set state = 'exited', reason = 'gone', exit_code = null, session = $2, reported_at = clock_timestamp(),
           message = 'the agent knows of no such process any more'
     where p.worker_id = $1 and p.state <> 'exited'
       and (p.instance_id, p.epoch, p.rank) not in (
           select * from unnest($3::text[], $4::integer[], $5::integer[]))
       and ($6::bigint is null or p.seq <= $6)
    returning p.instance_id, p.epoch, p.rank,
              (select deployment_uid from instances i where i.id = p.instance_id) as deployment_uid"""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A report with the connection on which it came."""

    worker_id: str
    session: int
    report: ProcessReport


@dataclass(frozen=True, slots=True)
class Stray:
    """A live process that holds no claim: nothing in the ledger knows of it, so it must go."""

    worker_id: str
    instance: str
    epoch: int
    rank: int


@dataclass(slots=True)
class Written:
    """What became of a batch."""

    deployments: set[str] = field(default_factory=set)
    strays: list[Stray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the ledger knows of a reported process."""

    report: SessionReport
    deployment: str | None  # None: there is no such instance
    claimed: bool
    recorded: bool
    ordered: bool
    ended_before: bool  # it had ended, as was reported before this

    @property
    def alive(self) -> bool:
        """Whether the report speaks of something that runs."""
        return self.report.report.state != "exited"

    @property
    def stray(self) -> bool:
        """Whether it runs although nothing is claimed for it (any more)."""
        return self.alive and (not self.claimed or self.ended_before)

    @property
    def writable(self) -> bool:
        """Whether the report belongs into the ledger."""
        known = self.claimed or self.recorded or (self.ordered and not self.alive)
        return self.deployment is not None and known and not self.stray


async def lock_sessions(connection: Connection, sessions: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Fences a transaction: locks the workers whose newest session is the given one; returns (worker, session) of each.

    For the others a newer hello has come, or they are deleted: nothing of the older connection may be written.
    """
    pairs = sorted(set(sessions))
    rows = await connection.fetch(_FENCE, [worker for worker, _ in pairs], [session for _, session in pairs])
    return {(str(row["id"]), row["session"]) for row in rows}


async def write_reports(connection: Connection, reports: Sequence[SessionReport]) -> Written:
    """Writes reports whose sessions are held; a report that is not newer than what is stored changes nothing."""
    written = Written()
    if not reports:
        return written
    await connection.execute(_HOLD_INSTANCES, sorted({r.report.instance for r in reports}))
    standings = await _look_up(connection, reports)
    written.strays = [
        Stray(s.report.worker_id, s.report.report.instance, s.report.report.epoch, s.report.report.rank)
        for s in standings
        if s.stray
    ]
    rows = _newest_of_each([s for s in standings if s.writable])
    changed = {row["instance_id"] for row in await connection.fetch(_UPSERT, *_columns(rows))} if rows else set()
    written.deployments = {s.deployment for s in rows if s.deployment and s.report.report.instance in changed}
    return written


async def end_missing(
    connection: Connection, worker_id: str, session: int, held: Iterable[ProcessReport], report_seq: int | None = None
) -> list[tuple[str, str, int, int]]:
    """Ends in the ledger what the worker does not hold any more.

    Args:
        connection: in the transaction of its hello.
        worker_id: whose hello it is.
        session: that hello's.
        held: everything that it reports.
        report_seq: its newest report's number when it said hello. A hello may be written late, after its sender gave
            up and said another: what was reported since is not missing from it.

    Returns:
        (deployment, instance, epoch, rank) of each.
    """
    keys = [(r.instance, r.epoch, r.rank) for r in held]
    rows = await connection.fetch(
        _GONE, worker_id, session, [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys], report_seq
    )
    return [(str(row["deployment_uid"]), row["instance_id"], row["epoch"], row["rank"]) for row in rows]


async def _look_up(connection: Connection, reports: Sequence[SessionReport]) -> list[_Standing]:
    rows = await connection.fetch(
        _STANDING,
        list(range(len(reports))),
        [r.worker_id for r in reports],
        [r.report.instance for r in reports],
        [r.report.epoch for r in reports],
        [r.report.rank for r in reports],
    )
    return [_standing(reports[row["n"]], row) for row in rows]


def _standing(report: SessionReport, row: Any) -> _Standing:
    newer = row["session"] is None or (report.session, report.report.seq) > (row["session"], row["seq"])
    return _Standing(
        report=report,
        deployment=str(row["deployment_uid"]) if row["deployment_uid"] is not None else None,
        claimed=row["claimed"],
        recorded=bool(row["recorded"]),
        ordered=row["ordered"],
        ended_before=row["state"] == "exited" and newer,
    )


def _newest_of_each(standings: Iterable[_Standing]) -> list[_Standing]:
    """One report for each process, for one statement cannot write a row twice. The claim's worker speaks for it."""
    newest: dict[tuple[str, int, int], _Standing] = {}
    for s in sorted(standings, key=lambda s: (s.claimed, s.report.session, s.report.report.seq)):
        newest[s.report.report.instance, s.report.report.epoch, s.report.report.rank] = s
    return list(newest.values())


def _columns(standings: Sequence[_Standing]) -> tuple[list[Any], ...]:
    reports = [s.report.report for s in standings]
    return (
        [r.instance for r in reports],
        [r.epoch for r in reports],
        [r.rank for r in reports],
        [s.report.worker_id for s in standings],
        [r.state for r in reports],
        [r.reason for r in reports],
        [r.exit_code for r in reports],
        [r.message for r in reports],
        [r.pid for r in reports],
        [r.ready for r in reports],
        [r.seq for r in reports],
        [s.report.session for s in standings],
    )
