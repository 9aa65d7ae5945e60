"""Agents' reports of their processes. An exit is final for its epoch; a live process without a claim is a stray.

Locks are taken in one order, so that batches never deadlock: workers by id, instances by id, then processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.store.core.database import Connection
from controller.store.deployments.adoption import update_orphans
from controller.store.deployments.image_digests import RanImage, keep_commits, keep_digests
from schemas.wire import ProcessReport

_FENCE: Final = """
    select w.id, w.session from workers w join unnest($1::uuid[], $2::bigint[]) as s(id, session) on s.id = w.id
     where w.session = s.session and w.deleted_at is null
     order by w.id for share of w"""
_LOCK_INSTANCES: Final = "select id from instances where id = any($1) order by id for key share"
# A ledger that lost commits knows a lower epoch than the agent to which it had sent the instance. The next start must
# be above the agent's. No number of starts comes near the bound, beyond which an epoch could not rise.
_SEEN: Final = """
    update instances i set seen_epoch = r.epoch
      from (select id, max(epoch) as epoch
              from unnest($1::text[], $2::integer[], $3::uuid[]) as r(id, epoch, worker_id)
             where exists (select 1 from commands c where c.instance_id = r.id and c.worker_id = r.worker_id)
                or exists (select 1 from processes p where p.instance_id = r.id and p.worker_id = r.worker_id)
             group by id) r
     where i.id = r.id and r.epoch > greatest(i.epoch, i.seen_epoch) and r.epoch < 2 ^ 30"""
_LEDGER: Final = """
    select r.n, i.deployment_uid, p.state, p.ready, p.session, p.seq,
           r.epoch > greatest(i.epoch, i.seen_epoch) as ahead,
           p.worker_id = r.worker_id as recorded,
           exists (select 1 from claims c join devices d on d.uuid = c.device
                    where (c.instance_id, c.epoch, c.rank) = (r.instance_id, r.epoch, r.rank)
                      and d.worker_id = r.worker_id) as claimed,
           exists (select 1 from commands c
                    where (c.instance_id, c.epoch, c.rank) = (r.instance_id, r.epoch, r.rank)
                      and c.worker_id = r.worker_id) as ordered,
           exists (select 1 from found_processes f
                    where (f.instance_id, f.epoch, f.rank) = (r.instance_id, r.epoch, r.rank)
                      and f.worker_id = r.worker_id) as orphan
      from unnest($1::integer[], $2::uuid[], $3::text[], $4::integer[], $5::integer[])
           as r(n, worker_id, instance_id, epoch, rank)
      left join instances i on i.id = r.instance_id
      left join processes p on (p.instance_id, p.epoch, p.rank) = (r.instance_id, r.epoch, r.rank)"""
_UPSERT: Final = """
    insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, message, pid, ready, seq,
                           session, image_digest, reported_at)
    select r.*, clock_timestamp()
      from unnest($1::text[], $2::integer[], $3::integer[], $4::uuid[], $5::text[], $6::text[], $7::integer[],
                  $8::text[], $9::integer[], $10::boolean[], $11::bigint[], $12::bigint[], $13::text[]) as r
     order by 1, 2, 3
        on conflict (instance_id, epoch, rank) do update
       set state = excluded.state, reason = excluded.reason, exit_code = excluded.exit_code,
           message = excluded.message, pid = excluded.pid, ready = excluded.ready, seq = excluded.seq,
           session = excluded.session, image_digest = coalesce(excluded.image_digest, processes.image_digest),
           reported_at = case when processes.state = 'exited' then processes.reported_at else excluded.reported_at end
     where processes.worker_id = excluded.worker_id
       and (excluded.session, excluded.seq) > (processes.session, processes.seq)
       and (processes.state <> 'exited' or excluded.state = 'exited')
    returning instance_id, epoch, rank"""
_MISSING: Final = """
    update processes p
       set state = 'exited', reason = 'gone', exit_code = null, session = $2, reported_at = clock_timestamp(),
           message = 'the agent no longer has this process'
     where p.worker_id = $1 and p.state <> 'exited'
       and (p.instance_id, p.epoch, p.rank) not in (
           select * from unnest($3::text[], $4::integer[], $5::integer[]))
       and ($6::bigint is null or p.seq <= $6)
    returning p.instance_id, p.epoch, p.rank,
              (select deployment_uid from instances i where i.id = p.instance_id) as deployment_uid"""
# Starts whose report was lost or never sent. The hello names all running processes, so these have ended.
_NEVER_REPORTED: Final = """
    with held as materialized (
        select distinct h.instance_id, h.epoch, h.rank from devices d join claims h on h.device = d.uuid
         where d.worker_id = $1)
    insert into processes (instance_id, epoch, rank, worker_id, state, reason, message,
                           session, seq, ready, reported_at)
    select c.instance_id, c.epoch, c.rank, c.worker_id, 'exited', 'gone', 'the agent no longer has this process',
           $2, 0, false, clock_timestamp()
      from held join commands c using (instance_id, epoch, rank)
     where c.worker_id = $1 and c.verb = 'start' and c.state = 'accepted'
       and (c.instance_id, c.epoch, c.rank) not in (
           select * from unnest($3::text[], $4::integer[], $5::integer[]))
       and not exists (select 1 from processes p
                        where (p.instance_id, p.epoch, p.rank) = (c.instance_id, c.epoch, c.rank))
     order by 1, 2, 3
    returning instance_id, epoch, rank,
              (select deployment_uid from instances i where i.id = instance_id) as deployment_uid"""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A report with its connection. `unread`: its process has a receipt that cannot be read here."""

    worker_id: str
    session: int
    report: ProcessReport
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Stray:
    """A live process without a claim, which must be stopped."""

    worker_id: str
    instance: str
    epoch: int
    rank: int


