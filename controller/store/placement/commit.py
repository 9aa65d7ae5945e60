"""What a placement pass writes: claims (checked row by row under lock, verified by triggers), victims, explanations."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from controller.domain.admission import Destination, Holder, PendingRow
from controller.domain.effects import StaleError
from controller.domain.events import NewEvent
from controller.domain.placement import Placed, PlannedClaim
from controller.store.core.events import CHANNEL, Hints, current_actor, notify, notify_all, payloads, write_events
from controller.store.placement.pass_reads import STAYING
from schemas.api.explain import Explain
from schemas.api.view import to_plain

# Two statements, since round trips take most of the time of a single placement. This statement locks and reads. A count
# is known only once all of its rows are locked, so each lock waits for the previous one: instances, workers, devices,
# each by its key.
_LOCK: Final = """
    with i as materialized (
        select id from instances where id = any($1) order by id for no key update),
    w as materialized (
        select id, name from workers
         where id = any($2::uuid[]) and phase = 'ready' and gpus_known and deleted_at is null
           and not cordoned and not draining and not conditions @> '[{"type": "DiskPressure"}]'
           and (select count(*) from i) is not null
         order by id for share)
    select uuid, memory_mib - claimed_mib as free_mib, reserved_mib, foreign_mib,
           cpu_milli - claimed_cpu_milli as cpu_milli, claims, exclusive_claims,
           w.id::text as worker_id, w.name as worker,
           w.id is not null and health = 'ok' and present and not mig_mode and not cordoned as usable,
           array(select c.rendezvous_port from claims c
                  where c.device = devices.uuid and c.rendezvous_port is not null) as ports
      from devices left join w on w.id = worker_id
     where uuid = any($3) and (select count(*) from w) is not null
     order by uuid for no key update of devices"""
# Only instances that are still pending, of a live deployment, become `scheduled`. Everything else depends on them.
_WRITE: Final = """
    with taken as (
        update instances i
           set phase = 'scheduled', phase_since = clock_timestamp(), epoch = x.epoch, reason = '', message = '',
               explain = null, not_before = null, running_since = null, promised = null, engine = x.engine,
               layout = x.layout
          from jsonb_to_recordset($1) as x (id text, epoch int, engine text, layout jsonb), deployments d
         where i.id = x.id and greatest(i.epoch, i.seen_epoch) = x.epoch - 1
           and i.phase in ('pending', 'analyzing')
           and d.uid = i.deployment_uid and d.deleted_at is null
           and (d.revision = i.revision or exists (
                select 1 from rollouts o where o.deployment_uid = d.uid and o.holds and o.stable = i.revision))
     returning i.id),
    claimed as (
        insert into claims (device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position,
                            rendezvous_port)
        select device, instance_id, epoch, rank, memory_mib, cpu_milli, exclusive, position, rendezvous_port
          from jsonb_to_recordset($2) as x (device text, instance_id text, epoch int, rank int, memory_mib bigint,
                                            cpu_milli bigint, exclusive boolean, position int, rendezvous_port int)
         where instance_id in (select id from taken)),
    commanded as (
        insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
        select worker_id, instance_id, epoch, rank, 'start', payload
          from jsonb_to_recordset($3) as x (worker_id uuid, instance_id text, epoch int, rank int, payload jsonb)
         where instance_id in (select id from taken)),
    noted as (
        insert into events (reason, message, evidence, objects, actor, request_id, subjects)
        select 'scheduled', message, evidence, objects, $7, $8, subjects
          from jsonb_to_recordset($4) as x (instance_id text, message text, evidence jsonb, objects text[],
                                            subjects jsonb)
         where instance_id in (select id from taken)),
    woken as materialized (
        select count(pg_notify($5, payload)) as n from unnest($6::text[]) payload)
    select id from taken, woken"""
_MARK: Final = """
    update instances i set pushed_out_for = x.waits
      from jsonb_to_recordset($1) as x (id text, epoch int, waits text, waits_epoch int), instances w
     where i.id = x.id and i.epoch = x.epoch and i.phase = any($2) and i.pushed_out_for is null
       and w.id = x.waits and w.epoch = x.waits_epoch and w.phase in ('pending', 'analyzing')
 returning i.id, i.deployment_uid"""


@dataclass(frozen=True, slots=True)
class PlacedStart:
    """A decision to commit."""

    waiting: PendingRow
    placed: Placed
    payloads: tuple[Mapping[str, Any], ...]  # the start commands', by rank
    rendezvous_port: int | None = None  # a gang's, on the host of its leader

    @property
    def epoch(self) -> int:
        """The epoch of the claims."""
        return self.waiting.epoch + 1


async def commit_placements(
    connection: Any, starts: Sequence[PlacedStart], hints: Hints | None = None
) -> list[PlacedStart]:
    """Commits the starts that still fit: claims, phase, start commands, events. Starts that lost a race are left out.

    All ranks of an instance or none. Workers are share-locked and checked again, devices are locked in uuid order and
    checked again; the triggers on claims verify the sums. The caller holds the transaction and has checked its term;
    `hints` are its own notifications, sent along.

    Returns:
        The starts that were written.
    """
    devices, workers = await _lock(connection, starts) if starts else ({}, {})
    kept = [s for s in starts if _fits(s, devices)]
    notified = {kind: set(ids) for kind, ids in (hints or {}).items()}
    if not kept:
        await notify_all(connection, notified)
        return []
    notified.setdefault("command", set()).update(worker for s in kept for worker in s.placed.workers)
    notified.setdefault("status", set()).update(s.waiting.deployment_uid for s in kept)
    rows = await connection.fetch(
        _WRITE,
        [_instance(s) for s in kept],
        [claim for s in kept for claim in _claims(s)],
        [command for s in kept for command in _commands(s)],
        [_event(s, workers) for s in kept],
        CHANNEL,
        payloads(notified),
        *current_actor(),
    )
    taken = {row["id"] for row in rows}
    return [s for s in kept if s.waiting.id in taken]


@dataclass(slots=True)
class _Capacity:
    """Free capacity of a locked device, computed as the search does: shared claims get no reserved or used memory."""

    free_mib: int  # free memory, reserved memory included: an exclusive claim takes it too
    reserved_mib: int
    foreign_mib: int
    cpu_milli: int
    claims: int
    exclusive: bool
    ports: set[int]  # at which gangs meet there

    def has(self, claim: PlannedClaim) -> bool:
        """Whether the claim fits. A resource that it does not need may be exhausted."""
        if self.exclusive or (claim.cpu_milli and claim.cpu_milli > self.cpu_milli):
            return False
        if claim.exclusive:
            return not self.claims and not self.foreign_mib and claim.memory_mib <= self.free_mib
        shared_mib = self.free_mib - self.reserved_mib - self.foreign_mib
        return not claim.memory_mib or claim.memory_mib <= shared_mib

    def take(self, claim: PlannedClaim) -> None:
        self.free_mib -= claim.memory_mib
        self.cpu_milli -= claim.cpu_milli
        self.claims += 1
        self.exclusive = self.exclusive or claim.exclusive


async def _lock(connection: Any, starts: Sequence[PlacedStart]) -> tuple[dict[str, _Capacity], dict[str, str]]:
    """Locks all rows of the starts; returns the free capacity of the usable devices, and their workers' names by id."""
    rows = await connection.fetch(
        _LOCK,
        [s.waiting.id for s in starts],
        list({worker for s in starts for worker in s.placed.workers}),
        list({c.device for s in starts for c in s.placed.claims}),
    )
    usable = [row for row in rows if row["usable"]]
    capacity = {
        row["uuid"]: _Capacity(
            free_mib=row["free_mib"],
            reserved_mib=row["reserved_mib"],
            foreign_mib=row["foreign_mib"],
            cpu_milli=row["cpu_milli"],
            claims=row["claims"],
            exclusive=row["exclusive_claims"] > 0,
            ports=set(row["ports"]),
        )
        for row in usable
    }
    return capacity, {row["worker_id"]: row["worker"] for row in usable}


