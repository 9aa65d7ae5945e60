"""Who holds claims, and that some of them shall leave for one who waits."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.domain.holdings import Holder, Holders, Holdings
from controller.domain.pending import PendingRow
from controller.store.core.errors import LostGuardError
from controller.store.core.events import write_events

_STAYING: Final = ("scheduled", "starting", "running", "unhealthy", "backoff")
# An instance whose worker is silent is not among them: nobody could be told to make it leave.
_OCCUPANTS: Final = """
    select i.id, i.epoch, extract(epoch from i.created_at)::float8 as born, (d.spec ->> 'priority')::int as priority,
           i.phase = 'stopping' or i.pushed_out_for is not null or d.deleted_at is not null as leaving,
           exists (select 1 from relocations m where m.instance_id = i.id and m.epoch = i.epoch
                                                 and m.state in ('waiting', 'moving')) as moving
      from instances i join deployments d on d.uid = i.deployment_uid
     where (i.phase = 'stopping' or i.phase = any($1)) and d.uid <> all($2::uuid[])"""
_PUSH_OUT: Final = """
    update instances i set pushed_out_for = x.waits
      from jsonb_to_recordset($1) as x (id text, epoch int, waits text, waits_epoch int), instances w
     where i.id = x.id and i.epoch = x.epoch and i.phase = any($2) and i.pushed_out_for is null
       and w.id = x.waits and w.epoch = x.waits_epoch and w.phase in ('pending', 'analyzing')
 returning i.id, i.deployment_uid"""


@dataclass(frozen=True, slots=True)
class Preemption:
    """One who waits, and those that leave for it."""

    waiting: PendingRow
    victims: tuple[Holder, ...]


async def read_holders(connection: Any, holdings: Holdings, *, without: Collection[str] = ()) -> Holders:
    """All who hold claims and can leave, or are leaving, but for the deployments `without` (uids).

    What they hold is known already, of the same moment.
    """
    found: dict[bool, list[Holder]] = {True: [], False: []}
    relocating: list[Holder] = []
    for row in await connection.fetch(_OCCUPANTS, list(_STAYING), list(without)):
        holding = holdings.get(row["id"])
        if holding is not None:
            one = Holder(row["id"], row["priority"], row["born"], holding.workers, holding.claims, row["epoch"])
            found[row["leaving"]].append(one)
            if row["moving"] and not row["leaving"]:
                relocating.append(one)
    return Holders(tuple(found[False]), tuple(found[True]), tuple(relocating))


async def preempt_victims(connection: Any, pushes: Sequence[Preemption]) -> set[str]:
    """Marks those that shall leave; their deployments' next step stops them. The caller has locked all instances.

    Returns:
        The deployments whose instances leave.

    Raises:
        LostGuardError: if one of them, or who waits, is no longer as it was read.
    """
    marks = [
        {"id": o.instance, "epoch": o.epoch, "waits": push.waiting.id, "waits_epoch": push.waiting.epoch}
        for push in pushes
        for o in push.victims
    ]
    rows = await connection.fetch(_PUSH_OUT, marks, list(_STAYING))
    if len(rows) != len(marks):
        raise LostGuardError("instances that were to leave")
    deployment_of = {row["id"]: str(row["deployment_uid"]) for row in rows}
    await write_events(connection, [_event(push, deployment_of) for push in pushes])
    return set(deployment_of.values())


def _event(push: Preemption, deployment_of: dict[str, str]) -> NewEvent:
    waiting, names = push.waiting, [o.instance for o in push.victims]
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
            "leave": [{"instance": o.instance, "priority": o.priority, "gpus": o.gpus} for o in push.victims],
        },
    )