@dataclass(slots=True)
class Written:
    """The result of writing a batch."""

    deployments: set[str] = field(default_factory=set)
    changed: set[tuple[str, int, int]] = field(default_factory=set)  # processes: instance, epoch, rank
    strays: list[Stray] = field(default_factory=list)
    orphans: list[SessionReport] = field(default_factory=list)  # live, maybe lost by the ledger, not yet decided on


@dataclass(frozen=True, slots=True)
class _Reported:
    """A report with the ledger's state of its process."""

    report: SessionReport
    deployment: str | None  # None: the instance does not exist
    claimed: bool
    recorded: bool
    ordered: bool
    ended_before: bool  # by an earlier report
    ran_before: bool  # by an earlier report
    ahead: bool  # its epoch is above all that the ledger knows
    orphan: bool  # the ledger may have lost it, and the leader has yet to decide

    @property
    def alive(self) -> bool:
        return self.report.report.state != "exited"

    @property
    def stray(self) -> bool:
        """Whether it runs without a claim, or after its exit was reported."""
        return self.alive and not self.undecided and (not self.claimed or self.ended_before)

    @property
    def undecided(self) -> bool:
        """Whether it is neither in the ledger nor a stray yet."""
        return not self.claimed and (self.orphan or (self.report.unread and not (self.ordered or self.recorded)))

    @property
    def writable(self) -> bool:
        known = self.claimed or self.recorded or (self.ordered and not self.alive)
        return self.deployment is not None and known and not self.stray and not (self.alive and self.undecided)


