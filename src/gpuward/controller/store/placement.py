"""Who waits for a place, and the one transaction that gives places: checked row by row, verified by the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuward.controller.domain.need_json import need_from_json
from gpuward.controller.domain.placement import Need, Placed, Unplaced
from gpuward.controller.scheduling.explain import headline
from gpuward.controller.store.events import NewEvent, write_events
from gpuward.controller.store.instances import spec_from_json
from gpuward.controller.store.locks import lock_rows
from gpuward.controller.store.notify import notify, notify_all
from gpuward.controller.store.starts import order_starts
from gpuward.schemas.manifest import DeploymentSpec

_NEXT_DUE: Final = """
    select extract(epoch from min(not_before) - clock_timestamp())::float8
      from instances where phase = 'pending' and not_before > clock_timestamp()"""
# Due ones only: whoever backs off waits, and is looked at again when its time has come.
_WAITING: Final = """
    select i.id, i.deployment_uid, i.revision, i.phase, i.phase_since, i.epoch, i.failures, i.message, d.name,
           clock_timestamp() as read_at,
           (select p.worker_id from processes p where p.instance_id = i.id and p.epoch = i.epoch limit 1)
               as last_worker,
           (select extract(epoch from min(not_before) - clock_timestamp())::float8
              from instances where phase = 'pending' and not_before > clock_timestamp()) as next_due_s
      from instances i join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
     where i.phase in ('pending', 'analyzing') and d.deleted_at is null and r.need is not null
       and i.revision = d.revision and (i.not_before is null or i.not_before <= clock_timestamp())
     order by (d.spec ->> 'priority')::int desc, i.created_at, i.id
     limit $1"""
_REVISIONS: Final = """
    select r.deployment_uid, r.generation, r.spec, r.need
      from revisions r join unnest($1::uuid[], $2::bigint[]) as x (uid, generation)
        on r.deployment_uid = x.uid and r.generation = x.generation
     where r.need is not null"""

RevisionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """A revision as stored. Parsing may fail where another version wrote it, and must then fail for it alone."""

    spec: Any
    need: Any

    def parse(self) -> tuple[DeploymentSpec, Need]:
        """The spec and the need.

        Raises:
            ValueError: if this version does not understand the spec.
        """
        return spec_from_json(self.spec), need_from_json(self.need)


@dataclass(frozen=True, slots=True)
class WaitingInstance:
    """An instance that can be placed as soon as something fits."""

    id: str
    deployment_uid: str
    deployment: str
    revision: int
    phase: str
    epoch: int
    waited_s: float
    message: str
    avoid_worker: str | None  # where it has failed too often in a row


@dataclass(frozen=True, slots=True)
class PlacedStart:
    """A decision to commit: the claims, and the order that starts it."""

    waiting: WaitingInstance
    placed: Placed
    payload: Mapping[str, Any]


async def read_waiting(
    connection: Any, limit: int, *, failures_per_worker: int
) -> tuple[list[WaitingInstance], float | None]:
    """Who waits, highest priority and then oldest first; and in how many seconds the next one ends its back-off."""
    rows = await connection.fetch(_WAITING, limit)
    next_due_s: float | None = rows[0]["next_due_s"] if rows else await connection.fetchval(_NEXT_DUE)
    waiting = [
        WaitingInstance(
            id=row["id"],
            deployment_uid=str(row["deployment_uid"]),
            deployment=row["name"],
            revision=row["revision"],
            phase=row["phase"],
            epoch=row["epoch"],
            waited_s=(row["read_at"] - row["phase_since"]).total_seconds(),
            message=row["message"],
            avoid_worker=str(row["last_worker"])
            if row["last_worker"] and row["failures"] and row["failures"] % failures_per_worker == 0
            else None,
        )
        for row in rows
    ]
    return waiting, next_due_s


async def read_revisions(connection: Any, keys: Sequence[RevisionKey]) -> dict[RevisionKey, RevisionRow]:
    """Specs and needs of revisions, not parsed yet; immutable once they are there, so they may be kept."""
    rows = await connection.fetch(_REVISIONS, [k[0] for k in keys], [k[1] for k in keys])
    return {(str(row["deployment_uid"]), row["generation"]): RevisionRow(row["spec"], row["need"]) for row in rows}


async def commit_placements(connection: Any, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
    """Commits what still holds: claims, phase, start orders, events. What lost a race is left out of the answer.

    Workers are share-locked and checked once more, devices are locked in uuid order and checked once more; the
    triggers on claims verify the sums. The caller holds the transaction and has checked its term.

    Returns:
        The starts that were written.
    """
    await lock_rows(connection, instances=[s.waiting.id for s in starts])
    workers = await _usable_workers(connection, {s.placed.worker_id for s in starts})
    devices = await _usable_devices(connection, {c.device for s in starts for c in s.placed.claims})
    kept = [s for s in starts if s.placed.worker_id in workers and _fits(s, devices)]
    kept = await _take_instances(connection, kept)
    if kept:
        await _write_claims(connection, kept)
        await order_starts(
            connection, [(s.placed.worker_id, s.waiting.id, s.waiting.epoch + 1, dict(s.payload)) for s in kept]
        )
        await write_events(connection, [_event(s) for s in kept])
        await notify_all(
            connection,
            {
                "command": {s.placed.worker_id for s in kept},
                "status": {s.waiting.deployment_uid for s in kept},
            },
        )
    return kept


@dataclass(slots=True)
class _Room:
    """What is left on a locked device."""

    memory_mib: int
    cpu_milli: int
    claims: int
    exclusive: bool


async def _usable_workers(connection: Any, ids: set[str]) -> set[str]:
    rows = await connection.fetch(
        """select id from workers
            where id = any($1::uuid[]) and phase = 'ready' and gpus_known and deleted_at is null
              and not cordoned and not draining
            order by id for share""",
        sorted(ids),
    )
    return {str(row["id"]) for row in rows}


async def _usable_devices(connection: Any, uuids: set[str]) -> dict[str, _Room]:
    rows = await connection.fetch(
        """select uuid, memory_mib - claimed_mib as memory_mib, cpu_milli - claimed_cpu_milli as cpu_milli, claims,
                  exclusive_claims, health = 'ok' and present and not mig_mode as usable
             from devices where uuid = any($1) order by uuid for no key update""",
        sorted(uuids),
    )
    return {
        row["uuid"]: _Room(row["memory_mib"], row["cpu_milli"], row["claims"], row["exclusive_claims"] > 0)
        for row in rows
        if row["usable"]
    }


def _fits(start: PlacedStart, devices: dict[str, _Room]) -> bool:
    """Whether all its claims hold on the locked rows; if so, they are taken off the room that is left."""
    for claim in start.placed.claims:
        room = devices.get(claim.device)
        if room is None or room.exclusive or (claim.exclusive and room.claims):
            return False
        if claim.memory_mib > room.memory_mib or claim.cpu_milli > room.cpu_milli:
            return False
    for claim in start.placed.claims:
        room = devices[claim.device]
        room.memory_mib -= claim.memory_mib
        room.cpu_milli -= claim.cpu_milli
        room.claims += 1
        room.exclusive = room.exclusive or claim.exclusive
    return True


async def _take_instances(connection: Any, starts: Sequence[PlacedStart]) -> list[PlacedStart]:
    """Moves instances on to `scheduled`, those only that still wait and whose deployment still lives."""
    rows = await connection.fetch(
        """update instances i
              set phase = 'scheduled', phase_since = clock_timestamp(), epoch = i.epoch + 1, reason = '', message = '',
                  explain = null, not_before = null, running_since = null
             from unnest($1::text[], $2::int[]) as x (id, epoch), deployments d
            where i.id = x.id and i.epoch = x.epoch and i.phase in ('pending', 'analyzing')
              and d.uid = i.deployment_uid and d.deleted_at is null and d.revision = i.revision
        returning i.id""",
        [s.waiting.id for s in starts],
        [s.waiting.epoch for s in starts],
    )
    taken = {row["id"] for row in rows}
    return [s for s in starts if s.waiting.id in taken]


async def _write_claims(connection: Any, starts: Sequence[PlacedStart]) -> None:
    claims = [(s, c) for s in starts for c in s.placed.claims]
    await connection.execute(
        """insert into claims (device, instance_id, epoch, memory_mib, cpu_milli, exclusive, position)
           select * from unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::boolean[],
                                $7::int[])""",
        [c.device for _, c in claims],
        [s.waiting.id for s, _ in claims],
        [s.waiting.epoch + 1 for s, _ in claims],
        [c.memory_mib for _, c in claims],
        [c.cpu_milli for _, c in claims],
        [c.exclusive for _, c in claims],
        [c.position for _, c in claims],
    )


def _event(start: PlacedStart) -> NewEvent:
    gpus = [c.device for c in start.placed.claims if not c.device.startswith("host-")]
    return NewEvent(
        reason="scheduled",
        message=f"{start.waiting.id} is placed on {', '.join(gpus) or 'a host without GPUs'}",
        objects=(
            f"deployment:{start.waiting.deployment_uid}",
            f"instance:{start.waiting.id}",
            f"worker:{start.placed.worker_id}",
            *(f"gpu:{uuid}" for uuid in gpus),
        ),
        evidence={"gpus": gpus, "epoch": start.waiting.epoch + 1, "waited_s": round(start.waiting.waited_s, 3)},
    )


async def store_explanations(connection: Any, unplaced: Sequence[tuple[WaitingInstance, Unplaced]]) -> None:
    """Writes why they wait. The caller leaves out those whose explanation has not changed."""
    await connection.execute(
        """update instances i
              set phase = 'pending', reason = x.reason, message = x.message, explain = x.explain,
                  phase_since = case when i.phase = 'pending' then i.phase_since else clock_timestamp() end
             from unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::jsonb[])
                  as x (id, epoch, reason, message, explain)
            where i.id = x.id and i.epoch = x.epoch and i.phase in ('pending', 'analyzing')""",
        [w.id for w, _ in unplaced],
        [w.epoch for w, _ in unplaced],
        [str(headline(u.explain)) for _, u in unplaced],
        [u.explain.message for _, u in unplaced],
        [u.explain.model_dump(mode="json") for _, u in unplaced],
    )
    await notify(connection, "status", {w.deployment_uid for w, _ in unplaced})
