"""Who holds claims, and that some of them shall leave for one who waits."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuward.controller.domain.placement import PlannedClaim
from gpuward.controller.scheduling.pool import Occupant
from gpuward.controller.scheduling.queueing import Occupants
from gpuward.controller.store.errors import LostGuardError
from gpuward.controller.store.events import NewEvent, write_events
from gpuward.controller.store.waiting import WaitingInstance

_STAYING: Final = ("scheduled", "starting", "running", "unhealthy", "backoff")
# An instance whose worker is silent is not among them: nobody could be told to make it leave.
_OCCUPANTS: Final = """
    select c.instance_id, c.device, c.memory_mib, c.cpu_milli, c.exclusive, c.position, c.rank, v.worker_id, i.epoch,
           extract(epoch from i.created_at)::float8 as born, (d.spec ->> 'priority')::int as priority,
           i.phase = 'stopping' or i.pushed_out_for is not null or d.deleted_at is not null as leaving
      from claims c
      join devices v on v.uuid = c.device
      join instances i on i.id = c.instance_id
      join deployments d on d.uid = i.deployment_uid
     where (i.phase = 'stopping' or i.phase = any($1)) and d.uid <> all($2::uuid[])"""
_PUSH_OUT: Final = """
    update instances i set pushed_out_for = x.waits
      from jsonb_to_recordset($1) as x (id text, epoch int, waits text, waits_epoch int), instances w
     where i.id = x.id and i.epoch = x.epoch and i.phase = any($2) and i.pushed_out_for is null
       and w.id = x.waits and w.epoch = x.waits_epoch and w.phase in ('pending', 'analyzing')
 returning i.id, i.deployment_uid"""


@dataclass(frozen=True, slots=True)
class Push:
    """One who waits, and those that leave for it."""

    waiting: WaitingInstance
    leave: tuple[Occupant, ...]


async def read_occupants(connection: Any, *, without: Collection[str] = ()) -> Occupants:
    """All who hold claims and can leave, or are leaving, but for the deployments `without` (uids)."""
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    for row in await connection.fetch(_OCCUPANTS, list(_STAYING), list(without)):
        rows[row["instance_id"]].append(row)
    found: dict[bool, list[Occupant]] = {True: [], False: []}
    for instance, claims in rows.items():
        found[claims[0]["leaving"]].append(_occupant(instance, claims))
    return Occupants(tuple(found[False]), tuple(found[True]))


def _occupant(instance: str, rows: Sequence[Any]) -> Occupant:
    claims = (
        PlannedClaim(r["device"], r["memory_mib"], r["cpu_milli"], r["exclusive"], r["position"], r["rank"])
        for r in rows
    )
    return Occupant(
        instance=instance,
        priority=rows[0]["priority"],
        born=rows[0]["born"],
        workers=frozenset(str(row["worker_id"]) for row in rows),
        claims=tuple(claims),
        epoch=rows[0]["epoch"],
    )


async def push_out(connection: Any, pushes: Sequence[Push]) -> set[str]:
    """Marks those that shall leave; their deployments' next step stops them. The caller has locked all instances.

    Returns:
        The deployments whose instances leave.

    Raises:
        LostGuardError: if one of them, or who waits, is no longer as it was read.
    """
    marks = [
        {"id": o.instance, "epoch": o.epoch, "waits": push.waiting.id, "waits_epoch": push.waiting.epoch}
        for push in pushes
        for o in push.leave
    ]
    rows = await connection.fetch(_PUSH_OUT, marks, list(_STAYING))
    if len(rows) != len(marks):
        raise LostGuardError("instances that were to leave")
    deployment_of = {row["id"]: str(row["deployment_uid"]) for row in rows}
    await write_events(connection, [_event(push, deployment_of) for push in pushes])
    return set(deployment_of.values())


def _event(push: Push, deployment_of: dict[str, str]) -> NewEvent:
    waiting, names = push.waiting, [o.instance for o in push.leave]
    return NewEvent(
        reason="preempting",
        message=f"{waiting.id} of priority {waiting.priority} pushes out {', '.join(names)}",
        objects=(
            f"deployment:{waiting.deployment_uid}",
            f"instance:{waiting.id}",
            *(f"deployment:{deployment_of[name]}" for name in names),
            *(f"instance:{name}" for name in names),
        ),
        evidence={
            "priority": waiting.priority,
            "waited_s": round(waiting.waited_s, 3),
            "leave": [{"instance": o.instance, "priority": o.priority, "gpus": o.gpus} for o in push.leave],
        },
    )