async def lock_sessions(connection: Connection, sessions: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Locks the workers whose newest session is the given one; returns (worker, session) of each.

    This fences the transaction. Missing workers have a newer hello or are deleted: nothing of the older connection may
    be written.
    """
    pairs = sorted(set(sessions))
    rows = await connection.fetch(_FENCE, [worker for worker, _ in pairs], [session for _, session in pairs])
    return {(str(row["id"]), row["session"]) for row in rows}


async def write_reports(connection: Connection, reports: Sequence[SessionReport]) -> Written:
    """Writes reports whose sessions are locked; a report that is not newer than the stored one changes nothing."""
    written = Written()
    if not reports:
        return written
    await connection.execute(_LOCK_INSTANCES, sorted({r.report.instance for r in reports}))
    reported = await _compare(connection, reports)
    written.strays = [
        Stray(s.report.worker_id, s.report.report.instance, s.report.report.epoch, s.report.report.rank)
        for s in reported
        if s.stray
    ]
    if undecided := [s.report for s in reported if s.undecided]:
        await update_orphans(connection, [(r.worker_id, r.report) for r in undecided])
        written.orphans = [r for r in undecided if r.report.state != "exited"]
    if ahead := [s.report for s in reported if s.ahead]:
        await connection.execute(
            _SEEN,
            [r.report.instance for r in ahead],
            [r.report.epoch for r in ahead],
            [r.worker_id for r in ahead],
        )
    rows = _newest_of_each([s for s in reported if s.writable])
    if rows:
        written.changed = {tuple(row) for row in await connection.fetch(_UPSERT, *_columns(rows))}
    changed = {instance for instance, *_ in written.changed}
    of_claims = [RanImage(s.report.report, s.ran_before) for s in rows if s.claimed]
    await keep_digests(connection, of_claims)
    await keep_commits(connection, of_claims)
    written.deployments = {s.deployment for s in rows if s.deployment and s.report.report.instance in changed}
    return written


async def end_missing(
    connection: Connection,
    worker_id: str,
    session: int,
    held: Iterable[ProcessReport],
    report_seq: int | None = None,
    *,
    names_all: bool = False,
) -> list[tuple[str, str, int, int]]:
    """Marks processes as exited that the worker does not report any more.

    Args:
        connection: the transaction of the worker's hello.
        worker_id: the sender of the hello.
        session: the hello's session.
        held: all processes that it reports.
        report_seq: number of its newest report at the hello. A hello may be written late, after its sender gave up and
            sent another: processes reported since then are not missing from it.
        names_all: no start can have been accepted since the hello was made, as after a boot or a loss of commits. So
            processes have ended too of which the ledger knows only an accepted start.

    Returns:
        (deployment, instance, epoch, rank) of each.
    """
    keys = [(r.instance, r.epoch, r.rank) for r in held]
    named = [k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys]
    rows = await connection.fetch(_MISSING, worker_id, session, *named, report_seq)
    if names_all:
        rows += await connection.fetch(_NEVER_REPORTED, worker_id, session, *named)
    return [(str(row["deployment_uid"]), row["instance_id"], row["epoch"], row["rank"]) for row in rows]


async def _compare(connection: Connection, reports: Sequence[SessionReport]) -> list[_Reported]:
    rows = await connection.fetch(
        _LEDGER,
        list(range(len(reports))),
        [r.worker_id for r in reports],
        [r.report.instance for r in reports],
        [r.report.epoch for r in reports],
        [r.report.rank for r in reports],
    )
    return [_reported(reports[row["n"]], row) for row in rows]


def _reported(report: SessionReport, row: Any) -> _Reported:
    newer = row["session"] is None or (report.session, report.report.seq) > (row["session"], row["seq"])
    return _Reported(
        report=report,
        deployment=str(row["deployment_uid"]) if row["deployment_uid"] is not None else None,
        claimed=row["claimed"],
        recorded=bool(row["recorded"]),
        ordered=row["ordered"],
        ended_before=row["state"] == "exited" and newer,
        ahead=bool(row["ahead"]),
        orphan=row["orphan"],
        ran_before=bool(row["ready"]) or row["state"] in ("running", "unhealthy", "exited"),
    )


def _newest_of_each(reported: Iterable[_Reported]) -> list[_Reported]:
    """One report of each process, since a statement cannot write a row twice. The report of the claim's worker wins."""
    newest: dict[tuple[str, int, int], _Reported] = {}
    for s in sorted(reported, key=lambda s: (s.claimed, s.report.session, s.report.report.seq)):
        newest[s.report.report.instance, s.report.report.epoch, s.report.report.rank] = s
    return list(newest.values())


def _columns(reported: Sequence[_Reported]) -> tuple[list[Any], ...]:
    reports = [s.report.report for s in reported]
    return (
        [r.instance for r in reports],
        [r.epoch for r in reports],
        [r.rank for r in reports],
        [s.report.worker_id for s in reported],
        [r.state for r in reports],
        [r.reason for r in reports],
        [r.exit_code for r in reports],
        [r.message for r in reports],
        [r.pid for r in reports],
        [r.ready for r in reports],
        [r.seq for r in reports],
        [s.report.session for s in reported],
        [r.image_digest for r in reports],
    )