def _fits(start: PlacedStart, devices: dict[str, _Capacity]) -> bool:
    """Whether all its claims fit on the locked devices; if so, subtracts them."""
    pairs = [(free, claim) for claim in start.placed.claims if (free := devices.get(claim.device)) is not None]
    if len(pairs) < len(start.placed.claims) or not all(free.has(claim) for free, claim in pairs):
        return False
    host, port = devices[start.placed.leading_host], start.rendezvous_port
    if port in host.ports:
        return False
    if port is not None:
        host.ports.add(port)
    for free, claim in pairs:
        free.take(claim)
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
            "rendezvous_port": start.rendezvous_port if claim.device == start.placed.leading_host else None,
        }
        for claim in start.placed.claims
    ]


def _commands(start: PlacedStart) -> list[dict[str, Any]]:
    return [
        {"worker_id": worker, "instance_id": start.waiting.id, "epoch": start.epoch, "rank": rank, "payload": payload}
        for rank, (worker, payload) in enumerate(zip(start.placed.workers, start.payloads, strict=True))
    ]


def _event(start: PlacedStart, workers: Mapping[str, str]) -> dict[str, Any]:
    # With its subjects, whose names are known here: reading them for each event took longer than writing it.
    waiting, placed = start.waiting, start.placed
    gpus = [c.device for c in placed.claims if not c.device.startswith("host-")]
    where = ", ".join(workers[worker] for worker in placed.workers)
    held = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    subjects = [
        ("deployment", waiting.deployment_uid, waiting.deployment),
        ("instance", waiting.id, waiting.id),
        *(("worker", worker, workers[worker]) for worker in placed.workers),
        *(("gpu", uuid, uuid) for uuid in gpus),
    ]
    return {
        "instance_id": waiting.id,
        "message": f"{waiting.id} is placed on {where}" + (f", {held}" if gpus else ""),
        "objects": [f"{kind}:{uid}" for kind, uid, _ in subjects],
        "subjects": [{"kind": kind, "uid": uid, "name": name} for kind, uid, name in subjects],
        "evidence": {
            "gpus": gpus,
            "epoch": start.epoch,
            "waited_s": round(waiting.waited_s, 3),
            "durations": {"pending": round(waiting.waited_s, 3)},
        },
    }


