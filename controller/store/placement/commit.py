"""The one transaction that gives places: checked row by row under lock, verified by the ledger."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.pending import PendingRow
from controller.domain.placement import Placed, PlannedClaim, Unplaced
from controller.scheduling.explain.unplaced import headline
from controller.store.core.notify import CHANNEL, Hints, notify, notify_all, payloads

# Two statements, since each costs a round trip, and one at a time those are most of what a placement takes. This one
# locks and reads. A count is known only when all of its rows are locked, so each waits for the one before: instances,
# workers, devices, each by its key.
_LOCK: Final = """
    with i as materialized (
        select id from instances where id = any($1) order by id for no key update),
    w as materialized (
        select id from workers
         where id = any($2::uuid[]) and phase = 'ready' and gpus_known and deleted_at is null
           and not cordoned and not draining and (select count(*) from i) is not null
         order by id for share)
    select uuid, memory_mib - claimed_mib as whole_mib, reserved_mib, foreign_mib,
           cpu_milli - claimed_cpu_milli as cpu_milli, claims, exclusive_claims,
           worker_id = any(array(select id from w)) and health = 'ok' and present and not mig_mode as usable
      from devices
     where uuid = any($3) and (select count(*) from w) is not null
     order by uuid for no key update"""
# Only those that still wait and whose deployment still lives become `scheduled`; the rest hangs on them.
_WRITE: Final = """
    with taken as (
        update instances i
           set phase = 'scheduled', phase_since = clock_timestamp(), epoch = x.epoch, reason = '', message = '',
               explain = null, not_before = null, running_since = null, engine = x.engine, layout = x.layout
          from jsonb_to_recordset($1) as x (id text, epoch int, engine text, layout jsonb), deployments d
         where i.id = x.id and i.epoch = x.epoch - 1 and i.phase in ('pending', 'analyzing')
           and d.uid = i.deployment_uid and d.deleted_at is null and d.revision = i.revision
     returning i.id),
    claimed as (
        insert into claims (device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position)
        select device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position
          from jsonb_to_recordset($2) as x (device text, instance_id text, epoch int, rank int, memory_mib bigint,
                                            cpu_milli bigint, exclusive boolean, position int)
         where instance_id in (select id from taken)),
    ordered as (
        insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
        select worker_id, instance_id, epoch, rank, 'start', payload
          from jsonb_to_recordset($3) as x (worker_id uuid, instance_id text, epoch int, rank int, payload jsonb)
         where instance_id in (select id from taken)),
    told as (
        insert into events (reason, message, evidence, objects)
        select 'scheduled', message, evidence, objects
          from jsonb_to_recordset($4) as x (instance_id text, message text, evidence jsonb, objects text[])
         where instance_id in (select id from taken)),
    woken as materialized (
        select count(pg_notify($5, payload)) as n from unnest($6::text[]) payload)
    select id from taken, woken"""


@dataclass(frozen=True, slots=True)
class PlacedStart:
    """A decision to commit: the claims, and for each rank the order that starts it."""

    waiting: PendingRow
    placed: Placed
    payloads: tuple[Mapping[str, Any], ...]

    @property
    def epoch(self) -> int:
        """The one that begins with it."""
        return self.waiting.epoch + 1


async def commit_placements(
    connection: Any, starts: Sequence[PlacedStart], hints: Hints | None = None
) -> list[PlacedStart]:
    """Commits what still holds: claims, phase, start orders, events. What lost a race is left out of the answer.

    All ranks of an instance or none. Workers are share-locked and checked once more, devices are locked in uuid order
    and checked once more; the triggers on claims verify the sums. The caller holds the transaction and has checked its
    term; `hints` are what else it has to tell.

    Returns:
        The starts that were written.
    """
    devices = await _lock(connection, starts) if starts else {}
    kept = [s for s in starts if _fits(s, devices)]
    told = {kind: set(ids) for kind, ids in (hints or {}).items()}
    if not kept:
        await notify_all(connection, told)
        return []
    told.setdefault("command", set()).update(worker for s in kept for worker in s.placed.workers)
    told.setdefault("status", set()).update(s.waiting.deployment_uid for s in kept)
    rows = await connection.fetch(
        _WRITE,
        [_instance(s) for s in kept],
        [claim for s in kept for claim in _claims(s)],
        [order for s in kept for order in _orders(s)],
        [_event(s) for s in kept],
        CHANNEL,
        payloads(told),
    )
    taken = {row["id"] for row in rows}
    return [s for s in kept if s.waiting.id in taken]


@dataclass(slots=True)
class _Room:
    """What is left on a locked device, by the measure of the search: nobody shares what is reserved or in use."""

    whole_mib: int  # without regard to what is reserved, which goes to who takes a GPU whole
    reserved_mib: int
    foreign_mib: int
    cpu_milli: int
    claims: int
    exclusive: bool

    def has(self, claim: PlannedClaim) -> bool:
        """Whether the claim fits. What is not asked for may be lacking."""
        if self.exclusive or (claim.cpu_milli and claim.cpu_milli > self.cpu_milli):
            return False
        if claim.exclusive:
            return not self.claims and not self.foreign_mib and claim.memory_mib <= self.whole_mib
        shared_mib = self.whole_mib - self.reserved_mib - self.foreign_mib
        return not claim.memory_mib or claim.memory_mib <= shared_mib

    def take(self, claim: PlannedClaim) -> None:
        """Takes it off."""
        self.whole_mib -= claim.memory_mib
        self.cpu_milli -= claim.cpu_milli
        self.claims += 1
        self.exclusive = self.exclusive or claim.exclusive


async def _lock(connection: Any, starts: Sequence[PlacedStart]) -> dict[str, _Room]:
    """Locks all rows that the starts concern; returns what is left on the devices that may be used."""
    rows = await connection.fetch(
        _LOCK,
        [s.waiting.id for s in starts],
        list({worker for s in starts for worker in s.placed.workers}),
        list({c.device for s in starts for c in s.placed.claims}),
    )
    return {
        row["uuid"]: _Room(
            whole_mib=row["whole_mib"],
            reserved_mib=row["reserved_mib"],
            foreign_mib=row["foreign_mib"],
            cpu_milli=row["cpu_milli"],
            claims=row["claims"],
            exclusive=row["exclusive_claims"] > 0,
        )
        for row in rows
        if row["usable"]
    }


def _fits(start: PlacedStart, devices: dict[str, _Room]) -> bool:
    """Whether all its claims hold on the locked rows; if so, they are taken off the room that is left."""
    rooms = [(room, claim) for claim in start.placed.claims if (room := devices.get(claim.device)) is not None]
    if len(rooms) < len(start.placed.claims) or not all(room.has(claim) for room, claim in rooms):
        return False
    for room, claim in rooms:
        room.take(claim)
    return True


def _instance(start: PlacedStart) -> dict[str, Any]:
    layout = start.placed.layout
    chosen = {"gpus": layout.gpus, "workers": layout.workers, "tp": layout.tp, "pp": layout.pp, "dp": layout.dp}
    return {"id": start.waiting.id, "epoch": start.epoch, "engine": start.placed.engine or None, "layout": chosen}


def _claims(start: PlacedStart) -> list[dict[str, Any]]:
    return [
        {
            "device": claim.device,
            "instance_id": start.waiting.id,
            "epoch": start.epoch,
            "rank": claim.rank,
            "memory_mib": claim.memory_mib,
            "cpu_milli": claim.cpu_milli,
            "exclusive": claim.exclusive,
            "position": claim.position,
        }
        for claim in start.placed.claims
    ]


def _orders(start: PlacedStart) -> list[dict[str, Any]]:
    return [
        {"worker_id": worker, "instance_id": start.waiting.id, "epoch": start.epoch, "rank": rank, "payload": payload}
        for rank, (worker, payload) in enumerate(zip(start.placed.workers, start.payloads, strict=True))
    ]


def _event(start: PlacedStart) -> dict[str, Any]:
    waiting, placed = start.waiting, start.placed
    gpus = [c.device for c in placed.claims if not c.device.startswith("host-")]
    hosts = f" of {len(placed.workers)} workers" if len(placed.workers) > 1 else ""
    return {
        "instance_id": waiting.id,
        "message": f"{waiting.id} is placed on {', '.join(gpus) or 'a host without GPUs'}{hosts}",
        "objects": [
            f"deployment:{waiting.deployment_uid}",
            f"instance:{waiting.id}",
            *(f"worker:{worker}" for worker in placed.workers),
            *(f"gpu:{uuid}" for uuid in gpus),
        ],
        "evidence": {"gpus": gpus, "epoch": start.epoch, "waited_s": round(waiting.waited_s, 3)},
    }


async def store_explanations(
    connection: Any, unplaced: Sequence[tuple[PendingRow, Unplaced]], also: Collection[str] = ()
) -> None:
    """Writes why they wait. The caller leaves out those whose explanation has not changed, and has locked the others.

    `also`: other deployments of which watchers are told.
    """
    await connection.execute(
        """update instances i
              set phase = 'pending', reason = x.reason, message = x.message, explain = x.explain,
                  phase_since = case when i.phase = 'pending' then i.phase_since else clock_timestamp() end
             from unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::jsonb[])
                  as x (id, epoch, reason, message, explain)
            where i.id = x.id and i.epoch = x.epoch and i.phase in ('pending', 'analyzing')""",
        [w.id for w, _ in unplaced],
        [w.epoch for w, _ in unplaced],
        [str(u.reason or headline(u.explain)) for _, u in unplaced],
        [u.explain.message for _, u in unplaced],
        [u.explain.model_dump(mode="json") for _, u in unplaced],
    )
    await notify(connection, "status", {w.deployment_uid for w, _ in unplaced}.union(also))
