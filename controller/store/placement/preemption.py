"""Preemption: the instances that hold claims, and the mark that makes victims stop for a pending instance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.domain.holdings import Holder, Holders, Holding, Holdings
from controller.domain.pending import PendingRow
from controller.store.core.events import write_events
from controller.store.core.guards import LostGuardError

_STAYING: Final = ("scheduled", "starting", "running", "unhealthy", "backoff")
# Instances on an unreachable worker are excluded: no agent could stop them.
_HOLDERS: Final = """
    select i.id, i.epoch, extract(epoch from i.created_at)::float8 as queued_at,
           (d.spec ->> 'priority')::int as priority,
           i.phase = 'stopping' or i.pushed_out_for is not null or d.deleted_at is not null as leaving,
           d.spec ->> 'restart' <> 'always' as task,
           coalesce(d.spec ->> 'command', '[]') = '[]' or d.spec ->> 'command' like '%{port}%' as serves,
           coalesce((d.spec ->> 'movable')::boolean, true) as movable,
           coalesce((d.spec ->> 'minimum_runtime')::float8, 0) as minimum_runtime,
           coalesce(extract(epoch from clock_timestamp() - (select min(c.created_at) from claims c
             where c.instance_id = i.id and c.epoch = i.epoch)), 0)::float8 as age_s,
           exists (select 1 from relocations m where m.instance_id = i.id and m.epoch = i.epoch
                                                 and m.state in ('waiting', 'moving')) as relocating
      from instances i join deployments d on d.uid = i.deployment_uid
     where (i.phase = 'stopping'
            or i.phase = any($1) and (not $2 or i.pushed_out_for is not null or d.deleted_at is not null))"""
_MARK: Final = """
    update instances i set pushed_out_for = x.waits
      from jsonb_to_recordset($1) as x (id text, epoch int, waits text, waits_epoch int), instances w
     where i.id = x.id and i.epoch = x.epoch and i.phase = any($2) and i.pushed_out_for is null
       and w.id = x.waits and w.epoch = x.waits_epoch and w.phase in ('pending', 'analyzing')
 returning i.id, i.deployment_uid"""


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pending instance, and the victims that stop for it."""

    waiting: PendingRow
    victims: tuple[Holder, ...]


async def read_holders(connection: Any, holdings: Holdings, *, only_leaving: bool = False) -> Holders:
    """The instances that hold claims and can stop or are stopping.

    Args:
        connection: in one REPEATABLE READ transaction.
        holdings: their claims, read in the same transaction.
        only_leaving: leaves out those that stay, since preemption and long waits alone concern them.
    """
    found: dict[bool, list[Holder]] = {True: [], False: []}
    relocating: list[Holder] = []
    for row in await connection.fetch(_HOLDERS, list(_STAYING), only_leaving):
        holding = holdings.get(row["id"])
        if holding is not None:
            one = _holder(row, holding)
            found[row["leaving"]].append(one)
            if row["relocating"] and not row["leaving"]:
                relocating.append(one)
    return Holders(tuple(found[False]), tuple(found[True]), tuple(relocating))


def _holder(row: Any, holding: Holding) -> Holder:
    return Holder(
        instance=row["id"],
        priority=row["priority"],
        queued_at=row["queued_at"],
        workers=holding.workers,
        claims=holding.claims,
        epoch=row["epoch"],
        task=bool(row["task"]),
        movable=row["movable"],
        lost_s=row["age_s"] if row["task"] else 0.0,
        protected=row["age_s"] < row["minimum_runtime"],
        serves=row["serves"],
    )


async def preempt_victims(connection: Any, preemptions: Sequence[Preemption]) -> set[str]:
    """Marks the victims; their deployments' next step stops them. The caller has locked all instances.

    Returns:
        The deployments of the victims.

    Raises:
        LostGuardError: a victim, or the pending instance, has changed since it was read.
    """
    marks = [
        {"id": o.instance, "epoch": o.epoch, "waits": preemption.waiting.id, "waits_epoch": preemption.waiting.epoch}
        for preemption in preemptions
        for o in preemption.victims
    ]
    rows = await connection.fetch(_MARK, marks, list(_STAYING))
    if len(rows) != len(marks):
        raise LostGuardError("victims of a preemption")
    deployment_of = {row["id"]: str(row["deployment_uid"]) for row in rows}
    await write_events(connection, [_event(preemption, deployment_of) for preemption in preemptions])
    return set(deployment_of.values())


def _event(preemption: Preemption, deployment_of: dict[str, str]) -> NewEvent:
    waiting, names = preemption.waiting, [o.instance for o in preemption.victims]
    return NewEvent(
        reason="preempting",
        message=f"{waiting.id} of priority {waiting.priority} preempts {', '.join(names)}",
        objects=(
            f"deployment:{waiting.deployment_uid}",
            f"instance:{waiting.id}",
            *(f"deployment:{deployment_of[name]}" for name in names),
            *(f"instance:{name}" for name in names),
        ),
        evidence={
            "priority": waiting.priority,
            "waited_s": round(waiting.waited_s, 3),
            "leave": [{"instance": o.instance, "priority": o.priority, "gpus": o.gpus} for o in preemption.victims],
        },
    )