async def store_explanations(
    connection: Any,
    unplaced: Sequence[tuple[PendingRow, str, Explain]],
    also: Collection[str] = (),
    awaits_servers: Collection[str] = (),
    promised: Mapping[str, Destination] = MappingProxyType({}),
) -> None:
    """Writes why instances stay pending. The caller has locked them, and omits those whose explanation is unchanged.

    Args:
        connection: a transaction.
        unplaced: instances with reason and explanation.
        also: uids of other deployments whose watchers are notified.
        awaits_servers: ids of instances for which capacity is reserved that servers hold; the time for that runs from
            the first such call.
        promised: the places that are reserved for instances, by id.
    """
    await connection.execute(
        """update instances i
              set phase = 'pending', reason = x.reason, message = x.message, explain = x.explain,
                  phase_since = case when i.phase = 'pending' then i.phase_since else clock_timestamp() end,
                  reserved_since = case when i.id = any($6) and (i.reserved_since >= i.phase_since) is not true
                                        then clock_timestamp() else i.reserved_since end,
                  promised = coalesce(x.promised, i.promised)
             from unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::jsonb[], $7::jsonb[])
                  as x (id, epoch, reason, message, explain, promised)
            where i.id = x.id and greatest(i.epoch, i.seen_epoch) = x.epoch and i.phase in ('pending', 'analyzing')""",
        [row.id for row, _, _ in unplaced],
        [row.epoch for row, _, _ in unplaced],
        [reason for _, reason, _ in unplaced],
        [explain.message for _, _, explain in unplaced],
        [to_plain(explain) for _, _, explain in unplaced],
        list(awaits_servers),
        [asdict(place) if (place := promised.get(row.id)) is not None else None for row, _, _ in unplaced],
    )
    await notify(connection, "status", {row.deployment_uid for row, _, _ in unplaced}.union(also))


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pending instance with its victims."""

    waiting: PendingRow
    victims: tuple[Holder, ...]


async def preempt_victims(connection: Any, preemptions: Sequence[Preemption]) -> set[str]:
    """Marks the victims; their deployments' next step stops them. The caller has locked all instances.

    Returns:
        The deployments of the victims.

    Raises:
        StaleError: a victim, or the pending instance, has changed since it was read.
    """
    marks = [
        {"id": o.instance, "epoch": o.epoch, "waits": preemption.waiting.id, "waits_epoch": preemption.waiting.epoch}
        for preemption in preemptions
        for o in preemption.victims
    ]
    rows = await connection.fetch(_MARK, marks, list(STAYING))
    if len(rows) != len(marks):
        raise StaleError("victims of a preemption")
    deployment_of = {row["id"]: str(row["deployment_uid"]) for row in rows}
    await write_events(connection, [_preempting(preemption, deployment_of) for preemption in preemptions])
    return set(deployment_of.values())


def _preempting(preemption: Preemption, deployment_of: dict[str, str]) -> NewEvent:
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
