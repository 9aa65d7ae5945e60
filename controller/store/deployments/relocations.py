"""Moves of running instances as rows: asked for by the API, begun a few at a time, ended by the instances' steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.errors import LostGuardError
from controller.store.core.events import write_events
from controller.store.core.guarded import DeploymentStep
from controller.store.core.notify import notify, notify_all
from controller.store.core.refusals import InUseError

# A plan is of its moment: what has not begun by then would rest on another state of things.
_BEGINS_WITHIN_S: Final = 600.0
_EXPIRE: Final = """
    update relocations r set state = 'abandoned', ended_at = clock_timestamp(), message = x.why
      from (select r.id, case when i.id is null then 'it no longer runs as it did when its move was planned'
                              else 'its turn did not come in time' end as why
              from relocations r
              left join instances i
                on i.id = r.instance_id and i.epoch = r.epoch and i.phase in ('running', 'unhealthy')
             where r.state = 'waiting' and (i.id is null or r.created_at < clock_timestamp() - $1 * interval '1 s')) x
     where r.id = x.id and r.state = 'waiting'
 returning r.instance_id, r.deployment_uid, r.message"""
_BEGIN: Final = """
    update relocations set state = 'moving', started_at = clock_timestamp()
     where id in (select id from relocations where state = 'waiting' order by id
                   limit greatest($1 - (select count(*) from relocations where state = 'moving'), 0))
 returning deployment_uid"""


@dataclass(frozen=True, slots=True)
class NewRelocation:
    """A move to be made: of an instance at an epoch, to GPUs, or where it is on none to workers (names).

    `rooms`: where room is made by all moves of the plan, for instances that wait: names of workers, UUIDs of GPUs.
    """

    instance: str
    deployment_uid: str
    epoch: int
    workers: tuple[str, ...]
    gpus: tuple[str, ...]
    demand: str
    rooms: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)


async def check_none_under_way(connection: Any) -> None:
    """Refuses whoever would plan moves beside those that are planned already.

    Raises:
        InUseError: if moves of an earlier call are under way; plans made beside each other would not fit together.
    """
    if await connection.fetchval("select exists (select 1 from relocations where state in ('waiting', 'moving'))"):
        raise InUseError("moves are under way; wait until `gpuward defrag` tells of their end, then plan anew")


async def ask_for(database: Database, moves: Sequence[NewRelocation]) -> None:
    """Writes moves that shall be made, but for those of deleted deployments, and wakes the leader.

    Raises:
        InUseError: if moves of an earlier call are under way.
    """
    async with database.transaction() as connection:
        await connection.execute("select pg_advisory_xact_lock(hashtext('relocations'))")  # one such call at a time
        await check_none_under_way(connection)
        await connection.executemany(
            """insert into relocations (deployment_uid, instance_id, epoch, workers, gpus, demand, rooms)
               select uid, $2, $3, $4, $5, $6, $7 from deployments where uid = $1 and deleted_at is null""",
            [
                (m.deployment_uid, m.instance, m.epoch, list(m.workers), list(m.gpus), m.demand, dict(m.rooms))
                for m in moves
            ],
        )
        await write_events(connection, [_asked(move) for move in moves])
        await notify(connection, "relocation", ["all"])


def _asked(move: NewRelocation) -> NewEvent:
    objects = (f"deployment:{move.deployment_uid}", f"instance:{move.instance}")
    to = ", ".join(move.workers)
    message = f"{move.instance} shall move to {to}, so that {move.demand} fits"
    return NewEvent("relocation_planned", message, objects, {"to": to, "gpus": list(move.gpus), "for": move.demand})


async def begin_next(connection: Any, *, at_once: int) -> int:
    """Begins as many of those that wait as may be under way together; gives up what can no longer be made.

    The caller has checked its term.

    Returns:
        How many are waiting or under way.
    """
    expired = await connection.fetch(_EXPIRE, _BEGINS_WITHIN_S)
    await write_events(
        connection,
        [
            NewEvent(
                "relocation_abandoned",
                f"{row['instance_id']} is not moved: {row['message']}",
                (f"deployment:{row['deployment_uid']}", f"instance:{row['instance_id']}"),
            )
            for row in expired
        ],
    )
    begun = await connection.fetch(_BEGIN, at_once)
    await notify_all(connection, {"deployment": [str(row["deployment_uid"]) for row in begun]})
    open_now: int = await connection.fetchval("select count(*) from relocations where state in ('waiting', 'moving')")
    return open_now


async def note_relocations(connection: Any, steps: Sequence[DeploymentStep]) -> None:
    """Writes which copies come up, and which relocations are over.

    Raises:
        LostGuardError: if one of them is no longer under way.
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
            raise LostGuardError("relocations")
