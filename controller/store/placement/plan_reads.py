"""Reads for dry runs and advice, and the workers and GPUs that manifests name."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from controller.domain.admission import Destination
from controller.domain.placement import Need, PlannedClaim, need_from_json
from controller.store.core.database import Reader, view_of
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import spec_from_json
from controller.store.placement.pass_reads import PLACEABLE, destination_from_json, planned_claim
from schemas.api.defrag import RelocationView
from schemas.api.explain import Explain
from schemas.api.view import from_plain
from schemas.manifest.deployment import DeploymentSpec

_QUEUED: Final = f"""
    select count(*)
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
     where i.phase in ('pending', 'analyzing') and (i.not_before is null or i.not_before <= clock_timestamp())
       and {PLACEABLE}"""  # noqa: S608 - a constant, no input
_MOST_GPUS: Final = 1_000  # the times of more stay unknown: each is read from the events
_WORKERS: Final = """
    select w.name, coalesce(case when w.phase in ('unreachable', 'lost') then l.last_seen end, w.phase_since) as since
      from workers w left join worker_liveness l on l.worker_id = w.id
     where w.deleted_at is null and w.phase <> 'ready'"""
_GPUS: Final = """
    select d.uuid, (select max(e.at) from events e
                     where e.objects @> array['gpu:' || d.uuid] and e.reason in ('gpu_unhealthy', 'gpu_missing')) since
      from devices d
     where d.kind = 'gpu' and (d.health <> 'ok' or not d.present) order by d.uuid limit $1"""
_NAMED_WORKERS: Final = "select name from workers where name = any($1) and deleted_at is null"
_NAMED_GPUS: Final = """
    select d.uuid, w.name || ':' || d.index as at, d.vendor
      from devices d join workers w on w.id = d.worker_id and w.deleted_at is null
     where d.kind = 'gpu' and (d.uuid = any($1) or (w.name = any($2) and w.name || ':' || d.index = any($1)))
     order by d.uuid"""
_SHOWN: Final = 100
# Only of deployments whose instances all run the newest revision. Not tasks that never restart, which would run twice,
# nor victims of a preemption, which free their capacity anyway.
_MOVABLE: Final = """
    select i.id, i.epoch, i.deployment_uid, i.revision, d.name, (d.spec ->> 'priority')::int as priority, r.spec,
           r.need, c.device, c.rank, c.memory_mib,
           c.cpu_milli, c.exclusive, c.position, v.worker_id
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
      join claims c on c.instance_id = i.id and c.epoch = i.epoch
      join devices v on v.uuid = c.device
     where i.phase = 'running' and i.pushed_out_for is null and r.need is not null
       and d.deleted_at is null and d.observed_generation = d.generation and d.phase = 'running'
       and (d.spec ->> 'movable')::boolean
       and clock_timestamp() - c.created_at >= coalesce((d.spec ->> 'minimum_runtime')::float8, 0) * interval '1 s'
       and r.spec ->> 'restart' = 'always'
       and not exists (select 1 from relocations m
                        where m.deployment_uid = d.uid and m.state in ('waiting', 'moving'))
     order by i.id, c.rank, c.position"""


async def placed_counts(connection: Reader, uids: Iterable[str]) -> dict[str, Counter[int]]:
    """The number of each deployment's instances that hold claims and are not stopping, by revision."""
    rows = await connection.fetch(
        """select i.deployment_uid, i.revision, count(*) as n from instances i
            where i.deployment_uid = any($1::uuid[]) and i.phase not in ('stopping', 'replaced')
              and exists (select 1 from claims c where c.instance_id = i.id)
            group by i.deployment_uid, i.revision""",
        list(uids),
    )
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        counts[str(row["deployment_uid"])][row["revision"]] = row["n"]
    return counts


async def known_needs(connection: Reader, input_hashes: Iterable[str]) -> dict[str, Need]:
    """Needs by input hash, from earlier analyses."""
    rows = await connection.fetch(
        """select distinct on (input_hash) input_hash, need from revisions
            where input_hash = any($1) and need is not null order by input_hash, created_at desc""",
        list(input_hashes),
    )
    return {row["input_hash"]: need_from_json(row["need"]) for row in rows}


async def newest_revisions(connection: Reader, uids: Sequence[str]) -> list[tuple[str, int]]:
    """The uid and the newest revision of each of these deployments."""
    rows = await connection.fetch("select uid, revision from deployments where uid = any($1::uuid[])", uids)
    return [(str(row["uid"]), row["revision"]) for row in rows]


class History(NamedTuple):
    """Changes with a failover or a restore of the database, after which rows read before may never have existed."""

    timeline: int | None  # PostgreSQL's; None: the server does not report it
    term: int  # the lease's


async def read_horizon(connection: Reader) -> int:
    """The oldest transaction that this snapshot may not see as finished. Only a restored database lowers it."""
    (row,) = await connection.fetch("select pg_snapshot_xmin(pg_current_snapshot())::text as horizon")
    return int(row["horizon"])


async def read_history(connection: Reader) -> History:
    (row,) = await connection.fetch("select database_timeline() as timeline, term from lease where id = 1")
    return History(row["timeline"], row["term"])


async def count_queued(connection: Reader) -> int:
    """How many instances `read_pending` would read without a limit."""
    return int((await connection.fetch(_QUEUED))[0]["count"])


@dataclass(frozen=True, slots=True)
class Absences:
    """Since when workers are not ready and GPUs unhealthy. A missing key is unknown."""

    workers: dict[str, datetime] = field(default_factory=dict)  # by name
    gpus: dict[str, datetime] = field(default_factory=dict)  # by UUID


