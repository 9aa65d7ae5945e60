"""GPUs' utilization over a window, in a few values: recent values from the samples, older ones from the minutes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from controller.store.core.database import Reader, row_mapper
from controller.store.core.refusals import NotFoundError
from controller.store.telemetry.minutes import covered_since
from schemas.api.history import SeriesView, UtilizationView, WatchView

MAX_TRACKS: Final = 512
SLOTS: Final = 60
FINE_UP_TO_S: Final = 3600.0  # a longer window is read from the minutes, in slots that are no shorter
_NOT_ROLLED_UP: Final = "5 min"  # longer than a roll-up takes

# $1, $2: GPUs and the instance whose processes count (empty: all); $3: since;
# $4: begin; $5: seconds of a slot; $6: number of slots.
_TRACKS: Final = """
    tracks as (select * from unnest($1::text[], $2::text[], $3::timestamptz[]) as t (device, instance_id, since))"""
_SLOTTED: Final = """
    select p.device, p.instance_id, slot, max(p.high) as high
      from covered p,
           generate_series(greatest(0, floor(extract(epoch from p.since - $4) / $5::float8)::int),
                           least($6::int - 1, ceil(extract(epoch from p.at - $4) / $5::float8)::int - 1)) as slot
     where p.high is not null
     group by p.device, p.instance_id, slot"""
_SAMPLED: Final = f"""
    select t.device, t.instance_id, s.at,
           greatest({covered_since("s", "t.device, t.instance_id")}, t.since) as since,
           case when t.instance_id = '' then s.max
                else (select max((x ->> 4)::real) from jsonb_array_elements(s.processes) x
                       where x ->> 0 = t.instance_id) end as high
      from tracks t join samples s on s.device = t.device and s.at > t.since and s.at > {{since}}"""  # noqa: S608 - constants
_FINE: Final = f"with {_TRACKS}, covered as ({_SAMPLED.format(since='$4')}) {_SLOTTED}"
_COARSE: Final = f"""
    with {_TRACKS}, covered as (
        {_SAMPLED.format(since=f"now() - interval '{_NOT_ROLLED_UP}'")}
        union all
        select t.device, t.instance_id, m.minute + interval '1 min', greatest(m.minute, t.since), m.max
          from tracks t
          join sample_minutes m on m.device = t.device and m.instance_id = t.instance_id
                               and m.minute >= t.since and m.minute > $4) {_SLOTTED}"""  # noqa: S608 - constants
_BY_UUID: Final = """
    select d.uuid as device, w.name as worker, '' as instance_id, 'epoch'::timestamptz as since
      from devices d join workers w on w.id = d.worker_id where d.kind = 'gpu' and d.uuid = any($1)
     order by array_position($1, d.uuid) limit $2"""
_BY_WORKER: Final = """
    select d.uuid as device, w.name as worker, '' as instance_id, 'epoch'::timestamptz as since
      from devices d join workers w on w.id = d.worker_id
     where d.kind = 'gpu' and w.name = $1 and w.deleted_at is null order by d.index limit $2"""
# Only the newest epoch: older epochs may still be fenced. Usage before the claim is not the instance's.
_BY_INSTANCE: Final = """
    select c.device, w.name as worker, case when c.exclusive then '' else c.instance_id end as instance_id,
           c.created_at as since
      from claims c
      join devices d on d.uuid = c.device and d.kind = 'gpu'
      join workers w on w.id = d.worker_id
     where c.instance_id = any($1) and c.epoch = (select max(epoch) from claims where instance_id = c.instance_id)
     order by c.instance_id, c.rank, c.position limit $2"""


@dataclass(frozen=True, slots=True)
class Track:
    """A GPU, or one instance's own part of it."""

    device: str
    worker: str
    instance_id: str  # empty: all processes on the GPU
    since: datetime  # nothing earlier is shown


_track = row_mapper(Track)


async def tracks_of_gpus(connection: Reader, uuids: Sequence[str]) -> list[Track]:
    """These GPUs, in this order; unknown ones are left out."""
    return _tracks(await connection.fetch(_BY_UUID, list(uuids), MAX_TRACKS))


async def tracks_of_worker(connection: Reader, worker: str) -> list[Track]:
    """The GPUs of a worker. Raises NotFoundError if no live worker has this name."""
    await _must_exist(connection, "select 1 from workers where name = $1 and deleted_at is null", "worker", worker)
    return _tracks(await connection.fetch(_BY_WORKER, worker, MAX_TRACKS))


async def tracks_of_instance(connection: Reader, instance: str) -> tuple[list[Track], str]:
    """The GPUs of an instance since its claims, and its deployment's uid. Raises NotFoundError for an unknown id."""
    uid = await _must_exist(connection, "select deployment_uid from instances where id = $1", "instance", instance)
    return _tracks(await connection.fetch(_BY_INSTANCE, [instance], MAX_TRACKS)), str(uid)


async def tracks_of_deployment(connection: Reader, deployment: str) -> tuple[list[Track], str]:
    """The GPUs of a deployment's instances, and its uid. Raises NotFoundError if no deployment had this name."""
    query = "select uid from deployments where name = $1 order by deleted_at desc nulls first limit 1"
    uid = await _must_exist(connection, query, "deployment", deployment)
    rows = await connection.fetch("select id from instances where deployment_uid = $1", uid)
    return _tracks(await connection.fetch(_BY_INSTANCE, [row["id"] for row in rows], MAX_TRACKS)), str(uid)


async def read_utilization(
    connection: Reader, tracks: Sequence[Track], window_s: float, policy: WatchView | None = None
) -> UtilizationView:
    """The last `window_s` seconds of each track, the highest value of each slot. In one REPEATABLE READ transaction."""
    slot_s = window_s / SLOTS
    (window,) = await connection.fetch("select now() as until, now() - $1 * interval '1 s' as begin", window_s)
    columns = [t.device for t in tracks], [t.instance_id for t in tracks], [t.since for t in tracks]
    query = _FINE if window_s <= FINE_UP_TO_S else _COARSE
    highs: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in await connection.fetch(query, *columns, window["begin"], slot_s, SLOTS):
        highs[row["device"], row["instance_id"]][row["slot"]] = round(row["high"], 1)
    return UtilizationView(
        until=window["until"],
        window_s=window_s,
        slot_s=slot_s,
        series=[
            SeriesView(
                gpu=t.device,
                worker=t.worker,
                instance=t.instance_id,
                values=[highs[t.device, t.instance_id].get(slot) for slot in range(SLOTS)],
            )
            for t in tracks
        ],
        policy=policy,
    )


async def _must_exist(connection: Reader, query: str, kind: str, name: str) -> Any:
    rows = await connection.fetch(query, name)
    if not rows:
        raise NotFoundError(f"no {kind} is named {name!r}; `gpuward get {kind}s` lists all {kind}s")
    return rows[0][0]


def _tracks(rows: Sequence[Any]) -> list[Track]:
    return list(map(_track, rows))
