"""Relocations as rows: requested by the API, started a few at a time, ended by the instances' steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.effects import StaleError
from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import notify, notify_all, write_events
from controller.store.core.guards import DeploymentStep
from controller.store.core.refusals import InUseError

# A relocation that starts later would rest on an outdated plan.
_START_WITHIN_S: Final = 600.0
_EXPIRE: Final = """
    update relocations r set state = 'abandoned', ended_at = clock_timestamp(), message = x.why
      from (select r.id, case when i.id is null then 'it no longer runs as it did when its relocation was planned'
                              else 'it did not begin in time' end as why
              from relocations r
              left join instances i
                on i.id = r.instance_id and i.epoch = r.epoch and i.phase in ('running', 'unhealthy')
             where r.state = 'waiting' and (i.id is null or r.created_at < clock_timestamp() - $1 * interval '1 s')) x
     where r.id = x.id and r.state = 'waiting'
 returning r.instance_id, r.deployment_uid, r.message"""
_BEGIN: Final = """
    update relocations set state = 'moving', started_at = clock_timestamp()
     where id in (select id from relocations where state = 'waiting' order by id
                   limit greatest($1 - (select count(*) from relocations
                                         where state = 'moving' and purpose = 'plan'), 0))
 returning deployment_uid"""
# Not of drains and restarts: they have no planned places that other plans must fit.
_COUNT_OPEN: Final = "select count(*) from relocations where state in ('waiting', 'moving') and purpose = 'plan'"
# A planned relocation that has not started is replaced.
_REPLACE: Final = """
    insert into relocations as r
           (deployment_uid, instance_id, epoch, workers, gpus, state, copy_id, purpose, started_at)
    select x.uid, x.instance, x.epoch, '{}', '{}', 'moving', x.copy, x.purpose, clock_timestamp()
      from jsonb_to_recordset($1) as x (uid uuid, instance text, epoch int, copy text, purpose text)
     order by x.instance
    on conflict (instance_id) where state in ('waiting', 'moving') do update
       set epoch = excluded.epoch, workers = '{}', gpus = '{}', rooms = '{}', demand = '', state = 'moving',
           copy_id = excluded.copy_id, purpose = excluded.purpose, started_at = excluded.started_at
     where r.state = 'waiting'
    returning r.id"""


@dataclass(frozen=True, slots=True)
class NewRelocation:
    """A requested relocation of an instance at an epoch."""

    instance: str
    deployment_uid: str
    epoch: int
    workers: tuple[str, ...]  # names; they are the destination where there are no GPUs
    gpus: tuple[str, ...]  # UUIDs of the destination
    demand: str
    # By pending instance, the place that the plan frees for it: names of workers, UUIDs of GPUs.
    freed_places: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)


async def check_none_in_progress(connection: Any) -> None:
    """Refuses a plan while relocations are in progress.

    Raises:
        InUseError: relocations of an earlier call are in progress; two plans would not fit together.
    """
    if await connection.fetchval(_COUNT_OPEN):
        raise InUseError("relocations are in progress; wait until `gpuward defrag` shows none, then plan again")


async def request_relocations(database: Database, moves: Sequence[NewRelocation]) -> None:
    """Writes the requested relocations, except those of deleted deployments, and wakes the leader.

    Raises:
        InUseError: relocations of an earlier call are in progress.
    """
    async with database.transaction() as connection:
        await connection.execute("select pg_advisory_xact_lock(hashtext('relocations'))")  # one such call at a time
        await check_none_in_progress(connection)
        await connection.executemany(
            """insert into relocations (deployment_uid, instance_id, epoch, workers, gpus, demand, rooms)
               select uid, $2, $3, $4, $5, $6, $7 from deployments where uid = $1 and deleted_at is null""",
            [
                (m.deployment_uid, m.instance, m.epoch, list(m.workers), list(m.gpus), m.demand, dict(m.freed_places))
                for m in moves
            ],
        )
        await write_events(connection, [_event(move) for move in moves])
        await notify(connection, "relocation", ["all"])


def _event(move: NewRelocation) -> NewEvent:
    objects = (f"deployment:{move.deployment_uid}", f"instance:{move.instance}")
    to = ", ".join(move.workers)
    message = f"{move.instance} will be relocated to {to}, so that {move.demand} fits"
    return NewEvent("relocation_planned", message, objects, {"to": to, "gpus": list(move.gpus), "for": move.demand})


async def begin_relocations(connection: Any, *, at_once: int) -> int:
    """Starts waiting relocations, up to `at_once` in progress; abandons those that can no longer be carried out.

    The caller has checked its term.

    Returns:
        The number of relocations that wait or are in progress.
    """
    expired = await connection.fetch(_EXPIRE, _START_WITHIN_S)
    await write_events(
        connection,
        [
            NewEvent(
                "relocation_abandoned",
                f"{row['instance_id']} is not relocated: {row['message']}",
                (f"deployment:{row['deployment_uid']}", f"instance:{row['instance_id']}"),
            )
            for row in expired
        ],
    )
    started = await connection.fetch(_BEGIN, at_once)
    await notify_all(connection, {"deployment": [str(row["deployment_uid"]) for row in started]})
    open_now: int = await connection.fetchval(_COUNT_OPEN)
    return open_now


async def record_relocations(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Records the replacements that were created, and the relocations that are over.

    Raises:
        StaleError: a relocation is no longer in progress.
    """
    copies = [
        {"id": c.relocation, "copy": name, "state": "moving", "message": ""}
        for s in steps
        for name, c in zip(s.names, s.effects.creates, strict=True)
        if c.relocation is not None
    ]
    ends = [
        {"id": e.id, "copy": None, "state": e.state, "message": e.message}
        for s in steps
        for e in s.effects.relocation_ends
    ]
    if copies or ends:
        rows = await connection.fetch(
            """update relocations r
                  set copy_id = coalesce(x.copy, r.copy_id), state = x.state, message = x.message,
                      ended_at = case when x.state = 'moving' then null else clock_timestamp() end
                 from jsonb_to_recordset($1) as x (id bigint, copy text, state text, message text)
                where r.id = x.id and r.state = 'moving' and (x.copy is null or r.copy_id is null)
            returning r.id""",
            [*copies, *ends],
        )
        if len(rows) != len(copies) + len(ends):
            raise StaleError("relocations")
    await _record_replacements(connection, steps)


async def _record_replacements(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Records the replacements of drained and restarted instances, each in progress from its creation."""
    started = [
        {
            "uid": s.snapshot.uid,
            "instance": c.replaced.instance,
            "epoch": c.replaced.epoch,
            "copy": name,
            "purpose": c.replaced.purpose,
        }
        for s in steps
        for name, c in zip(s.names, s.effects.creates, strict=True)
        if c.replaced is not None
    ]
    if started and len(await connection.fetch(_REPLACE, started)) != len(started):
        raise StaleError("replacements")
