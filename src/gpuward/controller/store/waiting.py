"""Who waits for a place, in the order in which they are served, and what their revisions ask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuward.controller.domain.need_json import need_from_json
from gpuward.controller.domain.placement import Need
from gpuward.controller.store.instances import spec_from_json
from gpuward.schemas.manifest import DeploymentSpec

_NEXT_DUE: Final = """
    select extract(epoch from min(not_before) - clock_timestamp())::float8
      from instances where phase = 'pending' and not_before > clock_timestamp()"""
# Due ones only: whoever backs off waits, and is looked at again when its time has come.
_WAITING: Final = """
    select i.id, i.deployment_uid, i.revision, i.phase, i.phase_since, i.epoch, i.failures, i.message, d.name,
           (d.spec ->> 'priority')::int as priority, (d.spec ->> 'preempt')::boolean as preempt,
           exists (select 1 from instances v where v.pushed_out_for = i.id) as pushing,
           (select jsonb_build_array(r.workers, r.gpus) from relocations r
             where r.copy_id = i.id and r.state = 'moving') as destination,
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
class Destination:
    """A place chosen beforehand: workers by name, GPUs by UUID."""

    workers: tuple[str, ...]
    gpus: tuple[str, ...]


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
    avoid_worker: str | None = None  # where it has failed too often in a row
    priority: int = 0
    preempt: bool = False
    pushing: bool = False  # those whom it pushed out are still leaving
    destination: Destination | None = None  # a copy of one that is to move goes there and nowhere else


def newcomer(id_: str, deployment_uid: str, deployment: str, revision: int) -> WaitingInstance:
    """An instance that is about to be created, and waits for nothing but its place."""
    return WaitingInstance(
        id=id_,
        deployment_uid=deployment_uid,
        deployment=deployment,
        revision=revision,
        phase="pending",
        epoch=0,
        waited_s=0.0,
        message="",
    )


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
            priority=row["priority"],
            preempt=row["preempt"],
            pushing=row["pushing"],
            destination=Destination(*map(tuple, row["destination"])) if row["destination"] else None,
        )
        for row in rows
    ]
    return waiting, next_due_s


async def read_revisions(connection: Any, keys: Sequence[RevisionKey]) -> dict[RevisionKey, RevisionRow]:
    """Specs and needs of revisions, not parsed yet; immutable once they are there, so they may be kept."""
    rows = await connection.fetch(_REVISIONS, [k[0] for k in keys], [k[1] for k in keys])
    return {(str(row["deployment_uid"]), row["generation"]): RevisionRow(row["spec"], row["need"]) for row in rows}