async def read_absences(connection: Reader) -> Absences:
    workers = await connection.fetch(_WORKERS)
    gpus = await connection.fetch(_GPUS, _MOST_GPUS)
    return Absences(
        {row["name"]: row["since"] for row in workers if row["since"] is not None},
        {row["uuid"]: row["since"] for row in gpus if row["since"] is not None},
    )


@dataclass(frozen=True, slots=True)
class NamedDevices:
    """Workers and GPUs of names in a spec."""

    workers: Collection[str]  # the given workers that exist
    gpus: Mapping[str, tuple[tuple[str, str], ...]]  # UUIDs and vendors by given name, which may be a UUID


async def named_devices(connection: Reader, workers: Collection[str], gpus: Collection[str]) -> NamedDevices:
    known = await connection.fetch(_NAMED_WORKERS, list(workers)) if workers else []
    owners = {name.rpartition(":")[0] for name in gpus}
    rows = await connection.fetch(_NAMED_GPUS, list(gpus), list(owners)) if gpus else []
    meant: dict[str, tuple[tuple[str, str], ...]] = {}
    for row in rows:
        for name in {row["uuid"], row["at"]}.intersection(gpus):
            meant[name] = (*meant.get(name, ()), (row["uuid"], row["vendor"]))
    return NamedDevices(frozenset(row["name"] for row in known), meant)


@dataclass(frozen=True, slots=True)
class Standing:
    """An instance with its spec and need, and its last explanation."""

    instance: str
    deployment_uid: str
    phase: str
    message: str
    spec: DeploymentSpec
    need: Need | None
    explain: Explain | None


async def standing_of(connection: Reader, instance: str) -> Standing:
    """Raises NotFoundError if no instance has this id."""
    rows = await connection.fetch(
        """select i.id, i.deployment_uid, i.phase, i.message, i.explain, r.spec, r.need
             from instances i join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
            where i.id = $1""",
        instance,
    )
    if not rows:
        raise NotFoundError(f"no instance is named {instance!r}; `gpuward ps` lists them")
    row = rows[0]
    return Standing(
        instance=row["id"],
        deployment_uid=str(row["deployment_uid"]),
        phase=row["phase"],
        message=row["message"],
        spec=spec_from_json(row["spec"]),
        need=need_from_json(row["need"]) if row["need"] is not None else None,
        explain=from_plain(Explain, row["explain"]) if row["explain"] else None,
    )


@dataclass(frozen=True, slots=True)
class MovableRow:
    """A running instance that may be relocated."""

    instance: str
    epoch: int
    deployment: str
    deployment_uid: str
    spec: DeploymentSpec
    need: Need
    workers: tuple[str, ...]  # ids by rank
    claims: tuple[PlannedClaim, ...]
    priority: int = 0


async def read_movable(connection: Reader) -> list[MovableRow]:
    """All instances that may be relocated now."""
    rows: defaultdict[str, list[Any]] = defaultdict(list)
    for row in await connection.fetch(_MOVABLE):
        rows[row["id"]].append(row)
    needs: dict[tuple[Any, int], Need] = {}
    movable = []
    for instance, claims in rows.items():
        first = claims[0]
        key = first["deployment_uid"], first["revision"]
        if key not in needs:
            needs[key] = need_from_json(first["need"])
        movable.append(
            MovableRow(
                instance=instance,
                epoch=first["epoch"],
                deployment=first["name"],
                deployment_uid=str(first["deployment_uid"]),
                spec=spec_from_json(first["spec"]),
                need=needs[key],
                workers=tuple(dict.fromkeys(str(c["worker_id"]) for c in claims)),
                claims=tuple(planned_claim(c) for c in claims),
                priority=first["priority"],
            )
        )
    return movable


async def read_relocations(connection: Reader) -> list[RelocationView]:
    """The latest planned relocations, newest first: waiting, in progress, done or abandoned."""
    rows = await connection.fetch(
        """select r.*, r.instance_id as instance, d.name as deployment, r.workers as to_workers, r.gpus as to_gpus,
                  r.copy_id as copy_name
             from relocations r join deployments d on d.uid = r.deployment_uid
            where r.purpose = 'plan' order by r.id desc limit $1""",
        _SHOWN,
    )
    return [view_of(RelocationView, row) for row in rows]


@dataclass(frozen=True, slots=True)
class DemandRow:
    """A pending instance whose need is known."""

    instance: str
    deployment_uid: str
    spec: DeploymentSpec
    need: Need
    priority: int = 0
    promised: Destination | None = None  # the place that its victims leave


async def read_demands(connection: Reader, limit: int) -> list[DemandRow]:
    """Pending instances in admission order, without the replacements of relocations in progress."""
    rows = await connection.fetch(
        """select i.id, i.deployment_uid, r.spec, r.need, (d.spec ->> 'priority')::int as priority,
                  i.promised
             from instances i
             join deployments d on d.uid = i.deployment_uid
             join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
            where i.phase in ('pending', 'analyzing') and d.deleted_at is null and r.need is not null
              and i.revision = d.revision
              and not exists (select 1 from relocations m
                               where m.copy_id = i.id and m.state = 'moving' and m.purpose = 'plan')
            order by (d.spec ->> 'priority')::int desc, i.created_at, i.id limit $1""",
        limit,
    )
    return [
        DemandRow(
            instance=row["id"],
            deployment_uid=str(row["deployment_uid"]),
            spec=spec_from_json(row["spec"]),
            need=need_from_json(row["need"]),
            priority=row["priority"],
            promised=destination_from_json(row["promised"]),
        )
        for row in rows
    ]
