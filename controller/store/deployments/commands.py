"""The hub's side of commands: which are due for dispatch, and the agents' answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from controller.store.access.receipt_key import JOIN_RECEIPT_KEY, RECEIPT_KEY, opened_receipt_key
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Connection
from controller.store.core.guards import UNSETTLED

RESEND_AFTER_S: Final = 5.0

_LEASE: Final = f"""
    select l.term, {RECEIPT_KEY}, {UNSETTLED} as unsettled
      from lease l {JOIN_RECEIPT_KEY} where l.id = 1 for key share of l"""  # noqa: S608 - constants
# sent_at is set before sending: a command that may have been sent counts as sent. A start whose process has exited, or
# whose claims are released, must never be sent (again): it would run on devices that other instances hold.
_TAKE: Final = """
    with due as (
        select c.id, c.sent_at as sent_before, w.runtimes, c.verb = 'start' and (
                   exists (select 1 from processes p
                            where (p.instance_id, p.epoch, p.rank) = (c.instance_id, c.epoch, c.rank)
                              and p.state = 'exited')
                   or not exists (select 1 from claims h join devices d on d.uuid = h.device
                                   where (h.instance_id, h.epoch, h.rank) = (c.instance_id, c.epoch, c.rank)
                                     and d.worker_id = c.worker_id)) as over
          from unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) as s(worker_id, session, since)
          join workers w on w.id = s.worker_id and w.session = s.session and w.deleted_at is null
         cross join lateral (
               select * from commands
                where worker_id = s.worker_id and state = 'open' and not (verb = 'start' and $6)
                  and (sent_at is null or sent_at < greatest(clock_timestamp() - $4 * interval '1 second', s.since))
                order by id limit $5 for no key update) c)
    update commands u
       set sent_at = case when over then sent_at else clock_timestamp() end,
           state = case when over then 'refused' else state end,
           code = case when over then 'old_epoch' else code end,
           message = case when over then 'its process has exited or its claims are released' else message end,
           answered_at = case when over then clock_timestamp() end
      from due where u.id = due.id
    returning u.*, due.sent_before, due.over, due.runtimes,
              case when u.verb = 'start' then (
                   select r.image_digests from instances i
                     join revisions r on (r.deployment_uid, r.generation) = (i.deployment_uid, i.revision)
                    where i.id = u.instance_id) end as image_digests,
              case when u.verb = 'start' then (
                   select jsonb_build_object(
                              'worker_id', u.worker_id, 'instance', i.id, 'epoch', u.epoch, 'rank', u.rank,
                              'deployment_uid', i.deployment_uid, 'revision', i.revision, 'created_at', i.created_at,
                              'engine', coalesce(i.engine, ''), 'layout', i.layout, 'claims', (
                              select jsonb_agg(jsonb_build_object(
                                         'device', h.device, 'memory_mib', h.memory_mib, 'cpu_milli', h.cpu_milli,
                                         'exclusive', h.exclusive, 'position', h.position)
                                     order by h.position, h.device)
                                from claims h
                               where (h.instance_id, h.epoch, h.rank) = (u.instance_id, u.epoch, u.rank)))
                     from instances i where i.id = u.instance_id) end as receipt"""
# A command refused for its term stays open: it was stamped just before a takeover, and is sent again with the new term.
_ANSWER: Final = """
    with answered as (
        update commands c
           set state = r.outcome, code = r.code, message = r.message, answered_at = clock_timestamp()
          from (select * from unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[])
                       as r(id, worker_id, outcome, code, message) order by id) r
         where c.id = r.id and c.worker_id = r.worker_id and c.state = 'open' and r.code <> 'old_term'
        returning c.instance_id)
    select distinct i.deployment_uid from answered a join instances i on i.id = a.instance_id"""


@dataclass(frozen=True, slots=True)
class Target:
    """A connection that can take commands; commands sent before `since` were sent on an older connection."""

    worker_id: str
    session: int
    since: datetime


@dataclass(frozen=True, slots=True)
class DueCommand:
    """An open command, to be sent now."""

    id: int
    worker_id: str
    instance: str
    epoch: int
    rank: int
    verb: Literal["start", "stop"]
    payload: dict[str, Any]
    sent_before: bool  # an agent may have received it already
    runtimes: frozenset[str] = frozenset()  # that its worker's agent knows, usable or not
    image_digests: Mapping[str, str] = field(default_factory=dict)  # that its revision keeps, by repository
    receipt: dict[str, Any] | None = None  # the ledger's record of this start


@dataclass(frozen=True, slots=True)
class DueCommands:
    """Open commands in id order, with the term to stamp on them."""

    term: int
    commands: tuple[DueCommand, ...]
    receipt_key: bytes | None = b""  # seals receipts; None: no key of this controller opens it


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's answer to a command, or the hub's refusal of a command that it cannot send."""

    id: int
    worker_id: str
    outcome: Literal["accepted", "refused"]
    code: str
    message: str


async def take_due(
    connection: Connection, targets: Sequence[Target], limit: int, keys: SecretKeys = NO_KEYS
) -> DueCommands:
    """Marks due commands as sent and returns them, at most `limit` for each worker.

    The transaction must end before any of them is sent. It locks the term row, so that no other leader takes over
    between the read of the term and the mark. Nothing is started while agents have yet to report what runs.
    """
    lease = await connection.fetchrow(_LEASE)
    rows = await connection.fetch(
        _TAKE,
        [t.worker_id for t in targets],
        [t.session for t in targets],
        [t.since for t in targets],
        RESEND_AFTER_S,
        limit,
        lease["unsettled"],
    )
    commands = (
        DueCommand(
            id=row["id"],
            worker_id=str(row["worker_id"]),
            instance=row["instance_id"],
            epoch=row["epoch"],
            rank=row["rank"],
            verb=row["verb"],
            payload=row["payload"],
            sent_before=row["sent_before"] is not None,
            runtimes=frozenset(runtime["name"] for runtime in row["runtimes"]),
            image_digests=row["image_digests"] or {},
            receipt=row["receipt"],
        )
        for row in rows
        if not row["over"]
    )
    key = await opened_receipt_key(lease, keys)
    return DueCommands(lease["term"], tuple(sorted(commands, key=lambda command: command.id)), key)


async def write_answers(connection: Connection, answers: Sequence[Answer]) -> set[str]:
    """Writes answers to open commands, and returns the deployments concerned. An answered command keeps its answer."""
    if not answers:
        return set()
    rows = await connection.fetch(
        _ANSWER,
        [a.id for a in answers],
        [a.worker_id for a in answers],
        [a.outcome for a in answers],
        [a.code for a in answers],
        [a.message for a in answers],
    )
    return {str(row["deployment_uid"]) for row in rows}
